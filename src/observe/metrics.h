// metrics.jsonl: one JSON object per line, appended as the run goes.
//
// {"event": "step", "step": 120, ..., "ts": "2026-11-30T10:22:07.311Z"}; events are start, plan, step, eval,
// save, warning, nan, end. An eval event has "step" and "eval_loss", warning and nan have "message"; a nan
// event says where it began as far as that is known ("where", "layer", "group", ...: train/nonfinite.h).
// Invariants: a line is written with one write call, so a killed run leaves at most one partial line, at the
// end; after truncate_metrics() no step appears twice. Names follow Hugging Face's log_history where it has
// one. Not done here: deciding when to log.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace deltatune {

/// What one optimizer step looked like: input of the metrics file and of the console. Absent numbers are not
/// written.
struct StepLine {
  int64_t step = 0;         ///< 1 after the first step
  int64_t total_steps = 0;  ///< of the whole run
  double epoch = 0;
  double loss = 0;       ///< mean over supervised tokens of the step
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  int64_t tokens = 0;         ///< slots of all rows of the step, all ranks
  int64_t real_tokens = 0;    ///< of which tokens of documents
  int64_t target_tokens = 0;  ///< of which supervised
  // Sums over all steps since the last event, this one included. Written where they are more than one.
  int64_t interval_steps = 0;
  int64_t interval_tokens = 0;       ///< slots
  int64_t interval_real_tokens = 0;  ///< of which tokens of documents
  double interval_time_s = 0;
  double fill = 0;  ///< real tokens / slots
  double time_s = 0;
  double tokens_per_s = 0;                  ///< real, all ranks
  double tokens_per_s_supervised = 0;       ///< all ranks
  double tokens_per_s_slots = 0;            ///< all ranks
  double tokens_per_s_per_device = 0;       ///< real
  std::optional<double> mfu;                ///< of the device card's dense bf16 peak, 0 to 1
  std::optional<double> tflops_per_device;  ///< the FLOPs that MFU counts, 1e12 per second
  std::optional<double> roofline_share;     ///< least time of the step's rows on the card / time_s
  std::optional<double> gemm_share;         ///< that of its matrix products alone
  std::optional<double> gpu_utilisation;    ///< NVML's, of rank 0's GPU since the last step event
  std::optional<double> host_bound_share;   ///< of time_s, the device waited for the host
  std::optional<double> exposed_comm_s;     ///< of time_s, the device of rank 0 waited for other ranks
  double data_wait_s = 0;
  double mem_peak_gib = 0;
  double mem_total_gib = 0;   ///< console only; 0: unknown
  double eta_s = -1;          ///< console only; below 0: unknown
  bool slow_kernels = false;  ///< an op of the run is served by a plain kernel
};

/// The step event without "ts". Times and rates are rounded to six digits; loss, grad_norm and learning_rate
/// keep all bits.
json::Value step_event(const StepLine& line);

/// Appends to a metrics file. Errors are Error{resource} naming the path.
class MetricsWriter {
 public:
  /// Opens (creates) the file for appending. A partial last line, left by a killed run, is removed.
  explicit MetricsWriter(const fs::path& path);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  void step(const StepLine& line) { write(step_event(line)); }
  /// From now on every line has "slow_kernels": true.
  void mark_slow_kernels() { slow_kernels_ = true; }
  /// {"event": name, members of `fields`..., "ts": now}. `fields` must be an object or null.
  void event(std::string_view name, const json::Value& fields);
  /// Hands everything to the disk (fsync), before a checkpoint claims that it is there.
  void sync();

 private:
  void write(json::Value line);

  fs::path path_;
  int descriptor_ = -1;
  bool slow_kernels_ = false;
};

struct MetricsFile {
  std::vector<json::Value> lines;  ///< objects in file order
  int64_t skipped = 0;  ///< lines that are no JSON object with an "event" (a partial last line too)
};

/// Reads a metrics file; a missing file is empty. Throws Error{data} only when it cannot be read.
MetricsFile read_metrics(const fs::path& path);

/// Removes every line that has a "step" above `last_step`, and lines that cannot be read; others keep their
/// bytes. Done before a resumed run continues after `last_step`. Atomic. Returns the number of lines removed.
int64_t truncate_metrics(const fs::path& path, int64_t last_step);

}  // namespace deltatune
