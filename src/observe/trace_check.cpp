// Every event of a trace file looked at. The bytes are anybody's.
#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "observe/run_record.h"
#include "observe/trace_file.h"

namespace deltatune {
namespace {

constexpr size_t most_problems = 20;
// Times are printed with three digits behind the point.
constexpr double rounding_us = 0.002;
// 30,000 years: sums of such times over all events are finite, and can be printed.
constexpr double longest_us = 1e18;

class Checker {
 public:
  explicit Checker(std::string_view where) : where_(where) {}

  void add(const json::Value& event) {
    look_at(seen_++, event);
    if (seen_ > static_cast<size_t>(most_trace_events))
      too_large(format("{} events", format_count(most_trace_events)));
    if (lanes_.size() > most_trace_lanes)
      too_large(format("{} lanes", format_count(static_cast<int64_t>(most_trace_lanes))));
  }

  TraceSummary finish() {
    for (auto& [key, lane] : lanes_) {
      if (lane.spans.empty()) continue;
      if (lane.name.empty()) problem(format("lane {}/{} has no thread_name", key.first, key.second));
      check_nesting(lane);
      out_.lanes.push_back(
          {key.first, key.second, lane.name, static_cast<int64_t>(lane.spans.size()), lane.busy});
    }
    if (out_.events == 0) problem("there is no event with a duration");
    return std::move(out_);
  }

 private:
  struct Span {
    double begin, end;
    size_t index;
  };
  struct Lane {
    std::string name;
    std::vector<Span> spans;
    double busy = 0;
  };

  [[noreturn]] void too_large(const std::string& what) const {
    throw Error(ErrorKind::data, "a trace of more than " + what, std::string(where_),
                "trace fewer steps: profile_active");
  }

  void problem(std::string text) {
    if (out_.problems.size() < most_problems) out_.problems.push_back(std::move(text));
  }

  void look_at(size_t index, const json::Value& e) {
    const auto bad = [&](const char* what) { problem(format("event {}: {}", index, what)); };
    if (!e.is_object()) return bad("is no object");
    const json::Value* phase = e.find("ph");
    const json::Value* name = e.find("name");
    const json::Value* process = e.find("pid");
    const json::Value* thread = e.find("tid");
    if (!phase || !phase->is_string() || (phase->as_string() != "X" && phase->as_string() != "M"))
      return bad("ph is neither X nor M");
    if (!name || !name->is_string() || name->as_string().empty()) return bad("has no name");
    if (!process || !process->is_integer() || !thread || !thread->is_integer())
      return bad("pid and tid are not both integers");
    if (const json::Value* arguments = e.find("args"); arguments && !arguments->is_object())
      return bad("args is no object");
    Lane& lane = lanes_[{process->as_integer(), thread->as_integer()}];
    if (phase->as_string() == "M") return take_name(lane, name->as_string(), e, index);
    const json::Value* begin = e.find("ts");
    const json::Value* duration = e.find("dur");
    if (!begin || !begin->is_number() || !duration || !duration->is_number())
      return bad("ts or dur is no number");
    const double at = begin->as_number();
    const double length = duration->as_number();
    // Written so that a NaN is none either.
    if (!(std::fabs(at) <= longest_us && length >= 0 && length <= longest_us))
      return bad("ts or dur is no time");
    out_.begin_us = out_.events == 0 ? at : std::min(out_.begin_us, at);
    out_.end_us = std::max(out_.events == 0 ? at : out_.end_us, at + length);
    ++out_.events;
    lane.spans.push_back({at, at + length, index});
  }

  void take_name(Lane& lane, const std::string& what, const json::Value& e, size_t index) {
    if (what != "thread_name") return;
    const json::Value* arguments = e.find("args");
    const json::Value* text = arguments ? arguments->find("name") : nullptr;
    if (!text || !text->is_string() || text->as_string().empty())
      return problem(format("event {}: a thread_name without args.name", index));
    lane.name = clean_text(text->as_string(), 100);
  }

  void check_nesting(Lane& lane) {
    std::stable_sort(lane.spans.begin(), lane.spans.end(), [](const Span& a, const Span& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    std::vector<Span> open;
    double until = lane.spans.front().begin;
    for (const Span& span : lane.spans) {
      while (!open.empty() && open.back().end <= span.begin + rounding_us) open.pop_back();
      if (!open.empty() && span.end > open.back().end + rounding_us) {
        problem(format("events {} and {} overlap in lane {}", open.back().index, span.index, lane.name));
      }
      open.push_back(span);
      lane.busy += std::max(0.0, span.end - std::max(until, span.begin));
      until = std::max(until, span.end);
    }
  }

  std::string_view where_;
  size_t seen_ = 0;
  std::map<std::pair<int64_t, int64_t>, Lane> lanes_;
  TraceSummary out_;
};

}  // namespace

TraceSummary check_trace(const json::ByteReader& read, std::string_view where) {
  Checker checker(where);
  size_t bytes = 0;
  const auto counted = [&](std::span<char> to) {
    const size_t got = read(to);
    bytes += got;
    if (bytes > most_trace_bytes) {
      throw Error(ErrorKind::data, "a trace of more than " + format_bytes(most_trace_bytes),
                  std::string(where), "trace fewer steps: profile_active");
    }
    return got;
  };
  if (!json::for_each_item(counted, "traceEvents", where,
                           [&](const json::Value& event) { checker.add(event); })) {
    throw Error(ErrorKind::data, "no trace: there is no list traceEvents", std::string(where),
                "a trace is a JSON object with traceEvents, as in trace/rank0000.json.gz of a profiled run");
  }
  return checker.finish();
}

TraceSummary check_trace(std::string_view text, std::string_view where) {
  const json::ByteReader read = [&](std::span<char> to) {
    const size_t count = std::min(to.size(), text.size());
    std::copy_n(text.begin(), count, to.begin());
    text.remove_prefix(count);
    return count;
  };
  return check_trace(read, where);
}

}  // namespace deltatune
