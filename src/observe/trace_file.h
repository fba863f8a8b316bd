// trace/rank0000.json.gz: the traced steps as events for Perfetto and chrome://tracing, and a check of such
// files.
//
// Form: the Trace Event Format's JSON object
// (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): complete events ("X",
// microseconds) and metadata ("M"); a rank is a process, a lane a thread. Lanes: host and data of the host;
// compute (update, copies), gather and reduce of the device. What would overlap without nesting in a lane
// gets a lane beside it. otherData says when time 0 was, so that files of ranks can be laid beside each
// other. Bounded: at most max_trace_events.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json_stream.h"
#include "observe/profile.h"

namespace deltatune {

inline constexpr size_t max_trace_events = 400000;

/// What tells one rank's clock from another's.
struct TraceClock {
  std::string host;        ///< ranks of one host have one clock
  int64_t meeting_ns = 0;  ///< when all ranks met, on this rank's clock
};

/// The text of the file, not compressed; windows behind each other as they were.
std::string trace_text(const ProfileInput& input, const TraceClock& clock);
/// The files of all ranks in one, on the clock of the first. Throws Error{data} for a text of another form.
std::string merged_trace_text(const std::vector<std::string>& texts);

struct TraceLane {
  int64_t process = 0, thread = 0;
  std::string name;
  int64_t events = 0;
  double busy_us = 0;  ///< with at least one event
};

/// What is in a trace file, and what is wrong with it.
struct TraceSummary {
  int64_t events = 0;  ///< with a duration
  double begin_us = 0, end_us = 0;
  std::vector<TraceLane> lanes;       ///< in order of process and thread
  std::vector<std::string> problems;  ///< at most 20; empty: the file is sound
};

/// Looks at every event: known phase, name, process and thread, times up to 1e18 us, durations that are not
/// negative, lanes with names, and events of a lane that either follow or contain each other. Throws
/// Error{data} where the text is no JSON object with a list of traceEvents, or above the bounds below.
TraceSummary check_trace(std::string_view text, std::string_view where);
/// The same of a file that is read in pieces: memory is that of the events' times.
TraceSummary check_trace(const json::ByteReader& read, std::string_view where);
inline constexpr int64_t most_trace_events =
    4'000'000;  ///< items of the list, of ten ranks with all they may write
inline constexpr size_t most_trace_lanes = 1'000'000;
inline constexpr size_t most_trace_bytes = size_t{2} << 30;  ///< not compressed

}  // namespace deltatune
