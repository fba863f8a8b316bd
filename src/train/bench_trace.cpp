// A window over traced steps.
#include "train/bench_trace.h"

#include <algorithm>
#include <utility>

#include "base/counted.h"
#include "base/format.h"

namespace deltatune {
namespace {

constexpr size_t most_names = 30;
constexpr double noted_slowdown = 1.01;
constexpr double noted_idle_share = 0.01;

std::string neighbour(const std::string& label) {
  return label.empty() ? "the window's edge" : label;
}

double microseconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-3;
}

}  // namespace

TracedSteps trace_steps(const ActivityTracer& tracer, int64_t steps, double untraced_ms,
                        const std::function<void()>& step) {
  TracedSteps out;
  out.untraced_ms = untraced_ms;
  if (!tracer.start(out.why)) return out;
  int64_t begin = 0;
  int64_t end = 0;
  try {
    step();
    begin = tracer.now();
    for (int64_t i = 0; i < steps; ++i) step();
    end = tracer.now();
  } catch (...) {
    tracer.stop();
    throw;
  }
  const ActivityTrace trace = tracer.stop();
  if (trace.records.empty()) {
    out.why = format("the tracer recorded nothing ({} dropped)", trace.dropped);
    return out;
  }
  out.steps = steps;
  out.dropped = trace.dropped;
  out.busy = busy_report(trace, begin, end);
  return out;
}

json::Value to_json(const TracedSteps& traced) {
  json::Value out;
  out.set("steps", traced.steps);
  if (traced.steps == 0) {
    out.set("why", traced.why);
    return out;
  }
  const auto steps = static_cast<double>(traced.steps);
  out.set("step_ms", traced.step_ms());
  out.set("busy_ms", traced.busy_ms());
  out.set("idle_ms", traced.idle_ms());
  out.set("idle_share", traced.busy.idle_share());
  out.set("kernel_ms", traced.kernel_ms());
  out.set("untraced_step_ms", traced.untraced_ms);
  out.set("traced_over_untraced", traced.slowdown());
  out.set("records_per_step", static_cast<double>(traced.busy.records) / steps);
  out.set("host_calls_per_step", traced.host_calls());
  out.set("gaps_per_step", static_cast<double>(traced.busy.gaps) / steps);
  out.set("dropped", traced.dropped);
  json::Array gaps;
  for (const BusyGap& gap : traced.busy.largest) {
    json::Value item;
    item.set("us", microseconds(gap.length_ns));
    item.set("before", gap.before);
    item.set("after", gap.after);
    gaps.push_back(std::move(item));
  }
  out.set("largest_gaps", std::move(gaps));
  json::Array names;
  for (size_t i = 0; i < std::min(most_names, traced.busy.names.size()); ++i) {
    const BusyName& name = traced.busy.names[i];
    json::Value item;
    item.set("name", name.name);
    item.set("calls_per_step", static_cast<double>(name.calls) / steps);
    item.set("ms_per_step", static_cast<double>(name.total_ns) * 1e-6 / steps);
    names.push_back(std::move(item));
  }
  out.set("kernels", std::move(names));
  return out;
}

std::string to_text(const TracedSteps& traced) {
  if (traced.steps == 0) return "device activity not recorded: " + traced.why;
  std::string out = format("device busy {:.3f} ms of {:.3f} ms a step: idle {:.3f} %", traced.busy_ms(),
                           traced.step_ms(), 100 * traced.busy.idle_share());
  if (traced.slowdown() > noted_slowdown) {
    out += format(" (under the tracer, which made the step {:.1f} % slower)", 100 * (traced.slowdown() - 1));
  }
  if (traced.dropped > 0) out += "; missing: " + counted(traced.dropped, "record");
  if (traced.busy.largest.empty()) return out;
  // Where too much is idle, the reasons are wanted too.
  const size_t shown = traced.busy.idle_share() > noted_idle_share ? traced.busy.largest.size() : 1;
  for (size_t i = 0; i < shown; ++i) {
    const BusyGap& gap = traced.busy.largest[i];
    out += format("\n  {} {:.1f} us, between {} and {}", i == 0 ? "largest gap" : "then",
                  microseconds(gap.length_ns), neighbour(gap.before), neighbour(gap.after));
  }
  return out;
}

}  // namespace deltatune
