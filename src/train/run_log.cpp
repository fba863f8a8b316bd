// Lines, events and pages of a run.
#include "train/run_log.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/yaml.h"
#include "comm/exchange.h"
#include "observe/report.h"
#include "ops/cuda_plugin.h"

namespace deltatune {
namespace {

// A sample is 0.2 s: what there is to say changes slowly, and the file should not be telemetry for the most.
constexpr double telemetry_every_s = 10;

std::string folder_name(const fs::path& folder) {
  const fs::path whole = fs::absolute(folder).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

// Key and value of each line "key: value".
std::vector<std::pair<std::string, std::string>> config_params(const std::string& resolved) {
  std::vector<std::pair<std::string, std::string>> out;
  const json::Value config = yaml::to_json(yaml::parse(resolved, "config.resolved.yaml"));
  if (!config.is_object()) return out;
  for (const auto& [key, value] : config.as_object())
    out.emplace_back(key, value.is_string() ? value.as_string() : json::dump(value));
  return out;
}

}  // namespace

RunLog::RunLog(const Config& config, Communicator& comm, Console& console,
               std::function<void(bool ended)> page)
    : config_(config),
      comm_(comm),
      console_(console),
      page_(std::move(page)),
      output_(config.output_dir),
      leads_(comm.rank() == 0) {}

void RunLog::measure(Engine& engine, Trainer& trainer, bool tied) {
  const Device& device = engine.device();
  model_ = &engine.model().config();
  mem_peak_gib_ = static_cast<double>(device.plan().total()) / double(1 << 30);
  const GpuIdentity gpu = gpu_identity(device);
  device_ = meter_device(device.target(), gpu.product);
  log::info("{}", device_.note);
  if (device.target() == Target::cuda) open_telemetry(gpu.pci_bus_id);
  // Ranks on different GPUs: a sum over all needs all.
  const bool all =
      ranks_where(comm_, device_.card.has_value()).size() == static_cast<size_t>(comm_.world_size());
  if (!all) return;
  roofline_ = std::make_unique<StepRoofline>(*model_, tied, engine.options(), device.facts(),
                                             comm_.world_size(), *device_.card);
  trainer.measure_roofline(*roofline_);
}

void RunLog::open_telemetry(const std::string& pci_bus_id) {
  pci_bus_id_ = pci_bus_id;
  std::string why;
  const std::shared_ptr<NvmlGpu> nvml = NvmlGpu::open(pci_bus_id, why);
  if (nvml) {
    telemetry_ = std::make_unique<Telemetry>([nvml] { return nvml->sample(); });
  } else {
    log::info("no telemetry of the GPU (utilisation, clocks, power, errors): {}", why);
  }
}

bool RunLog::telemetry_due() const {
  return leads_ && telemetry_ && telemetry_clock_.seconds() >= telemetry_every_s;
}

void RunLog::write_telemetry(int64_t step) {
  if (pci_bus_id_.empty()) return;  // on the CPU, as all other ranks
  std::string own;
  if (telemetry_) {
    const TelemetryWindow window = telemetry_->take();
    if (window.samples() > 0) own = json::dump(window.to_json(comm_.rank(), pci_bus_id_));
  }
  const std::vector<std::string> all = comm_.collect(own);
  if (!leads_) return;
  telemetry_clock_.restart();
  json::Array devices;
  for (const std::string& text : all) {
    if (!text.empty()) devices.push_back(json::parse(text, "telemetry of a rank"));
  }
  if (devices.empty()) return;
  for (const json::Value& entry : devices) {
    for (const std::string& trouble : health_.judge(entry, tokens_per_s_)) warn(step, trouble);
  }
  json::Value fields;
  fields.set("step", step);
  fields.set("devices", std::move(devices));
  event("telemetry", fields);
}

void RunLog::start(int64_t steps, int64_t total_steps, bool slow_kernels, json::Value fields,
                   const std::string& resolved_config) {
  started_at_ = steps;
  total_steps_ = total_steps;
  slow_kernels_ = slow_kernels;
  clock_.restart();
  if (!leads_ || config_.profile_only) return;
  truncate_metrics(output_ / "metrics.jsonl", steps > 0 ? steps : -1);
  metrics_ = std::make_unique<MetricsWriter>(output_ / "metrics.jsonl");
  if (slow_kernels) metrics_->mark_slow_kernels();
  LoggerOptions options;
  options.report_to = config_.report_to;
  options.output_dir = output_;
  options.logging_dir = config_.logging_dir;
  options.run_name = !config_.run_name.empty() ? config_.run_name : folder_name(output_);
  options.continues = !config_.resume_from_checkpoint.empty() && config_.resume_from_checkpoint != "false";
  options.steps = steps;
  options.params = config_params(resolved_config);
  loggers_ = RunLoggers(options);
  event("start", fields);
}

void RunLog::step(const StepReport& report, bool logged) {
  if (!report.nonfinite) {
    loss_sum_ += report.loss_sum;
    targets_ += report.targets;
  }
  ++interval_steps_;
  interval_tokens_ += report.slots;
  interval_real_tokens_ += report.tokens;
  interval_time_s_ += report.seconds;
  StepLine line;
  line.step = report.step;
  line.interval_steps = interval_steps_;
  line.interval_tokens = interval_tokens_;
  line.interval_real_tokens = interval_real_tokens_;
  line.interval_time_s = interval_time_s_;
  line.total_steps = total_steps_;
  line.epoch = report.epoch;
  // Nothing that counts since the last line: there is no loss to show.
  line.loss =
      targets_ > 0 ? loss_sum_ / static_cast<double>(targets_) : std::numeric_limits<double>::quiet_NaN();
  line.grad_norm = report.grad_norm;
  line.learning_rate = report.learning_rate;
  set_meters(line, report, *model_, device_, comm_.world_size());
  if (telemetry_ && logged) {
    // Steps may be shorter than the time between two samples.
    if (const auto mean = telemetry_->take(1).utilisation()) gpu_utilisation_ = mean;
    line.gpu_utilisation = gpu_utilisation_;
  }
  tokens_per_s_ = line.tokens_per_s_per_device;
  line.mem_peak_gib = mem_peak_gib_;
  line.slow_kernels = slow_kernels_;
  line.eta_s = clock_.seconds() / static_cast<double>(report.step - started_at_) *
               static_cast<double>(total_steps_ - report.step);
  console_.step(line, logged);
  if (!logged) return;
  if (metrics_) {
    metrics_->step(line);
    loggers_.event("step", step_event(line));
  }
  history_.push_back(
      {report.epoch,
       report.step,
       {{"loss", line.loss}, {"grad_norm", line.grad_norm}, {"learning_rate", line.learning_rate}}});
  loss_sum_ = 0;
  targets_ = 0;
  interval_steps_ = interval_tokens_ = interval_real_tokens_ = 0;
  interval_time_s_ = 0;
  refresh_report();
}

void RunLog::event(std::string_view name, const json::Value& fields) {
  if (!metrics_) return;
  metrics_->event(name, fields);
  loggers_.event(name, fields);
}

void RunLog::end(RunEnd how) {
  loggers_.end(how);
}

void RunLog::warn(int64_t step, const std::string& message) {
  if (!leads_) return;
  log::warn("{}", message);
  json::Value fields;
  fields.set("step", step);
  fields.set("message", message);
  event("warning", fields);
}

void RunLog::sync() {
  if (metrics_) metrics_->sync();
}

void RunLog::refresh_report() {
  if (!metrics_ || report_clock_.seconds() < report_pause_) return;
  const Stopwatch clock;
  try {
    write_page(false);
  } catch (const Error& error) {
    log::warn("report.html was not written: {}", error.what());
  }
  report_pause_ = std::max(5.0, 50 * clock.seconds());
  report_clock_.restart();
}

void RunLog::write_page(bool ended) {
  if (page_) {
    page_(ended);
  } else {
    write_report(output_);
  }
}

json::Value RunLog::window() const {
  json::Value out;
  out.set("loss_sum", loss_sum_);
  out.set("targets", targets_);
  out.set("steps", interval_steps_);
  out.set("tokens", interval_tokens_);
  out.set("real_tokens", interval_real_tokens_);
  out.set("time_s", interval_time_s_);
  return out;
}

void RunLog::restore_window(const json::Value& window) {
  loss_sum_ = window.at("loss_sum").as_number();
  targets_ = window.at("targets").as_integer();
  if (window.find("steps") == nullptr) return;  // of an earlier version: the line counts from here on
  interval_steps_ = window.at("steps").as_integer();
  interval_tokens_ = window.at("tokens").as_integer();
  interval_real_tokens_ = window.at("real_tokens").as_integer();
  interval_time_s_ = window.at("time_s").as_number();
}

}  // namespace deltatune
