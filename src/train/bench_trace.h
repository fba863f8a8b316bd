// bench step's look at the device: a few steps, run as the timed ones are, under a tracer of device activity.
//
// The window begins when the host has one traced step behind it (which also pays for the tracer's start) and
// ends as many steps later, so it has the steady state's gaps between steps in it as often as steps. The
// times of the steps themselves are measured without a tracer, elsewhere; the two are compared, because a
// tracer costs time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/json.h"
#include "observe/busy.h"
#include "tensor/activity.h"

namespace deltatune {

struct TracedSteps {
  int64_t steps = 0;       ///< 0: not traced
  std::string why;         ///< why not
  double untraced_ms = 0;  ///< a step without the tracer
  int64_t dropped = 0;     ///< records that are missing: idle time is overstated
  BusyReport busy;         ///< of all the steps

  double step_ms() const { return per_step(busy.span_ns); }
  double busy_ms() const { return per_step(busy.busy_ns); }
  double idle_ms() const { return per_step(busy.idle_ns()); }
  /// Sum over the kernels of a step, however they overlap.
  double kernel_ms() const { return per_step(busy.kernel_ns); }
  /// Calls of the host that queued work for the device; a graph is one.
  double host_calls() const {
    return steps > 0 ? static_cast<double>(busy.host_calls) / static_cast<double>(steps) : 0;
  }
  /// 1.02: the tracer made the steps 2 % slower.
  double slowdown() const { return untraced_ms > 0 ? step_ms() / untraced_ms : 0; }

 private:
  double per_step(int64_t ns) const {
    return steps > 0 ? static_cast<double>(ns) * 1e-6 / static_cast<double>(steps) : 0;
  }
};

/// Runs `step` 1 + steps times under the tracer. Each call of `step` queues a step and returns when the host
/// could begin the next. untraced_ms: from step to step, without a tracer.
TracedSteps trace_steps(const ActivityTracer& tracer, int64_t steps, double untraced_ms,
                        const std::function<void()>& step);

/// With the largest gaps and the 30 kernels that take the most time.
json::Value to_json(const TracedSteps& traced);
/// One line, and one per gap that matters; no line end after the last.
std::string to_text(const TracedSteps& traced);

}  // namespace deltatune
