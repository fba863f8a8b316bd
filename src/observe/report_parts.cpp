// Tables of the report.
#include "observe/report_parts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/counted.h"
#include "base/format.h"
#include "base/median.h"

namespace deltatune::report {
namespace {

constexpr size_t max_ops = 150;
constexpr size_t max_regions = 150;
constexpr size_t max_facts = 300;
constexpr size_t shown_steps = 100;
constexpr size_t shown_devices = 16;

json::Value number(const json::Value& object, std::string_view key) {
  return short_number(number_of(object, key));
}

bool flag(const json::Value& object, std::string_view key) {
  const json::Value* value = object.find(key);
  return value != nullptr && value->is_bool() && value->as_bool();
}

// "123,456", "1.234", "0.00012"
std::string readable(double value) {
  if (std::isnan(value)) return "-";
  if (std::fabs(value) >= 10000 && std::fabs(value) < 1e15) return format_count(std::llround(value));
  return format("{:.4g}", value);
}

template <class F>
double median_of(const RunRecord& record, const F& member) {
  std::vector<double> values;
  for (const StepFacts& step : record.recent) {
    if (const double value = member(step); !std::isnan(value)) values.push_back(value);
  }
  return median(std::move(values));
}

void add_facts(json::Array& facts, const std::string& prefix, const json::Value& value, int depth,
               std::initializer_list<std::string_view> left_out) {
  if (facts.size() >= max_facts) return;
  if (value.is_object() && depth < 2) {
    for (const auto& [key, member] : value.as_object()) {
      if (depth == 0 && std::find(left_out.begin(), left_out.end(), key) != left_out.end()) continue;
      add_facts(facts, prefix.empty() ? key : format("{} {}", prefix, key), member, depth + 1, left_out);
    }
    return;
  }
  std::string text = value.is_string() ? value.as_string() : value.is_null() ? "" : json::dump(value);
  if (text.empty() || text == "[]" || text == "{}") return;
  if (value.is_integer() && std::llabs(value.as_integer()) >= 10000) text = format_count(value.as_integer());
  if (value.type() == json::Type::floating) text = readable(value.as_number());
  std::string name = clean_text(prefix, 100);
  std::replace(name.begin(), name.end(), '_', ' ');
  facts.emplace_back(json::Array{std::move(name), clean_text(text, 1000)});
}

}  // namespace

json::Value profile_part(const json::Value& profile) {
  const json::Value* list = profile.find("ops");
  if (list == nullptr || !list->is_array()) return {};
  json::Value out;
  out.set("device", text_of(profile, "device", 100));
  for (const char* key : {"rank", "world", "steps", "step_ms", "busy_ms", "idle_ms", "launches", "kernels",
                          "unnamed_ms", "data_wait_ms", "host_bound_ms"})
    out.set(key, number(profile, key));
  out.set("graph", flag(profile, "graph"));
  const json::Value* overhead = profile.find("overhead");
  out.set("untraced_ms", overhead == nullptr ? json::Value() : number(*overhead, "off_ms"));
  if (const json::Value* comm = profile.find("communication"); comm != nullptr) {
    for (const char* key : {"gather_ms", "reduce_ms", "exposed_ms"}) out.set(key, number(*comm, key));
  }
  std::vector<const json::Value*> sorted;
  for (const json::Value& op : list->as_array()) {
    if (op.is_object()) sorted.push_back(&op);
  }
  const auto cost = [](const json::Value* op) {
    const double device = number_of(*op, "device_ms");
    return std::isnan(device) ? 0 : device;
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const json::Value* a, const json::Value* b) { return cost(a) > cost(b); });
  json::Array rows;
  double more = 0;
  for (const json::Value* op : sorted) {
    if (rows.size() >= max_ops) {
      more += cost(op);
      continue;
    }
    json::Array row{text_of(*op, "op", 60), text_of(*op, "shape", 80), text_of(*op, "phase", 30),
                    text_of(*op, "kernel", 60), flag(*op, "slow")};
    for (const char* key : {"calls", "host_us", "device_us", "device_ms", "gb_s", "tflop_s", "roofline"})
      row.push_back(number(*op, key));
    rows.emplace_back(std::move(row));
  }
  out.set("ops", std::move(rows));
  out.set("more_ops", static_cast<int64_t>(sorted.size() > max_ops ? sorted.size() - max_ops : 0));
  out.set("more_ms", short_number(more));
  json::Array gaps;
  if (const json::Value* found = profile.find("gaps"); found != nullptr && found->is_array()) {
    for (const json::Value& gap : found->as_array()) {
      if (gaps.size() >= 20) break;
      gaps.emplace_back(json::Array{number(gap, "us"), text_of(gap, "after", 100),
                                    text_of(gap, "before", 100), text_of(gap, "host", 100)});
    }
  }
  out.set("gaps", std::move(gaps));
  return out;
}

json::Value memory_part(const RunFolder& folder) {
  const json::Value* plan = folder.run().find("plan");
  if (plan == nullptr) plan = &folder.record().plan;
  const json::Value* list = plan->find("regions");
  if (list == nullptr) list = plan->find("memory");
  if (list == nullptr || !list->is_array()) return {};
  struct Row {
    std::string name, lifetime;
    double bytes;
    bool host;
  };
  std::vector<Row> rows;
  double sum = 0;
  for (const json::Value& region : list->as_array()) {
    const double bytes = number_of(region, "bytes");
    if (!(bytes > 0)) continue;
    const bool host = flag(region, "host");
    if (!host) sum += bytes;
    rows.push_back({text_of(region, "name", 100), text_of(region, "lifetime", 30), bytes, host});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.bytes > b.bytes; });
  json::Array regions;
  for (const Row& row : rows) {
    if (regions.size() >= max_regions) break;
    regions.emplace_back(json::Array{row.name, row.lifetime, short_number(row.bytes, 12), row.host});
  }
  double total = number_of(*plan, "total_bytes");
  if (std::isnan(total)) total = sum;
  json::Value out;
  out.set("regions", std::move(regions));
  out.set("more", static_cast<int64_t>(rows.size() > max_regions ? rows.size() - max_regions : 0));
  out.set("total", short_number(total, 12));
  out.set("available", short_number(number_of(*plan, "available_bytes"), 12));
  out.set("recompute", text_of(folder.run(), "recompute", 40));
  return out;
}

json::Value telemetry_part(const RunRecord& record) {
  json::Array out;
  for (const auto& [index, device] : record.devices) {
    if (out.size() >= shown_devices) break;
    json::Value curves = json::Object{};
    json::Value means = json::Object{};
    for (size_t i = 0; i < DeviceRecord::names.size(); ++i) {
      if (device.counts[i] == 0) continue;
      curves.set(DeviceRecord::names[i], device.curves[i].to_json());
      means.set(DeviceRecord::names[i], short_number(device.mean(i)));
    }
    std::string reasons;
    for (const auto& [reason, times] : device.reasons)
      reasons += format("{}{} ({})", reasons.empty() ? "" : ", ", reason, counted(times, "time"));
    json::Value item;
    item.set("index", index);
    item.set("name", text_of(device.last, "name", 80));
    item.set("curves", std::move(curves));
    item.set("mean", std::move(means));
    json::Value last = json::Object{};
    for (const char* key : {"sm_clock_max_mhz", "power_limit_w", "ecc_uncorrected", "nvlink_errors"})
      last.set(key, number(device.last, key));
    const json::Value* xid = device.last.find("xid");
    last.set("xid", xid != nullptr && xid->is_array() && !xid->as_array().empty()
                        ? clean_text(json::dump(*xid), 100)
                        : "");
    item.set("last", std::move(last));
    item.set("throttle", reasons);
    out.push_back(std::move(item));
  }
  return json::Object{
      {"devices", std::move(out)},
      {"more", static_cast<int64_t>(
                   record.devices.size() > shown_devices ? record.devices.size() - shown_devices : 0)}};
}

json::Array facts_part(const json::Value& object, std::initializer_list<std::string_view> left_out) {
  json::Array facts;
  add_facts(facts, "", object, 0, left_out);
  return facts;
}

json::Value steps_part(const RunRecord& record) {
  json::Array rows;
  const size_t skip = record.recent.size() > shown_steps ? record.recent.size() - shown_steps : 0;
  for (size_t i = skip; i < record.recent.size(); ++i) {
    const StepFacts& s = record.recent[i];
    json::Array row;
    for (const double value : {s.step, s.loss, s.grad_norm, s.learning_rate, s.time_s,
                               s.time_s > 0 ? s.real_tokens / s.time_s : std::nan(""), s.fill, s.mfu})
      row.push_back(short_number(value));
    rows.emplace_back(std::move(row));
  }
  return json::Object{{"columns", json::Array{"step", "loss", "gradient norm", "learning rate", "seconds",
                                              "tokens/s", "fill", "MFU"}},
                      {"rows", std::move(rows)}};
}

json::Array tiles_part(const RunFolder& folder) {
  const RunRecord& record = folder.record();
  json::Array tiles;
  const auto tile = [&](const char* label, const std::string& value, const std::string& note) {
    tiles.emplace_back(json::Object{{"label", label}, {"value", value}, {"note", note}});
  };
  if (record.recent.empty()) return tiles;
  const StepFacts& last = record.recent.back();
  double total = number_of(record.start, "total_steps");
  if (std::isnan(total)) total = number_of(folder.run(), "total_steps");
  tile("step", format("{:.0f}", last.step), total > 0 ? format("of {:.0f}", total) : "");
  tile("loss", readable(last.loss), format("{} at the first logged step", readable(record.first_step->loss)));
  if (const double eval = number_of(record.last_eval, "eval_loss"); !std::isnan(eval))
    tile("evaluation loss", readable(eval), format("at step {:.0f}", number_of(record.last_eval, "step")));
  const double time = median_of(record, [](const StepFacts& s) { return s.time_s; });
  const double rate = median_of(
      record, [](const StepFacts& s) { return s.time_s > 0 ? s.real_tokens / s.time_s : std::nan(""); });
  const double supervised = median_of(
      record, [](const StepFacts& s) { return s.time_s > 0 ? s.targets / s.time_s : std::nan(""); });
  tile("tokens per second", readable(rate),
       std::isnan(supervised) ? "median" : format("{} of them supervised", readable(supervised)));
  tile("step time",
       std::isnan(time) ? "-"
       : time < 1       ? format("{:.0f} ms", time * 1e3)
                        : format("{:.2f} s", time),
       "median");
  const auto share = [&](const char* label, double value, const std::string& note) {
    if (!std::isnan(value)) tile(label, format("{:.1f} %", value * 100), note);
  };
  share("MFU", median_of(record, [](const StepFacts& s) { return s.mfu; }), "of the dense peak");
  share("GPU utilisation", median_of(record, [](const StepFacts& s) { return s.gpu_utilisation; }),
        "as the driver says");
  share("fill", median_of(record, [](const StepFacts& s) { return s.fill; }), "real tokens of all slots");
  if (last.mem_peak_gib > 0) tile("memory", format("{:.1f} GiB", last.mem_peak_gib), "per device, planned");
  return tiles;
}

}  // namespace deltatune::report
