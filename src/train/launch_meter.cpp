// Two clocks, and where they meet: the host sees the results when the device has them.
#include "train/launch_meter.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace deltatune {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

LaunchMeter::LaunchMeter(bool on, std::function<double()> clock)
    : on_(on), clock_(clock ? std::move(clock) : steady_seconds) {}

void LaunchMeter::begin_step(Stream& stream) {
  host_bound_ = -1;
  if (!on_) return;
  parts_used_ = 0;
  counting_ = true;
  results_marked_ = false;
  stream.mark(begin_);
}

void LaunchMeter::begin_part(Stream& stream) {
  if (!counting_) return;
  if (parts_used_ == parts_.size()) parts_.emplace_back();
  stream.mark(parts_[parts_used_].begin);
}

void LaunchMeter::end_part(Stream& stream, bool graph) {
  if (!counting_) return;
  Part& part = parts_[parts_used_++];
  part.host_end = clock_();
  part.graph = graph;
  stream.mark(part.end);
}

void LaunchMeter::mark_results(Stream& stream) {
  if (!counting_) return;
  counting_ = false;
  results_marked_ = true;
  stream.mark(results_);
}

void LaunchMeter::end_step(Stream& stream) {
  if (!results_marked_) return;
  results_marked_ = false;
  const double host_results = clock_();
  const double device_results = stream.seconds_between(begin_, results_);
  double sum = 0;
  double free_since = 0;  // seconds after begin_ on the device
  for (size_t i = 0; i < parts_used_; ++i) {
    const Part& part = parts_[i];
    const double begin = stream.seconds_between(begin_, part.begin);
    const double end = stream.seconds_between(begin_, part.end);
    sum += std::max(0.0, begin - free_since);
    const double behind = (end - device_results + host_results) - part.host_end;
    if (!part.graph && behind < close_behind) sum += end - begin;
    free_since = end;
  }
  host_bound_ = sum;
}

}  // namespace deltatune
