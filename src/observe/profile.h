// A profile: what the steps of a window spent their time on, op by op, from the events of base/trace.h and,
// on a GPU, the records of a tracer of device activity.
//
// Who claims a record: the op that was open when it was captured into a graph, else the op that was open when
// it was queued. An op counts in the window it was queued in, wherever its work ended. Idle time is that of
// the window itself: copies, fills and kernels of all streams count as work. Pure: no device, no clock. All
// figures are per step. The file's form: docs/profile.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/trace.h"
#include "tensor/activity.h"

namespace deltatune {

/// Steps that followed each other while events and activity were recorded. All times are on one clock.
struct ProfileWindow {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t steps = 0;
  std::vector<TraceEvent> events;  ///< in the order of their ids, without holes
  int64_t dropped = 0;             ///< events that found no room
  ActivityTrace activity;          ///< empty where there is none; may reach beyond the window
  double marked_s = 0;             ///< between marks on the device's clock behind both edges; 0: none
};

struct ProfileInput {
  std::string device;  ///< title for people
  int rank = 0;
  int world = 1;
  bool gpu = false;
  std::string missing;     ///< why there are no device times of a GPU; empty: they are there
  double gemm_tflops = 0;  ///< of the device card; 0: no card
  double copy_gb_s = 0;    ///< likewise
  double untraced_ms = 0;  ///< a step without tracing, median; 0: not measured
  int64_t untraced = 0;    ///< of how many
  std::vector<ProfileWindow> windows;
  std::vector<TraceEvent> captured;  ///< TraceBuffer::captured_events()
};

/// Calls of an op that are alike, per step.
struct ProfileOp {
  std::string op, shape, phase, kernel;
  bool slow = false;
  double calls = 0;
  double host_us = 0;    ///< of a call that the host made itself; ops inside of graphs have none
  double device_ms = 0;  ///< on the CPU: the time of the op
  double bytes = 0, flops = 0;
  double queued = 0;  ///< of calls: those that the host made itself

  double device_us() const { return calls > 0 ? device_ms * 1e3 / calls : 0; }
  double gb_s() const { return device_ms > 0 ? bytes / device_ms * 1e-6 : 0; }
  double tflop_s() const { return device_ms > 0 ? flops / device_ms * 1e-9 : 0; }
  /// The least time that the card's rates allow over the time it took; nothing without a card or a time.
  std::optional<double> roofline(double gemm_tflops, double copy_gb_s) const;
};

struct ProfileGap {
  std::string after, before;  ///< kernel that ended, kernel that began; empty: the window's edge
  double us = 0;
  double at_us = 0;  ///< from the window's begin
  std::string host;  ///< what the host did for most of it
};

struct ProfileKernel {
  std::string name;
  double calls = 0, ms = 0;
};

struct Profile {
  std::string device;
  int rank = 0, world = 1;
  bool gpu = false;
  std::string missing;
  int64_t steps = 0;
  double step_ms = 0, busy_ms = 0, idle_ms = 0;
  double marked_ms = 0;  ///< of a step, by marks on the device's clock; 0: not measured
  /// The same by the tracer: between the ends of what was queued before and in the window.
  double span_ms = 0;
  double launches = 0, kernels = 0;
  bool graph = false;
  std::optional<double> off_ms;  ///< a step without tracing, median of off_steps
  int64_t off_steps = 0;
  int64_t dropped = 0;  ///< events and records that are missing
  double gemm_tflops = 0, copy_gb_s = 0;
  std::vector<ProfileOp> ops;  ///< most device time first
  std::vector<ProfileKernel> kernel_names;
  std::vector<ProfileGap> gaps;
  double unnamed_ms = 0;  ///< of the device, that no op claims
  double gather_ms = 0, reduce_ms = 0, exposed_ms = 0;
  double data_wait_ms = 0;
  double host_wait_ms = 0;   ///< the host waited for the device
  double host_bound_ms = 0;  ///< the device was idle while the host worked

  double named_ms() const;
  /// Of the device time that was queued in the window; 1 where there is none.
  double named_share() const;
  /// seam: profile.json.
  json::Value to_json() const;
  /// Throws Error{data} for another form.
  static Profile from_json(const json::Value&);
};

Profile make_profile(const ProfileInput& input);

/// Which op of a window's events, or of `captured`, claims a record; nullptr: none. `mine`: whether the
/// record was queued in the window at all.
const TraceEvent* claimant(const ProfileWindow& window, const std::vector<TraceEvent>& captured,
                           const ActivityRecord& record, bool& mine);

}  // namespace deltatune
