// Decompressing a trace within bounds, and its summary.
#include "cli/inspect_trace.h"

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "data/decompress.h"
#include "observe/trace_file.h"

namespace deltatune::cli {
namespace {

constexpr size_t most_bytes = size_t{512} << 20;
// A value takes some 50 bytes once it is read, however short it is written.
constexpr int64_t most_values = 16'000'000;

std::string read_trace(const std::string& path) {
  const MappedFile file{fs::path(path)};
  OnePiece bytes(file.text());
  Decompressor stream(bytes, path);
  std::string out;
  std::string piece(1 << 16, '\0');
  int64_t values = 0;
  while (const size_t count = stream.read(piece)) {
    out.append(piece.data(), count);
    values += std::count_if(piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(count),
                            [](char c) { return c == ',' || c == '[' || c == '{'; });
    if (out.size() <= most_bytes && values <= most_values) continue;
    throw Error(ErrorKind::data, "a trace of more than 512 MiB or 16 million values", path,
                "trace fewer steps: profile_active");
  }
  return out;
}

json::Value to_json(const TraceSummary& trace, const std::string& path) {
  json::Array lanes;
  for (const TraceLane& lane : trace.lanes) {
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
  out.set("problems", json::Array(trace.problems.begin(), trace.problems.end()));
  return out;
}

}  // namespace

int inspect_trace(const std::string& path, bool as_json) {
  const TraceSummary trace = check_trace(read_trace(path), path);
  const int code = trace.problems.empty() ? 0 : exit_code(ErrorKind::data);
  if (as_json) {
    std::printf("%s\n", json::dump(to_json(trace, path), 2).c_str());
    return code;
  }
  std::string text =
      format("path        {}\nkind        trace, {} events in {:.3f} ms\n\n{:>4} {:<20} {:>9} {:>12}\n", path,
             format_count(trace.events), (trace.end_us - trace.begin_us) * 1e-3, "rank", "lane", "events",
             "busy ms");
  for (const TraceLane& lane : trace.lanes)
    text += format("{:>4} {:<20} {:>9} {:>12.3f}\n", lane.process, json::quote(lane.name), lane.events,
                   lane.busy_us * 1e-3);
  text += format("\nproblems    {}\n", trace.problems.empty() ? "none" : "");
  for (const std::string& problem : trace.problems) text += problem + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  return code;
}

}  // namespace deltatune::cli
