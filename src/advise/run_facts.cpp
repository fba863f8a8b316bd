// Taking the figures out of the files of a run.
#include "advise/run_facts.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/format.h"
#include "base/median.h"

namespace deltatune {
namespace {

double median_of_known(std::vector<double> values) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  return median(std::move(values));
}

// Of the values that are known; NaN without any.
struct Sum {
  double total = 0;
  int64_t count = 0;
  void add(double value) {
    if (std::isnan(value)) return;
    total += value;
    ++count;
  }
  double mean() const { return count == 0 ? unknown : total / static_cast<double>(count); }
};

// Fill of all steps that the events tell of, and how far it may be from that of all steps.
void take_fill(const std::vector<const StepFacts*>& steps, StepMeans& out) {
  double slots = 0, real = 0;
  std::vector<double> fills;
  out.told_steps = 0;
  for (const StepFacts* step : steps) {
    if (!(step->interval_slots > 0 && step->interval_real_tokens >= 0)) continue;
    out.told_steps += step->interval_steps;
    slots += step->interval_slots;
    real += step->interval_real_tokens;
    fills.push_back(step->interval_real_tokens / step->interval_slots);
  }
  if (!(slots > 0)) return;
  out.slots = slots / out.told_steps;
  out.real_tokens = real / out.told_steps;
  out.fill = real / slots;
  // The first event may tell of steps before it.
  out.run_steps =
      std::max(steps.back()->step - steps.front()->step + steps.front()->interval_steps, out.told_steps);
  const double n = static_cast<double>(fills.size());
  if (out.told_steps > 0.95 * out.run_steps) return;
  double squares = 0;
  for (const double fill : fills) squares += (fill - out.fill) * (fill - out.fill);
  // A handful of steps says little of its own spread.
  out.fill_error = n < 4 ? 0.25 * out.fill : 2 * std::sqrt(squares / (n - 1) / n);
}

StepMeans step_means(const RunRecord& record) {
  StepMeans out;
  std::vector<const StepFacts*> counted;
  std::vector<double> seconds, mfu, roofline, utilisation;
  Sum real, targets;
  // Shares: of the time of those steps that say it.
  double waits[3] = {}, times[3] = {};
  for (const StepFacts& step : record.recent) {
    const bool first = record.first_step && step.step == record.first_step->step;
    if ((first && record.recent.size() > 3) || !(step.time_s > 0)) continue;
    ++out.steps;
    seconds.push_back(step.time_s);
    mfu.push_back(step.mfu);
    roofline.push_back(step.roofline_share);
    utilisation.push_back(step.gpu_utilisation);
    counted.push_back(&step);
    real.add(step.real_tokens);
    targets.add(step.targets);
    const double parts[3] = {step.data_wait_s, step.exposed_comm_s, step.host_bound_share * step.time_s};
    for (size_t i = 0; i < 3; ++i) {
      if (!(parts[i] >= 0)) continue;
      waits[i] += std::min(parts[i], step.time_s);
      times[i] += step.time_s;
    }
  }
  out.seconds = median_of_known(seconds);
  out.mfu = median_of_known(mfu);
  out.roofline = median_of_known(roofline);
  out.utilisation = median_of_known(utilisation);
  take_fill(counted, out);
  out.targets = targets.mean() / real.mean() * out.real_tokens;  // its share of the steps that say it
  double* shares[3] = {&out.data_wait, &out.exposed_comm, &out.host_bound};
  for (size_t i = 0; i < 3; ++i) *shares[i] = times[i] > 0 ? waits[i] / times[i] : unknown;
  return out;
}

DataFacts data_facts(const json::Value& data) {
  DataFacts out;
  out.rows = number_of(data, "rows");
  out.conversations = number_of(data, "conversations");
  out.truncated = number_of(data, "truncated");
  out.dropped = number_of(data, "dropped");
  out.all_masked = number_of(data, "all_masked");
  out.tokens = number_of(data, "tokens");
  out.supervised = number_of(data, "supervised_tokens");
  out.tokens_cut = number_of(data, "tokens_cut");
  if (const json::Value* lengths = data.find("lengths"); lengths != nullptr) {
    out.length_p50 = number_of(*lengths, "p50");
    out.length_p99 = number_of(*lengths, "p99");
    out.length_max = number_of(*lengths, "max");
  }
  return out;
}

std::vector<DeviceTelemetry> telemetry(const RunRecord& record) {
  std::vector<DeviceTelemetry> out;
  for (const auto& [index, device] : record.devices) {
    DeviceTelemetry facts;
    facts.index = index;
    facts.utilisation = device.mean(0);
    facts.sm_clock_mhz = device.mean(2);
    facts.temperature_c = device.mean(4);
    facts.throttled_share = device.mean(5);
    facts.lost_share = device.mean(6);
    facts.sm_clock_max_mhz = number_of(device.last, "sm_clock_max_mhz");
    for (const auto& [reason, times] : device.reasons)
      facts.reasons += (facts.reasons.empty() ? "" : ", ") + reason;
    out.push_back(std::move(facts));
  }
  return out;
}

const std::vector<Point>& curve(const RunRecord& record, const char* name) {
  static const std::vector<Point> none;
  const auto found = record.curves.find(name);
  return found == record.curves.end() ? none : found->second.points();
}

// The card of the GPU that run.json names, for a run on one.
std::optional<DeviceCard> card_of(const json::Value& run, const std::optional<ProfileFacts>& profile) {
  const DeviceCard* card = profile ? card_of_product(profile->device) : nullptr;
  const json::Value* machine = run.find("machine");
  const json::Value* gpus = machine == nullptr ? nullptr : machine->find("gpus");
  const bool on_gpu = run.find("kernels") != nullptr;  // the CPU's are not listed
  if (card == nullptr && on_gpu && gpus != nullptr && gpus->is_array() && !gpus->as_array().empty() &&
      gpus->as_array()[0].is_string()) {
    card = card_of_product(gpus->as_array()[0].as_string());
  }
  return card == nullptr ? std::nullopt : std::optional<DeviceCard>(*card);
}

std::string nonfinite_where(const json::Value& event) {
  std::string out = text_of(event, "where", 200);
  if (!out.empty()) return out;
  for (const char* key : {"layer", "tensor", "op"}) {
    const double layer = number_of(event, key);
    const std::string text =
        !(layer >= 0 && layer < 1e6) ? text_of(event, key, 100) : std::to_string(std::llround(layer));
    if (!text.empty()) out += (out.empty() ? "" : ", ") + std::string(key) + " " + text;
  }
  return out;
}

// Where it began is told by the first event that knows, for a value that is not finite often is in the same
// place again.
void take_nonfinite(const RunRecord& record, RunFacts& out) {
  out.nonfinite_step = record.nonfinite_step;
  out.nonfinite_where = nonfinite_where(record.nonfinite);
  const double step = number_of(record.nonfinite, "step");
  if (!out.nonfinite_where.empty() && step >= 0 && step <= 1e12 && step != out.nonfinite_step)
    out.nonfinite_where += format(" (step {:.0f})", step);
}

}  // namespace

std::string RunFacts::setting(const std::string& key) const {
  const auto found = settings.find(key);
  return found == settings.end() ? "" : found->second;
}

double RunFacts::number(const std::string& key) const {
  const std::string text = setting(key);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return text.empty() || *end != '\0' ? unknown : value;
}

std::optional<PlanSummary> RunFacts::plan(const std::map<std::string, std::string>& changes) const {
  return what_if ? what_if(changes) : std::nullopt;
}

std::optional<ProfileFacts> profile_facts(const json::Value& profile) {
  const json::Value* ops = profile.find("ops");
  if (ops == nullptr || !ops->is_array()) return std::nullopt;
  ProfileFacts out;
  out.device = text_of(profile, "device", 100);
  out.gpu = out.device != "cpu";
  if (const json::Value* gpu = profile.find("gpu"); gpu != nullptr && gpu->is_bool())
    out.gpu = gpu->as_bool();
  const double rank = number_of(profile, "rank");
  out.rank = rank >= 0 && rank < 1e6 ? static_cast<int>(rank) : 0;
  out.step_ms = number_of(profile, "step_ms");
  if (!(out.step_ms > 0)) return std::nullopt;
  out.busy_ms = number_of(profile, "busy_ms");
  out.host_bound_ms = number_of(profile, "host_bound_ms");
  out.data_wait_ms = number_of(profile, "data_wait_ms");
  out.launches = number_of(profile, "launches");
  out.kernels = number_of(profile, "kernels");
  if (const json::Value* graph = profile.find("graph"); graph != nullptr && graph->is_bool())
    out.graph = graph->as_bool();
  if (const json::Value* comm = profile.find("communication"); comm != nullptr) {
    out.gather_ms = number_of(*comm, "gather_ms");
    out.reduce_ms = number_of(*comm, "reduce_ms");
    out.exposed_ms = number_of(*comm, "exposed_ms");
  }
  for (const json::Value& item : ops->as_array()) {
    const double ms = number_of(item, "device_ms");
    ProfiledOp op;
    op.op = text_of(item, "op", 60);
    if (!(ms >= 0) || op.op.empty()) continue;
    op.shape = text_of(item, "shape", 80);
    op.phase = text_of(item, "phase", 30);
    op.kernel = text_of(item, "kernel", 60);
    if (const json::Value* slow = item.find("slow"); slow != nullptr && slow->is_bool())
      op.slow = slow->as_bool();
    op.calls = number_of(item, "calls");
    op.device_ms = ms;
    op.roofline = number_of(item, "roofline");
    out.ops.push_back(std::move(op));
  }
  return out;
}

RunFacts facts_of(const RunFolder& folder) {
  const RunRecord& record = folder.record();
  const json::Value& run = folder.run();
  RunFacts out;
  out.damaged = folder.notes();
  for (const Setting& setting : folder.settings()) out.settings[setting.key] = setting.value;
  if (const json::Value* kernels = run.find("kernels"); kernels != nullptr && kernels->is_object()) {
    for (const auto& [op, kernel] : kernels->as_object()) {
      if (kernel.is_string()) out.kernels[clean_text(op, 60)] = clean_text(kernel.as_string(), 200);
    }
  }
  out.recompute = text_of(run, "recompute", 20);
  if (const double world = number_of(run, "world_size"); world >= 1 && world <= 1e6) out.world_size = world;
  if (const json::Value* exit = run.find("exit"); exit != nullptr && exit->is_object())
    out.failure = text_of(*exit, "message", 300);
  out.steps = step_means(record);
  out.slow_kernels = record.slow_kernels;
  out.loss = curve(record, "loss");
  out.grad_norm = curve(record, "grad_norm");
  out.nonfinite_steps = record.nonfinite_steps;
  if (record.nonfinite_steps > 0) take_nonfinite(record, out);
  if (const json::Value* plan = run.find("plan"); plan != nullptr) {
    out.memory = number_of(*plan, "total_bytes");
    out.memory_available = number_of(*plan, "available_bytes");
  }
  if (const json::Value* data = run.find("data"); data != nullptr) out.data = data_facts(*data);
  out.devices = telemetry(record);
  out.profile = profile_facts(folder.profile());
  if (out.profile && !folder.other_profiles().empty()) {
    out.rank_profiles.push_back(*out.profile);
    for (const json::Value& other : folder.other_profiles()) {
      if (auto facts = profile_facts(other)) out.rank_profiles.push_back(std::move(*facts));
    }
  }
  out.card = card_of(run, out.profile);
  return out;
}

}  // namespace deltatune
