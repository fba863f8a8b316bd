// Decompressing a trace piece by piece, and its summary: the lanes that were busy longest.
#include "cli/inspect_trace.h"

#include <algorithm>
#include <cstdio>
#include <span>

#include "base/counted.h"
#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "data/decompress.h"
#include "observe/trace_file.h"

namespace deltatune::cli {
namespace {

constexpr size_t shown_lanes = 20;
// What a program reads may be longer than what a person does.
constexpr size_t listed_lanes = 1000;

TraceSummary summary_of(const std::string& path) {
  const MappedFile file{fs::path(path)};
  OnePiece bytes(file.text());
  Decompressor stream(bytes, path);
  TraceSummary out = check_trace([&](std::span<char> to) { return stream.read(to); }, path);
  std::stable_sort(out.lanes.begin(), out.lanes.end(),
                   [](const TraceLane& a, const TraceLane& b) { return a.busy_us > b.busy_us; });
  return out;
}

// How many lanes there are above `most`.
int64_t lanes_above(const TraceSummary& trace, size_t most) {
  return static_cast<int64_t>(trace.lanes.size() - std::min(trace.lanes.size(), most));
}

json::Value to_json(const TraceSummary& trace, const std::string& path) {
  json::Array lanes;
  for (const TraceLane& lane : trace.lanes) {
    if (lanes.size() == listed_lanes) break;
    lanes.push_back(json::Object{{"rank", lane.process},
                                 {"lane", lane.name},
                                 {"events", lane.events},
                                 {"busy_ms", lane.busy_us * 1e-3}});
  }
  json::Value out;
  out.set("path", path);
  out.set("kind", "trace");
  out.set("events", trace.events);
  out.set("span_ms", (trace.end_us - trace.begin_us) * 1e-3);
  out.set("lanes", std::move(lanes));
  out.set("more_lanes", lanes_above(trace, listed_lanes));
  out.set("problems", json::Array(trace.problems.begin(), trace.problems.end()));
  return out;
}

}  // namespace

int inspect_trace(const std::string& path, bool as_json) {
  const TraceSummary trace = summary_of(path);
  const int code = trace.problems.empty() ? 0 : exit_code(ErrorKind::data);
  if (as_json) {
    std::printf("%s\n", json::dump(to_json(trace, path), 2).c_str());
    return code;
  }
  std::string text =
      format("path        {}\nkind        trace, {} in {:.3f} ms\n\n{:>4} {:<20} {:>9} {:>12}\n", path,
             counted(trace.events, "event"), (trace.end_us - trace.begin_us) * 1e-3, "rank", "lane", "events",
             "busy ms");
  for (size_t i = 0; i < std::min(trace.lanes.size(), shown_lanes); ++i) {
    const TraceLane& lane = trace.lanes[i];
    text += format("{:>4} {:<20} {:>9} {:>12.3f}\n", lane.process, json::quote(lane.name), lane.events,
                   lane.busy_us * 1e-3);
  }
  if (const int64_t more = lanes_above(trace, shown_lanes); more > 0)
    text += format("... and {} more\n", format_count(more));
  text += format("\nproblems    {}\n", trace.problems.empty() ? "none" : "");
  for (const std::string& problem : trace.problems) text += problem + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  return code;
}

}  // namespace deltatune::cli
