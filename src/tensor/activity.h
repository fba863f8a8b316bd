// What a device really did: one record for each kernel, copy and fill, with the device's own times, and the
// functions of a tracer that makes them.
//
// Records, not figures: what they add up to is observe/busy.h. A tracer watches the whole process and costs
// time while it runs, so what is measured otherwise is measured without one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltatune {

enum class ActivityKind : uint8_t { kernel, copy, fill };

struct ActivityRecord {
  int64_t start_ns = 0;  ///< on the tracer's clock
  int64_t end_ns = 0;
  uint32_t name = 0;         ///< index into ActivityTrace::names
  uint32_t correlation = 0;  ///< equal for what one call of the host queued: one kernel, or a whole graph
  uint32_t stream = 0;       ///< the driver's number
  ActivityKind kind = ActivityKind::kernel;
  uint64_t queued_by = 0;  ///< id that was open in the thread that queued it (ActivityTracer::push); 0: none
  uint64_t noted_by = 0;   ///< part of a graph: id that was open when it was captured; 0: none, or not known
};

struct ActivityTrace {
  std::vector<ActivityRecord> records;  ///< in no order
  std::vector<std::string> names;       ///< kernels as the linker spells them; "copy host to device"; "fill"
  int64_t dropped = 0;                  ///< records that are missing for lack of room or have no times
};

struct ActivityTracer {
  /// Records from now on. False, and why, where there is no such library, or another tracer is at work.
  bool (*start)(std::string& why) = nullptr;
  /// Now, on the clock of the records, in ns. Between start and stop only.
  int64_t (*now)() = nullptr;
  /// Waits for the device, ends the recording and hands over what was recorded.
  ActivityTrace (*stop)() = nullptr;

  /// As start(), and from now on push() and pop() say whose work is queued or captured, by any id above 0.
  /// Graphs that are captured after it are known for good, those from before are not.
  bool (*start_joined)(std::string& why) = nullptr;
  /// Of the calling thread; they nest. Without start_joined() they do nothing.
  void (*push)(uint64_t id) = nullptr;
  void (*pop)() = nullptr;
};

}  // namespace deltatune
