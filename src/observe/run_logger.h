// Loggers beside metrics.jsonl: TensorBoard, Prometheus, MLflow. Each gets the events of metrics.jsonl and
// writes the numbers in them its own way.
//
// Names are those of Hugging Face's Trainer, so that existing dashboards fit: what it logs in training is
// train/NAME, what it logs in evaluation eval/NAME without the prefix eval_. A logger that cannot write does
// not end the run: it is dropped with a warning.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace deltatune {

struct Scalar {
  std::string name;  ///< "train/loss"
  double value = 0;
};

/// The numbers of a step, eval, telemetry or save event; none of another. Telemetry: system/gpu0/utilisation.
std::vector<Scalar> scalars_of(std::string_view event, const json::Value& fields);

/// How a run ended.
enum class RunEnd { done, stopped, failed };

class RunLogger {
 public:
  virtual ~RunLogger() = default;
  /// Numbers of one event of `step`. Times: seconds since 1970. Throws Error{resource} when they cannot be
  /// written.
  virtual void write(int64_t step, double time, const std::vector<Scalar>& scalars) = 0;
  /// Called at most once, last.
  virtual void end(RunEnd, double /*time*/) {}
};

struct LoggerOptions {
  std::vector<std::string> report_to;  ///< of jsonl, tensorboard, prometheus, mlflow, none
  fs::path output_dir;
  fs::path logging_dir;  ///< of TensorBoard; empty: output_dir/runs/TIME_HOST
  std::string run_name;
  bool continues = false;  ///< files of an earlier part of the run are continued
  int64_t steps = 0;       ///< which has done this many; what the files hold of later steps is removed
  std::vector<std::pair<std::string, std::string>> params;  ///< MLflow's
};

class RunLoggers {
 public:
  RunLoggers() = default;
  /// Opens those that are named.
  explicit RunLoggers(const LoggerOptions& options);
  /// An event of metrics.jsonl, as MetricsWriter::event() got it.
  void event(std::string_view name, const json::Value& fields);
  void end(RunEnd how);

 private:
  template <class F>
  void each(const F& visit);
  std::vector<std::pair<std::string, std::unique_ptr<RunLogger>>> loggers_;
};

}  // namespace deltatune
