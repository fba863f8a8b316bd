// Names, and the loggers of a run.
#include "observe/run_logger.h"

#include <chrono>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "observe/mlflow.h"
#include "observe/prometheus.h"
#include "observe/tensorboard.h"

namespace deltatune {
namespace {

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void add_numbers(std::vector<Scalar>& out, const std::string& prefix, const json::Value& object) {
  for (const auto& [key, value] : object.as_object()) {
    if (key == "step" || key == "index" || key == "total_steps" || !value.is_number()) continue;
    out.push_back({prefix + key, value.as_number()});
  }
}

}  // namespace

std::vector<Scalar> scalars_of(std::string_view event, const json::Value& fields) {
  std::vector<Scalar> out;
  if (!fields.is_object()) return out;
  if (event == "step") add_numbers(out, "train/", fields);
  if (event == "save") add_numbers(out, "save/", fields);
  if (event == "eval") {
    for (const auto& [key, value] : fields.as_object()) {
      if (!value.is_number() || key == "step") continue;
      const bool prefixed = key.starts_with("eval_");
      out.push_back({"eval/" + (key == "time_s" ? "runtime"
                                : prefixed      ? key.substr(5)
                                                : key),
                     value.as_number()});
    }
  }
  const json::Value* devices = event == "telemetry" ? fields.find("devices") : nullptr;
  if (devices != nullptr && devices->is_array()) {
    for (const json::Value& device : devices->as_array()) {
      const json::Value* index = device.find("index");
      if (index != nullptr && index->is_integer())
        add_numbers(out, format("system/gpu{}/", index->as_integer()), device);
    }
  }
  return out;
}

RunLoggers::RunLoggers(const LoggerOptions& options) {
  for (const std::string& name : options.report_to) {
    try {
      std::unique_ptr<RunLogger> logger;
      if (name == "tensorboard") logger = open_tensorboard(options, seconds_since_1970());
      if (name == "prometheus") logger = open_prometheus(options);
      if (name == "mlflow") logger = open_mlflow(options, seconds_since_1970());
      if (logger) loggers_.emplace_back(name, std::move(logger));
    } catch (const Error& error) {
      log::warn("report_to: {}: nothing is written: {}", name, error.what());
    }
  }
}

template <class F>
void RunLoggers::each(const F& visit) {
  std::erase_if(loggers_, [&](auto& named) {
    try {
      visit(*named.second);
      return false;
    } catch (const Error& error) {
      log::warn("report_to: {}: no more is written: {}", named.first, error.what());
      return true;
    }
  });
}

void RunLoggers::event(std::string_view name, const json::Value& fields) {
  if (loggers_.empty()) return;
  const std::vector<Scalar> scalars = scalars_of(name, fields);
  const json::Value* step = fields.find("step");
  if (scalars.empty() || step == nullptr || !step->is_integer()) return;
  const double time = seconds_since_1970();
  each([&](RunLogger& logger) { logger.write(step->as_integer(), time, scalars); });
}

void RunLoggers::end(RunEnd how) {
  const double time = seconds_since_1970();
  each([&](RunLogger& logger) { logger.end(how, time); });
  loggers_.clear();
}

}  // namespace deltatune
