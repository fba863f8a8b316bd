// bench step: a training step at a model's width, timed as a run executes it, against its matrix products
// alone.
//
// Rows of T tokens, random weights, AdamW. Two depths are measured in one process and every figure is
// extended to all layers of the model along the line through the two. Per depth:
//   step     forward and backward of one micro-batch, and the update, between marks on the device's clock, in
//            steps that follow each other as in training (graphs as cuda_graph says).
//   gemm     every matrix product of the same step, each distinct one alone, warm, on random data, times its
//            calls. The ratio of the two is what everything but matrix products costs.
//   ops      the same calls one after the other with a mark between two: the split by op. Marks cost a few
//            microseconds each, so the parts add up to a little more than the step.
//   launches nodes of the step's graph: kernels, copies and fills of our own and of libraries.
//   idle     share of the time from the end of an update to the first work of the next step, and how long the
//            host takes to queue a step: less than the step, or the device waits inside of it too.
//   activity three more steps under a tracer: how long nothing at all ran on the device, and between what.
// Not here: data, logging, checkpoints, more than one device.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/batch.h"
#include "model/config.h"
#include "model/layer.h"
#include "ops/optimizer.h"
#include "train/bench_model.h"
#include "train/bench_timer.h"
#include "train/bench_trace.h"
#include "train/engine.h"
#include "train/step_graphs.h"

namespace deltatune {

struct BenchStepOptions {
  ModelConfig model;
  std::string model_name;
  std::string title;            ///< of what is measured, for the lines that say how far it is; may be empty
  std::vector<int64_t> depths;  ///< layers, ascending; of the model's first ones
  int64_t tokens = 8192;
  std::vector<int32_t> lengths;
  std::vector<Batch> rows;  ///< steps take them in turn; empty: one row of documents of `lengths`
  DType storage = DType::bf16;
  std::string recompute = "block";    ///< none | cheap | block; `keep` counts where it is given
  std::function<Keep(int64_t)> keep;  ///< what a depth keeps
  std::string kernel;                 ///< EngineOptions::prefer_kernel, of all ops but matrix products
  BenchOptimizer optimizer;
  GraphMode graph = GraphMode::automatic;
  bool deterministic = false;
  bool allow_slow_kernels = false;
  bool tune_matmuls = true;
  std::string cache_folder;
  double peak_tflop_s = 0;  ///< of the device, for MFU; 0: unknown
  std::string pci_bus_id;  ///< of the device, for its driver's utilisation while steps are timed; empty: none
  double timed_seconds = 4;  ///< of steps, about
  bool parts = true;         ///< time ops and products one by one, too
  ActivityTracer tracer;     ///< of the device; without functions: nothing is traced
};

/// Figures that grow with the depth, of one depth or extended to another.
struct StepFigures {
  double layers = 0;
  double pass_ms = 0;       ///< forward and backward, median
  double update_ms = 0;     ///< norm, clipping, AdamW
  double gemm_ms = 0;       ///< matrix products of forward and backward, alone
  double launches = 0;      ///< of forward, backward and update; 0: the device cannot say
  double host_ms = 0;       ///< to queue a step
  double traced_ms = 0;     ///< a step under the tracer; 0: there was none
  double busy_ms = 0;       ///< of traced_ms, with anything running on the device
  double utilisation = -1;  ///< as the driver tells it, of the timed steps; -1: not known
  double host_calls = 0;    ///< that queued work for the device, of a traced step
  double bytes = 0;         ///< of device memory
  double parameters = 0;    ///< of matrix products: all matrices but the embedding
  bool flat =
      false;  ///< extended, and the deeper model took no longer: times are the deeper one's, a lower bound
  std::map<std::string, double> op_ms;  ///< by op
};

struct BenchStepDepth {
  StepFigures figures;
  double idle_ms = 0;                     ///< from the end of a step to the begin of the next
  double fastest_ms = 0, slowest_ms = 0;  ///< of the timed passes
  int64_t steps = 0;
  int64_t products = 0;  ///< matrix products of forward and backward
  TracedSteps traced;
};

struct BenchStepReport {
  std::string device, model, dtype, recompute, graph, optimizer;
  int64_t tokens = 0, documents = 0, targets = 0;
  bool slow = false;
  double peak_tflop_s = 0;
  MachineRates rates;
  std::vector<BenchStepDepth> depths;
  StepFigures whole;  ///< of all layers: along the line through the first and the last depth

  double ratio(const StepFigures& f) const { return f.pass_ms / f.gemm_ms; }
  double tokens_per_s(const StepFigures& f) const {
    return static_cast<double>(tokens) / (f.pass_ms + f.update_ms) * 1e3;
  }
  /// 6 FLOPs per token and parameter of a matrix product over the time of forward and backward, as a share of
  /// the peak; recomputation does not count. 0: no peak known.
  double mfu(const StepFigures& f) const;
  json::Value to_json() const;
  std::string to_text() const;
};

/// Rows that steps take in turn: options.rows, or one of documents of options.lengths.
std::vector<Batch> bench_rows(const BenchStepOptions& options);
/// The first `layers` layers as bench_step() runs them, with random weights.
std::unique_ptr<Engine> bench_engine(Device& device, Communicator& comm, const BenchStepOptions& options,
                                     int64_t layers, const std::vector<Batch>& rows);

/// Said where StepFigures::flat.
std::string flat_note();

/// Throws Error{usage} for depths that the model does not have and slow kernels that are not allowed,
/// Error{resource} where a depth does not fit the device.
BenchStepReport bench_step(Device& device, const BenchStepOptions& options);

}  // namespace deltatune
