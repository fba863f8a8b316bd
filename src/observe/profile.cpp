// Events and records to ops; intervals to busy time, gaps and what the host did in them.
#include "observe/profile.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "observe/busy.h"

namespace deltatune {
namespace {

constexpr size_t most_gaps = 10;
constexpr size_t most_kernel_names = 40;

struct Interval {
  int64_t begin, end;
};

double milliseconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-6;
}

// Disjoint, in order of time.
std::vector<Interval> merged(std::vector<Interval> all) {
  std::sort(all.begin(), all.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> out;
  for (const Interval& x : all) {
    if (x.end <= x.begin) continue;
    if (!out.empty() && x.begin <= out.back().end) {
      out.back().end = std::max(out.back().end, x.end);
    } else {
      out.push_back(x);
    }
  }
  return out;
}

int64_t length(const std::vector<Interval>& list) {
  int64_t sum = 0;
  for (const Interval& x : list) sum += x.end - x.begin;
  return sum;
}

// Of two lists of disjoint intervals.
int64_t overlap(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  int64_t sum = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum += std::max<int64_t>(0, std::min(a[i].end, b[j].end) - std::max(a[i].begin, b[j].begin));
    (a[i].end < b[j].end ? i : j) += 1;
  }
  return sum;
}

Interval time_of(const TraceEvent& e) {
  return e.run_begin_ns != 0 ? Interval{e.run_begin_ns, e.run_end_ns} : Interval{e.begin_ns, e.end_ns};
}

bool is(const char* a, const char* b) {
  return std::string_view(a) == b;
}

// What the host did, by its innermost scopes: pieces in order of time.
class HostTime {
 public:
  explicit HostTime(const std::vector<TraceEvent>& events) {
    for (const TraceEvent& e : events) {
      close_until(e.begin_ns);
      add(e.begin_ns, stack_.empty() ? nullptr : stack_.back());
      stack_.push_back(&e);
    }
    close_until(INT64_MAX);
  }

  // Name of what took most of [begin, end); `working` gets the time in which it did not wait.
  std::string during(int64_t begin, int64_t end, int64_t& working) const {
    std::map<std::string, int64_t> by_name;
    int64_t waited = 0;
    int64_t known = 0;
    auto at = std::upper_bound(pieces_.begin(), pieces_.end(), begin,
                               [](int64_t time, const Piece& p) { return time < p.end; });
    for (; at != pieces_.end() && at->begin < end; ++at) {
      const int64_t time = std::min(end, at->end) - std::max(begin, at->begin);
      known += time;
      by_name[describe(at->event)] += time;
      if (at->event && (at->event->kind == TraceKind::wait || at->event->kind == TraceKind::data))
        waited += time;
    }
    if (end - begin > known) by_name[describe(nullptr)] += end - begin - known;
    working = end - begin - waited;
    const auto most = std::max_element(by_name.begin(), by_name.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    return most->first;
  }

 private:
  struct Piece {
    int64_t begin, end;
    const TraceEvent* event;
  };
  static std::string describe(const TraceEvent* e) {
    if (!e) return "between steps";
    switch (e->kind) {
      case TraceKind::op:
        return std::string("queueing ") + e->name;
      case TraceKind::launch:
        return std::string("launching the graph of ") + e->name;
      case TraceKind::wait:
      case TraceKind::data:
        return e->name;
      default:
        return std::string("in ") + e->name;
    }
  }
  void add(int64_t until, const TraceEvent* event) {
    if (until > at_ && at_ > 0) pieces_.push_back({at_, until, event});
    at_ = until;
  }
  void close_until(int64_t time) {
    while (!stack_.empty() && stack_.back()->end_ns <= time) {
      add(std::max(at_, stack_.back()->end_ns), stack_.back());
      stack_.pop_back();
    }
  }
  int64_t at_ = 0;
  std::vector<const TraceEvent*> stack_;
  std::vector<Piece> pieces_;
};

class Builder {
 public:
  explicit Builder(const ProfileInput& in) : in_(in) {}

  Profile build() {
    out_.device = in_.device;
    out_.rank = in_.rank;
    out_.world = in_.world;
    out_.gpu = in_.gpu;
    out_.missing = in_.missing;
    out_.gemm_tflops = in_.gemm_tflops;
    out_.copy_gb_s = in_.copy_gb_s;
    if (in_.untraced_ms > 0) out_.off_ms = in_.untraced_ms;
    out_.off_steps = in_.untraced;
    for (const ProfileWindow& window : in_.windows) add(window);
    finish();
    return std::move(out_);
  }

 private:
  using Key = std::tuple<std::string, std::string, std::string, std::string, bool>;

  ProfileOp& op_of(const TraceEvent& e) {
    const Key key{e.name, e.shape.text(), name_of(e.phase), e.kernel, e.slow};
    ProfileOp& op = ops_[key];
    std::tie(op.op, op.shape, op.phase, op.kernel, op.slow) = key;
    return op;
  }

  void count_call(ProfileOp& op, const TraceEvent& e) {
    op.calls += 1;
    op.bytes += e.bytes;
    op.flops += e.flops;
  }

  void add(const ProfileWindow& w) {
    out_.steps += w.steps;
    out_.dropped += w.dropped + w.activity.dropped;
    out_.marked_ms += w.marked_s * 1e3;
    out_.step_ms += milliseconds(w.end_ns - w.begin_ns);
    for (const TraceEvent& e : w.events) {
      const double ms = milliseconds(e.end_ns - e.begin_ns);
      if (e.kind == TraceKind::data) out_.data_wait_ms += ms;
      if (e.kind == TraceKind::wait) out_.host_wait_ms += ms;
      if (e.kind == TraceKind::launch) out_.graph = true;
      if (e.kind != TraceKind::op) continue;
      ProfileOp& op = op_of(e);
      count_call(op, e);
      op.queued += 1;
      op.host_us += ms * 1e3;
    }
    std::vector<Interval> compute, gather, reduce;
    const auto place = [&](const TraceEvent* e, Interval time) {
      const bool comm = e && e->phase == TracePhase::comm;
      (!comm ? compute : is(e->name, "gather") ? gather : reduce).push_back(time);
    };
    if (!in_.gpu) {
      add_cpu(w, place);
    } else {
      add_records(w, place);
    }
    out_.gather_ms += milliseconds(length(merged(gather)));
    out_.reduce_ms += milliseconds(length(merged(reduce)));
    std::vector<Interval> comm = gather;
    comm.insert(comm.end(), reduce.begin(), reduce.end());
    comm = merged(std::move(comm));
    out_.exposed_ms += milliseconds(length(comm) - overlap(comm, merged(std::move(compute))));
  }

  template <class Place>
  void add_cpu(const ProfileWindow& w, const Place& place) {
    std::vector<Interval> all;
    for (const TraceEvent& e : w.events) {
      if (e.kind != TraceKind::op) continue;
      const Interval time = time_of(e);
      op_of(e).device_ms += milliseconds(time.end - time.begin);
      all.push_back({std::max(time.begin, w.begin_ns), std::min(time.end, w.end_ns)});
      place(&e, time);
      out_.launches += 1;
      out_.kernels += 1;
    }
    out_.busy_ms += milliseconds(length(merged(std::move(all))));
  }

  template <class Place>
  void add_records(const ProfileWindow& w, const Place& place) {
    std::set<std::pair<uint32_t, uint64_t>> replayed;
    std::set<uint32_t> calls;
    int64_t begin = w.begin_ns;
    int64_t end = w.begin_ns;
    for (const ActivityRecord& r : w.activity.records) {
      if (r.end_ns <= r.start_ns) continue;
      bool mine = false;
      const TraceEvent* e = claimant(w, in_.captured, r, mine);
      if (!mine) {
        if (r.start_ns < w.end_ns) begin = std::max(begin, r.end_ns);
        continue;
      }
      end = std::max(end, r.end_ns);
      calls.insert(r.correlation);
      if (r.kind == ActivityKind::kernel) out_.kernels += 1;
      const double ms = milliseconds(r.end_ns - r.start_ns);
      place(e, {r.start_ns, r.end_ns});
      if (!e) {
        out_.unnamed_ms += ms;
        continue;
      }
      ProfileOp& op = op_of(*e);
      op.device_ms += ms;
      if (r.noted_by != 0 && replayed.emplace(r.correlation, r.noted_by).second) count_call(op, *e);
    }
    out_.launches += static_cast<double>(calls.size());
    out_.span_ms += milliseconds(std::max<int64_t>(0, end - begin));
    if (w.activity.records.empty()) return;
    add_idle(w);
  }

  void add_idle(const ProfileWindow& w) {
    const BusyReport busy = busy_report(w.activity, w.begin_ns, w.end_ns, SIZE_MAX);
    out_.busy_ms += milliseconds(busy.busy_ns);
    for (const BusyName& name : busy.names) {
      ProfileKernel& kernel = kernels_[name.name];
      kernel.name = name.name;
      kernel.calls += static_cast<double>(name.calls);
      kernel.ms += milliseconds(name.total_ns);
    }
    const HostTime host(w.events);
    for (const BusyGap& gap : busy.largest) {
      int64_t working = 0;
      const std::string what = host.during(gap.start_ns, gap.start_ns + gap.length_ns, working);
      out_.host_bound_ms += milliseconds(working);
      out_.gaps.push_back({gap.before, gap.after, static_cast<double>(gap.length_ns) * 1e-3,
                           static_cast<double>(gap.start_ns - w.begin_ns) * 1e-3, what});
    }
  }

  void finish() {
    const double n = static_cast<double>(std::max<int64_t>(1, out_.steps));
    for (double* x : {&out_.step_ms, &out_.busy_ms, &out_.marked_ms, &out_.span_ms, &out_.launches,
                      &out_.kernels, &out_.unnamed_ms, &out_.gather_ms, &out_.reduce_ms, &out_.exposed_ms,
                      &out_.data_wait_ms, &out_.host_wait_ms, &out_.host_bound_ms}) {
      *x /= n;
    }
    const bool timed = !in_.gpu || in_.missing.empty();
    out_.idle_ms = timed ? std::max(0.0, out_.step_ms - out_.busy_ms) : 0;
    for (auto& [key, op] : ops_) {
      if (op.queued > 0) op.host_us /= op.queued;
      for (double* x : {&op.calls, &op.queued, &op.device_ms, &op.bytes, &op.flops}) *x /= n;
      out_.ops.push_back(std::move(op));
    }
    std::stable_sort(out_.ops.begin(), out_.ops.end(), [](const ProfileOp& a, const ProfileOp& b) {
      return std::pair(a.device_ms, a.queued * a.host_us) > std::pair(b.device_ms, b.queued * b.host_us);
    });
    for (auto& [name, kernel] : kernels_) {
      kernel.calls /= n;
      kernel.ms /= n;
      out_.kernel_names.push_back(std::move(kernel));
    }
    std::stable_sort(out_.kernel_names.begin(), out_.kernel_names.end(),
                     [](const ProfileKernel& a, const ProfileKernel& b) { return a.ms > b.ms; });
    if (out_.kernel_names.size() > most_kernel_names) out_.kernel_names.resize(most_kernel_names);
    std::stable_sort(out_.gaps.begin(), out_.gaps.end(),
                     [](const ProfileGap& a, const ProfileGap& b) { return a.us > b.us; });
    if (out_.gaps.size() > most_gaps) out_.gaps.resize(most_gaps);
  }

  const ProfileInput& in_;
  Profile out_;
  std::map<Key, ProfileOp> ops_;
  std::map<std::string, ProfileKernel> kernels_;
};

}  // namespace

std::optional<double> ProfileOp::roofline(double gemm_tflops, double copy_gb_s) const {
  if (gemm_tflops <= 0 || copy_gb_s <= 0 || device_ms <= 0 || (bytes <= 0 && flops <= 0)) return std::nullopt;
  return std::max(flops / (gemm_tflops * 1e9), bytes / (copy_gb_s * 1e6)) / device_ms;
}

double Profile::named_ms() const {
  double sum = 0;
  for (const ProfileOp& op : ops) sum += op.device_ms;
  return sum;
}

double Profile::named_share() const {
  const double named = named_ms();
  return named + unnamed_ms > 0 ? named / (named + unnamed_ms) : 1;
}

const TraceEvent* claimant(const ProfileWindow& window, const std::vector<TraceEvent>& captured,
                           const ActivityRecord& record, bool& mine) {
  const uint64_t first = window.events.empty() ? 0 : window.events.front().id;
  const bool queued = record.queued_by >= first && record.queued_by - first < window.events.size();
  // What nobody queued (a library's own thread) is the window's where it ran in it.
  mine =
      record.queued_by != 0 ? queued : record.start_ns >= window.begin_ns && record.start_ns < window.end_ns;
  if (!queued) return nullptr;
  if (record.noted_by != 0) {
    if ((record.noted_by & TraceBuffer::captured) == 0) return nullptr;
    const uint64_t at = (record.noted_by & ~TraceBuffer::captured) - 1;
    if (at >= captured.size()) return nullptr;
    const TraceEvent& noted = captured[at];
    return noted.kind == TraceKind::op ? &noted : nullptr;
  }
  const TraceEvent& event = window.events[record.queued_by - first];
  return event.kind == TraceKind::op ? &event : nullptr;
}

Profile make_profile(const ProfileInput& input) {
  return Builder(input).build();
}

}  // namespace deltatune
