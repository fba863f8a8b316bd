// RunLog: what a training run writes about itself while it goes - metrics, meters, the report page, the log
// history of checkpoints. Only rank 0 writes; the other ranks keep the history, which their checkpoints have.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "comm/communicator.h"
#include "io/trainer_state.h"
#include "observe/console.h"
#include "observe/metrics.h"
#include "observe/run_logger.h"
#include "observe/telemetry.h"
#include "train/config.h"
#include "train/engine.h"
#include "train/meters.h"
#include "train/step.h"

namespace deltatune {

class RunLog {
 public:
  /// Nothing is opened yet. Config, communicator and console must outlive it. page: writes report.html (see
  /// RunContext); empty: write_report() of observe/report.h.
  RunLog(const Config& config, Communicator& comm, Console& console, std::function<void(bool ended)> page);

  /// What the meters compare with, the rows' roofline, and the look at the GPU; a line in the log about each.
  /// All ranks call it.
  void measure(Engine& engine, Trainer& trainer, bool tied);
  /// Opens the files, for a run that has done `steps` steps (0: a new one): what they hold of later steps is
  /// removed. Writes the start event with `fields`.
  /// `resolved_config`: text of config.resolved.yaml, for loggers that keep parameters.
  void start(int64_t steps, int64_t total_steps, bool slow_kernels, json::Value fields,
             const std::string& resolved_config);

  /// Whether rank 0 would write a telemetry event now; then all ranks call write_telemetry() together.
  bool telemetry_due() const;
  void write_telemetry(int64_t step);

  /// A step that is done: console, and where `logged` metrics, history and report.
  void step(const StepReport& report, bool logged);
  void event(std::string_view name, const json::Value& fields);
  /// The run is over; there will be no more events.
  void end(RunEnd how);
  /// In the log and in the metrics.
  void warn(int64_t step, const std::string& message);
  /// What was written so far reaches the disk before a checkpoint claims it.
  void sync();
  /// The page is for looking at a running job: at most every few seconds and for a fiftieth of the time, and
  /// a failure to write it stops nothing.
  void refresh_report();
  /// Now. Throws Error.
  void write_page(bool ended);

  std::vector<LogEntry>& history() { return history_; }
  const std::vector<LogEntry>& history() const { return history_; }
  /// Sums since the last logged step, which a checkpoint keeps: the line after a resume has the same bits.
  json::Value window() const;
  void restore_window(const json::Value& window);
  /// Since start().
  double seconds() const { return clock_.seconds(); }

 private:
  void open_telemetry(const std::string& pci_bus_id);

  const Config& config_;
  Communicator& comm_;
  Console& console_;
  std::function<void(bool)> page_;
  fs::path output_;
  bool leads_;
  const ModelConfig* model_ = nullptr;
  MeterDevice device_;
  std::unique_ptr<StepRoofline> roofline_;
  std::string pci_bus_id_;
  std::unique_ptr<Telemetry> telemetry_;  ///< of this rank's GPU; nullptr: none
  HealthCheck health_;
  Stopwatch telemetry_clock_;
  std::unique_ptr<MetricsWriter> metrics_;
  RunLoggers loggers_;
  std::vector<LogEntry> history_;
  // Since the last logged step.
  double loss_sum_ = 0;
  int64_t targets_ = 0;
  int64_t interval_steps_ = 0, interval_tokens_ = 0, interval_real_tokens_ = 0;
  double interval_time_s_ = 0;
  int64_t total_steps_ = 0;
  int64_t started_at_ = 0;
  double tokens_per_s_ = 0;  ///< of the last step, on one device
  std::optional<double> gpu_utilisation_;
  double mem_peak_gib_ = 0;
  bool slow_kernels_ = false;
  Stopwatch clock_;
  Stopwatch report_clock_;
  double report_pause_ = 0;  // seconds from one page to the next
};

}  // namespace deltatune
