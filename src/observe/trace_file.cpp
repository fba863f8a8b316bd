// Writing a trace: events are gathered per lane, put in order, laid into lanes that nest, and printed.
#include "observe/trace_file.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "observe/busy.h"

namespace deltatune {
namespace {

struct Item {
  int64_t begin = 0, end = 0;
  const TraceEvent* event = nullptr;  ///< what it is or belongs to; nullptr: unknown
  const std::string* kernel = nullptr;
};

// Order of lanes on the screen.
int rank_of(std::string_view lane) {
  constexpr std::string_view order[] = {"host", "data", "compute", "gather", "reduce"};
  const auto* const at = std::find(std::begin(order), std::end(order), lane);
  return static_cast<int>(at - std::begin(order));
}

std::string lane_of(const TraceEvent* e) {
  if (!e) return "other";
  if (e->phase == TracePhase::comm) return std::string_view(e->name) == "gather" ? "gather" : "reduce";
  return e->stream[0] != '\0' ? e->stream : "compute";
}

class Writer {
 public:
  Writer(const ProfileInput& in, const TraceClock& clock) : in_(in) {
    for (const ProfileWindow& w : in.windows) zero_ = zero_ == 0 ? w.begin_ns : std::min(zero_, w.begin_ns);
    for (const ProfileWindow& w : in.windows) {
      std::vector<std::string> labels;
      for (const std::string& name : w.activity.names) labels.push_back(kernel_label(name));
      labels_.push_back(std::move(labels));
    }
    for (size_t i = 0; i < in.windows.size(); ++i) gather(in.windows[i], labels_[i]);
    out_ = "{\"displayTimeUnit\":\"ms\",\"otherData\":";
    json::Value other;
    other.set("device", in.device);
    other.set("rank", int64_t{in.rank});
    other.set("world", int64_t{in.world});
    other.set("host", clock.host);
    other.set("zero_ns", zero_);
    other.set("meeting_ns", clock.meeting_ns);
    out_ += json::dump(other) + ",\n\"traceEvents\":[\n";
    meta("process_name", 0, "name", json::quote(format("rank {}: {}", in.rank, in.device)));
    meta("process_sort_index", 0, "sort_index", std::to_string(in.rank));
  }

  std::string finish() {
    std::vector<std::pair<std::pair<int, std::string>, std::vector<Item>*>> order;
    for (auto& [name, items] : lanes_) order.push_back({{rank_of(name), name}, &items});
    std::sort(order.begin(), order.end());
    for (auto& [key, items] : order) write_lane(key.second, *items);
    return std::move(out_) + "\n]}\n";
  }

 private:
  void gather(const ProfileWindow& w, const std::vector<std::string>& labels) {
    const bool device_times = in_.gpu && in_.missing.empty();
    for (const TraceEvent& e : w.events) {
      if (e.end_ns == 0) continue;
      // On the CPU an op's time is the host's: where it ran inside of the call it stands in its own lane.
      if (e.kind == TraceKind::op && !device_times) {
        const bool apart = e.run_begin_ns != 0;
        lanes_[lane_of(&e)].push_back(
            {apart ? e.run_begin_ns : e.begin_ns, apart ? e.run_end_ns : e.end_ns, &e, {}});
        continue;
      }
      lanes_[e.kind == TraceKind::data ? "data" : "host"].push_back({e.begin_ns, e.end_ns, &e, {}});
    }
    for (const ActivityRecord& r : w.activity.records) {
      bool mine = false;
      const TraceEvent* e = claimant(w, in_.captured, r, mine);
      if (!mine || r.end_ns <= r.start_ns) continue;
      lanes_[lane_of(e)].push_back({r.start_ns, r.end_ns, e, &labels[r.name]});
    }
  }

  // First fit: each item goes to the first lane in which it follows or lies inside of what is there.
  void write_lane(const std::string& name, std::vector<Item>& items) {
    std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    std::vector<std::vector<int64_t>> open;  // per lane: ends of what is open, innermost last
    const int first = next_thread_;
    for (const Item& item : items) {
      size_t lane = 0;
      for (;; ++lane) {
        if (lane == open.size()) open.emplace_back();
        auto& stack = open[lane];
        while (!stack.empty() && stack.back() <= item.begin) stack.pop_back();
        if (stack.empty() || item.end <= stack.back()) break;
      }
      open[lane].push_back(item.end);
      write(item, first + static_cast<int>(lane));
    }
    for (size_t lane = 0; lane < open.size(); ++lane) {
      const int thread = first + static_cast<int>(lane);
      meta("thread_name", thread, "name", json::quote(lane == 0 ? name : format("{} {}", name, lane + 1)));
      meta("thread_sort_index", thread, "sort_index", std::to_string(thread));
    }
    next_thread_ = first + static_cast<int>(open.size());
  }

  void separate() {
    if (written_++ > 0) out_ += ",\n";
  }

  void meta(const char* what, int thread, const char* key, const std::string& value) {
    separate();
    out_ += format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"{}":{}}}}})", what, in_.rank, thread,
                   key, value);
  }

  void write(const Item& item, int thread) {
    if (written_ >= max_trace_events) return;
    separate();
    const TraceEvent* e = item.event;
    const char* kind = item.kernel ? "device" : e && e->kind == TraceKind::op ? "op" : "host";
    out_ += format(R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f})",
                   json::quote(e ? std::string_view(e->name) : std::string_view(*item.kernel)), kind,
                   in_.rank, thread, static_cast<double>(item.begin - zero_) * 1e-3,
                   static_cast<double>(item.end - item.begin) * 1e-3);
    if (e && e->kind == TraceKind::op) {
      out_ += format(R"(,"args":{{"phase":"{}")", name_of(e->phase));
      if (e->shape.rank > 0) out_ += format(R"(,"shape":"{}")", e->shape.text());
      if (*e->kernel != '\0') out_ += format(R"(,"kernel":"{}")", e->kernel);
      if (item.kernel) out_ += ",\"function\":" + json::quote(*item.kernel);
      if (e->bytes > 0) out_ += format(R"(,"bytes":{:.0f})", e->bytes);
      if (e->flops > 0) out_ += format(R"(,"flops":{:.0f})", e->flops);
      out_ += "}";
    }
    out_ += "}";
  }

  const ProfileInput& in_;
  std::vector<std::vector<std::string>> labels_;
  std::map<std::string, std::vector<Item>> lanes_;
  int64_t zero_ = 0;
  std::string out_;
  size_t written_ = 0;
  int next_thread_ = 1;
};

}  // namespace

std::string trace_text(const ProfileInput& input, const TraceClock& clock) {
  return Writer(input, clock).finish();
}

std::string merged_trace_text(const std::vector<std::string>& texts) {
  std::string out;
  std::string host;
  int64_t zero = 0;
  int64_t meeting = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    json::Value root = json::parse(texts[i], format("trace of rank {}", i));
    const json::Value& other = root.at("otherData");
    const int64_t own_zero = other.at("zero_ns").as_integer();
    const int64_t own_meeting = other.at("meeting_ns").as_integer();
    if (i == 0) {
      host = other.at("host").as_string();
      zero = own_zero;
      meeting = own_meeting;
      out = "{\"displayTimeUnit\":\"ms\",\"otherData\":" + json::dump(other) + ",\n\"traceEvents\":[\n";
    }
    const bool same = other.at("host").as_string() == host;
    const int64_t shift = same ? own_zero - zero : (own_zero - own_meeting) - (zero - meeting);
    bool first = i == 0;
    for (json::Value event : root.at("traceEvents").as_array()) {
      if (const json::Value* ts = event.find("ts"))
        event.set("ts",
                  json::Float{0, format("{:.3f}", ts->as_number() + static_cast<double>(shift) * 1e-3)});
      out += (first ? "" : ",\n") + json::dump(event);
      first = false;
    }
  }
  return out + "\n]}\n";
}

}  // namespace deltatune
