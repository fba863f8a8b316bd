// Rows grouped, sorted, printed.
#include "observe/profile_table.h"

#include <algorithm>
#include <functional>
#include <map>

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"

namespace deltatune {
namespace {

struct Row {
  std::string name, kernel, phase;
  double calls = 0, queued = 0, host_ms = 0, device_ms = 0, bytes = 0, flops = 0, least_ms = 0;
  bool slow = false;
  double share = 0, host_share = 0;

  double average_us() const { return calls > 0 ? device_ms * 1e3 / calls : 0; }
  double host_us() const { return queued > 0 ? host_ms * 1e3 / queued : 0; }
  double gb_s() const { return device_ms > 0 ? bytes / device_ms * 1e-6 : 0; }
  double tflop_s() const { return device_ms > 0 ? flops / device_ms * 1e-9 : 0; }
  double roofline() const { return device_ms > 0 ? least_ms / device_ms : 0; }
};

std::string group_name(const ProfileOp& op, const std::string& group) {
  if (group == "phase") return op.phase;
  if (group == "kernel") return op.kernel.empty() ? op.op : op.op + "." + op.kernel;
  if (group == "op_shape") return op.shape.empty() ? op.op : op.op + " " + op.shape;
  return op.op;
}

// "a, b" of what differs inside of a group.
void join(std::string& list, const std::string& item) {
  if (item.empty() || (", " + list + ", ").find(", " + item + ", ") != std::string::npos) return;
  list += (list.empty() ? "" : ", ") + item;
}

std::vector<Row> rows_of(const Profile& p, const std::string& group) {
  std::map<std::string, Row> by_name;
  double host = 0;
  for (const ProfileOp& op : p.ops) {
    Row& row = by_name[group_name(op, group)];
    row.name = group_name(op, group);
    join(row.kernel, op.kernel);
    join(row.phase, op.phase);
    row.calls += op.calls;
    row.queued += op.queued;
    row.host_ms += op.queued * op.host_us * 1e-3;
    row.device_ms += op.device_ms;
    row.bytes += op.bytes;
    row.flops += op.flops;
    row.slow = row.slow || op.slow;
    if (const auto share = op.roofline(p.gemm_tflops, p.copy_gb_s)) row.least_ms += *share * op.device_ms;
    host += op.queued * op.host_us * 1e-3;
  }
  const double device = p.named_ms() + p.unnamed_ms;
  std::vector<Row> out;
  for (auto& [name, row] : by_name) {
    row.share = device > 0 ? row.device_ms / device : 0;
    row.host_share = host > 0 ? row.host_ms / host : 0;
    out.push_back(std::move(row));
  }
  return out;
}

using Number = double (*)(const Row&);
struct Column {
  const char* name;
  Number value;  ///< nullptr: a text
};
constexpr Column columns[] = {
    {"op", nullptr},
    {"kernel", nullptr},
    {"phase", nullptr},
    {"calls", [](const Row& r) { return r.calls; }},
    {"avg", [](const Row& r) { return r.average_us(); }},
    {"total", [](const Row& r) { return r.device_ms; }},
    {"share", [](const Row& r) { return r.share; }},
    {"bytes", [](const Row& r) { return r.bytes; }},
    {"gb_s", [](const Row& r) { return r.gb_s(); }},
    {"tflop_s", [](const Row& r) { return r.tflop_s(); }},
    {"roofline", [](const Row& r) { return r.roofline(); }},
    {"host_avg", [](const Row& r) { return r.host_us(); }},
    {"host_total", [](const Row& r) { return r.host_ms; }},
};

void sort_rows(std::vector<Row>& rows, const std::string& by) {
  if (by == "op" || by == "kernel" || by == "phase") {
    const auto text = [&](const Row& r) -> const std::string& {
      return by == "op" ? r.name : by == "kernel" ? r.kernel : r.phase;
    };
    std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) { return text(a) < text(b); });
    return;
  }
  for (const Column& column : columns) {
    if (column.name != by) continue;
    const Number value = column.value;
    std::stable_sort(rows.begin(), rows.end(),
                     [&](const Row& a, const Row& b) { return value(a) > value(b); });
    return;
  }
  DELTATUNE_ASSERT(false);
}

std::string cell(double value, bool known, int digits) {
  if (!known || value <= 0) return "-";
  return digits == 1 ? format("{:.1f}", value) : format("{:.3f}", value);
}

// A figure of a step with its noun.
std::string rate(double figure, const char* one, const char* many) {
  const std::string text = format("{:.0f}", figure);
  return text + " " + (text == "1" ? one : many);
}

size_t shown_rows(const std::vector<Row>& rows, int64_t top) {
  return top > 0 ? std::min(rows.size(), static_cast<size_t>(top)) : rows.size();
}

size_t name_width(const std::vector<Row>& rows, size_t shown) {
  size_t width = 12;
  for (size_t i = 0; i < shown; ++i) width = std::max(width, rows[i].name.size());
  return std::min<size_t>(width, 60);
}

std::string device_table(const Profile& p, std::vector<Row> rows, const ProfileTable& options) {
  sort_rows(rows, options.sort.starts_with("host") ? "total" : options.sort);
  const size_t shown = shown_rows(rows, options.top);
  const size_t width = name_width(rows, shown);
  const bool card = p.gemm_tflops > 0;
  std::string out =
      format("{:<{}} {:>8} {:>11} {:>11} {:>7} {:>10} {:>9} {:>9} {:>9}  {}\n", options.group, width, "calls",
             "avg us", "total ms", "share", "GB", "GB/s", "TFLOP/s", "roofline", "kernel");
  Row rest;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& r = rows[i];
    if (i >= shown) {
      rest.calls += r.calls;
      rest.device_ms += r.device_ms;
      rest.share += r.share;
      continue;
    }
    out += format("{:<{}} {:>8.6g} {:>11.1f} {:>11.3f} {:>6.1f}% {:>10} {:>9} {:>9} {:>9}  {}{}\n", r.name,
                  width, r.calls, r.average_us(), r.device_ms, 100 * r.share, cell(r.bytes * 1e-9, true, 3),
                  cell(r.gb_s(), true, 1), cell(r.tflop_s(), r.tflop_s() >= 0.05, 1),
                  card && r.least_ms > 0 ? format("{:.0f}%", 100 * r.roofline()) : "-", r.kernel,
                  r.slow ? " (slow)" : "");
  }
  if (shown < rows.size()) {
    out += format("{:<{}} {:>8.6g} {:>11} {:>11.3f} {:>6.1f}%\n", format("{} more", rows.size() - shown),
                  width, rest.calls, "", rest.device_ms, 100 * rest.share);
  }
  return out;
}

std::string host_table(std::vector<Row> rows, const ProfileTable& options) {
  std::erase_if(rows, [](const Row& r) { return r.queued <= 0; });
  if (rows.empty()) return "";
  const bool own = options.sort.starts_with("host") || options.sort == "op" || options.sort == "kernel" ||
                   options.sort == "phase";
  sort_rows(rows, own ? options.sort : "host_total");
  const size_t shown = shown_rows(rows, options.top);
  const size_t width = name_width(rows, shown);
  std::string out = format("{:<{}} {:>8} {:>11} {:>11} {:>7}\n", options.group, width, "calls", "avg us",
                           "total ms", "share");
  for (size_t i = 0; i < shown; ++i) {
    const Row& r = rows[i];
    out += format("{:<{}} {:>8.6g} {:>11.1f} {:>11.3f} {:>6.1f}%\n", r.name, width, r.queued, r.host_us(),
                  r.host_ms, 100 * r.host_share);
  }
  if (shown < rows.size()) out += format("{} more\n", rows.size() - shown);
  return out;
}

std::string label(const std::string& kernel) {
  const std::string text = kernel.empty() ? "the window's edge" : kernel;
  return text.size() <= 48 ? text : text.substr(0, 45) + "...";
}

std::string idle_lines(const Profile& p) {
  std::string out = format("device busy {:.3f} ms of {:.3f} ms a step, idle {:.3f} ms ({:.1f} %)", p.busy_ms,
                           p.step_ms, p.idle_ms, p.step_ms > 0 ? 100 * p.idle_ms / p.step_ms : 0);
  if (p.host_bound_ms > 0) out += format("; {:.3f} ms of it while the host worked", p.host_bound_ms);
  out += "\n";
  for (size_t i = 0; i < std::min<size_t>(5, p.gaps.size()); ++i) {
    const ProfileGap& gap = p.gaps[i];
    out += format("  {} {:.1f} us, after {}, before {}: {}\n", i == 0 ? "largest gap" : "       then", gap.us,
                  label(gap.after), label(gap.before), gap.host);
  }
  return out;
}

std::string totals(const Profile& p) {
  std::string out;
  if (p.gpu && !p.missing.empty()) {
    out += format("no device times: {}\n", p.missing);
  } else if (p.gpu) {
    out += format(
        "{} of the host and {} a step{}; named ops are {:.2f} % of {:.3f} ms of "
        "device time, {:.3f} ms is unnamed\n",
        rate(p.launches, "launch", "launches"), rate(p.kernels, "kernel", "kernels"),
        p.graph ? ", with CUDA graphs" : "", 100 * p.named_share(), p.named_ms() + p.unnamed_ms,
        p.unnamed_ms);
    out += idle_lines(p);
    if (p.marked_ms > 0) {
      out += format(
          "a step takes the device {:.3f} ms by marks on its own clock, {:.3f} ms by CUPTI ({:+.2f} %)\n",
          p.marked_ms, p.span_ms, 100 * (p.span_ms / p.marked_ms - 1));
    }
  } else {
    out += format("{} a step, {:.3f} ms of {:.3f} ms; {:.3f} ms between them\n",
                  rate(p.launches, "op", "ops"), p.busy_ms, p.step_ms, p.idle_ms);
  }
  if (p.world > 1) {
    out += format("communication: gather {:.3f} ms, reduce {:.3f} ms, exposed {:.3f} ms\n", p.gather_ms,
                  p.reduce_ms, p.exposed_ms);
  }
  out += format("the host waited {:.3f} ms for rows and {:.3f} ms for the device\n", p.data_wait_ms,
                p.host_wait_ms);
  if (p.dropped > 0) out += format("missing, for want of room: {}\n", counted(p.dropped, "event"));
  if (p.off_ms) {
    const auto times = [](int64_t n) { return counted(n, "step"); };
    out += format("tracing: {:.3f} ms a step with it ({}), {:.3f} ms without ({}): {:+.2f} %{}\n", p.step_ms,
                  times(p.steps), *p.off_ms, times(p.off_steps), 100 * (p.step_ms / *p.off_ms - 1),
                  std::min(p.steps, p.off_steps) < 3 ? ", which so few steps only hint at" : "");
  } else {
    out += "tracing: what it costs was not measured; it takes steps without it (--wait 3)\n";
  }
  return out;
}

}  // namespace

const std::vector<std::string>& profile_columns() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Column& column : columns) out.emplace_back(column.name);
    return out;
  }();
  return names;
}

std::string profile_text(const Profile& p, const ProfileTable& options) {
  const std::vector<Row> rows = rows_of(p, options.group);
  std::string out = format("{}, {}, {:.3f} ms each{}\n", p.device, counted(p.steps, "step"), p.step_ms,
                           p.world > 1 ? format(", rank {} of {}", p.rank, p.world) : "");
  const bool timed = !p.gpu || p.missing.empty();
  if (timed) out += (p.gpu ? "\ndevice, per step\n" : "\nops, per step\n") + device_table(p, rows, options);
  if (p.gpu) {
    const std::string host = host_table(rows, options);
    if (!host.empty()) out += "\nhost, per step (ops inside of graphs cost it nothing)\n" + host;
  }
  return out + "\n" + totals(p);
}

std::string ranks_text(const std::vector<Profile>& ranks, int64_t top) {
  struct Over {
    std::vector<double> ms;
    double mean = 0;
  };
  std::map<std::string, Over> ops;
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const ProfileOp& op : ranks[r].ops) {
      Over& over = ops[op.op];
      over.ms.resize(ranks.size());
      over.ms[r] += op.device_ms;
    }
  }
  std::vector<std::pair<std::string, Over>> rows;
  for (auto& [name, over] : ops) {
    for (const double ms : over.ms) over.mean += ms / static_cast<double>(ranks.size());
    rows.emplace_back(name, over);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.mean > b.second.mean; });
  std::string out = format("\n{} ranks, ms a step\n{:<24} {:>11} {:>11} {:>11}  {}\n", ranks.size(), "op",
                           "min", "mean", "max", "rank with the most");
  const size_t shown = top > 0 ? std::min(rows.size(), static_cast<size_t>(top)) : rows.size();
  for (size_t i = 0; i < shown; ++i) {
    const auto& ms = rows[i].second.ms;
    const auto most = std::max_element(ms.begin(), ms.end());
    out += format("{:<24} {:>11.3f} {:>11.3f} {:>11.3f}  {}\n", rows[i].first,
                  *std::min_element(ms.begin(), ms.end()), rows[i].second.mean, *most, most - ms.begin());
  }
  // Ranks end a step together; who is slow is who computes longest, and the others wait in communication.
  std::vector<double> own;
  for (const Profile& p : ranks) {
    double comm = 0;
    for (const ProfileOp& op : p.ops) comm += op.phase == name_of(TracePhase::comm) ? op.device_ms : 0;
    own.push_back(p.named_ms() + p.unnamed_ms - comm);
  }
  const auto slowest = std::max_element(own.begin(), own.end());
  double others = 0;
  for (const double ms : own) others += ms;
  others = (others - *slowest) / static_cast<double>(std::max<size_t>(1, own.size() - 1));
  return out + format(
                   "slowest: rank {}, {:.3f} ms of its own work a step, the others {:.3f} ms on average "
                   "({:+.1f} %)\n",
                   slowest - own.begin(), *slowest, others, others > 0 ? 100 * (*slowest / others - 1) : 0);
}

}  // namespace deltatune
