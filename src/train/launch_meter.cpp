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

LaunchMeter::~LaunchMeter() {
  watch_ops(false);
}

void LaunchMeter::begin_step(Stream& stream) {
  watch_ops(false);
  host_bound_ = -1;
  if (!on_) return;
  parts_used_ = 0;
  marks_used_ = 0;
  counting_ = true;
  results_marked_ = false;
  step_begin_ = clock_();
  stream.mark(begin_);
}

void LaunchMeter::begin_part(Stream& stream) {
  if (!counting_) return;
  if (parts_used_ == parts_.size()) parts_.emplace_back();
  Part& part = parts_[parts_used_];
  part.first_mark = marks_used_;
  part.marks = 0;
  stream.mark(part.begin);
  watched_ = &stream;
  part.host_begin = last_op_ = last_mark_ = clock_();
  watch_ops(true);
}

void LaunchMeter::watch_ops(bool on) {
  if (on && counting_) {
    current_op_watch = this;
  } else if (current_op_watch == this) {
    current_op_watch = nullptr;
  }
}

void LaunchMeter::before_op(Stream& stream) {
  if (&stream != watched_ || marks_used_ == most_marks) return;
  const double now = clock_();
  const double since = std::exchange(last_op_, now);
  const bool held_up = now - since > std::max(hold_up, hold_up_share * step_seconds_);
  if (!held_up && now - last_mark_ < std::max(stretch, stretch_share * step_seconds_)) return;
  if (marks_used_ == marks_.size()) marks_.emplace_back();
  Mark& mark = marks_[marks_used_++];
  mark.host = last_mark_ = now;
  mark.held_since = since;
  mark.after_hold_up = held_up;
  stream.mark(mark.at);
  ++parts_[parts_used_].marks;
}

void LaunchMeter::end_part(Stream& stream, bool graph) {
  watch_ops(false);
  if (!counting_) return;
  Part& part = parts_[parts_used_++];
  part.end.host = clock_();
  part.graph = graph;
  stream.mark(part.end.at);
}

void LaunchMeter::mark_results(Stream& stream) {
  if (!counting_) return;
  counting_ = false;
  results_marked_ = true;
  stream.mark(results_);
}

// begin: of the part, in seconds after begin_. host_to_device: added to the host's time it gives those.
double LaunchMeter::part_seconds(Stream& stream, const Part& part, double begin, double host_to_device) {
  double sum = 0;
  double from = begin;
  bool close = begin - (part.host_begin + host_to_device) < close_behind;
  const auto look_at = [&](const Mark& mark) {
    const double at = stream.seconds_between(begin_, mark.at);
    const bool was_close = std::exchange(close, at - (mark.host + host_to_device) < close_behind);
    if (close) {
      const bool known = mark.after_hold_up && !was_close;
      sum += std::max(0.0, at - (known ? std::max(from, mark.held_since + host_to_device) : from));
    }
    from = at;
  };
  for (size_t i = 0; i < part.marks; ++i) look_at(marks_[part.first_mark + i]);
  look_at(part.end);
  return sum;
}

void LaunchMeter::end_step(Stream& stream) {
  if (!results_marked_) return;
  results_marked_ = false;
  const double host_results = clock_();
  const double host_to_device = stream.seconds_between(begin_, results_) - host_results;
  double sum = 0;
  double free_since = 0;  // seconds after begin_ on the device
  for (size_t i = 0; i < parts_used_; ++i) {
    const Part& part = parts_[i];
    const double begin = stream.seconds_between(begin_, part.begin);
    sum += std::max(0.0, begin - free_since);
    if (!part.graph) sum += part_seconds(stream, part, begin, host_to_device);
    free_since = stream.seconds_between(begin_, part.end.at);
  }
  host_bound_ = sum;
  step_seconds_ = host_results - step_begin_;
}

}  // namespace deltatune
