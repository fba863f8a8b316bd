// One optimizer step: an accumulation window of micro-batches, one update. The loop around it is run.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "data/row_stream.h"
#include "train/engine.h"
#include "train/model_flops.h"
#include "train/nonfinite.h"
#include "train/schedule.h"
#include "train/step_roofline.h"

namespace deltatune {

/// What one step did, on all ranks together: a value, nothing refers back.
struct StepReport {
  int64_t step = 0;     ///< finished steps, this one included
  double epoch = 0;     ///< position in the data after it
  double loss_sum = 0;  ///< over the window's targets
  int64_t targets = 0;  ///< supervised targets
  int64_t tokens = 0;   ///< tokens of documents
  int64_t slots = 0;    ///< micro-batches x T
  int64_t documents = 0;
  RowWork work;                 ///< what MFU counts
  double roofline_seconds = 0;  ///< mean over ranks, see StepRoofline; 0: there is none
  double matmul_seconds = 0;    ///< likewise
  double grad_norm = 0;         ///< of the mean loss, before clipping
  double learning_rate = 0;
  double seconds = 0;              ///< of this rank
  double data_seconds = 0;         ///< of which waiting for batches
  double comm_seconds = 0;         ///< in which the device has waited for other ranks; below 0: not measured
  double host_bound_seconds = -1;  ///< see LaunchMeter; below 0: not measured
  bool nonfinite = false;          ///< loss or gradient: nothing was updated, with release not all
  std::vector<int> nonfinite_ranks;  ///< whose it was; empty: alone, or not known
  NonfiniteOrigin nonfinite_origin;  ///< where it began
  bool empty = false;                ///< no target in the whole window: nothing was updated

  double loss() const { return targets > 0 ? loss_sum / static_cast<double>(targets) : 0; }
};

class Trainer {
 public:
  /// Engine and stream must outlive it. total_steps: the length of the schedule and of the run.
  Trainer(Engine& engine, RowStream& stream, Schedule schedule, int64_t accumulation);
  /// From now on reports have roofline times, of `rows`, which must outlive the trainer. On all ranks or
  /// none.
  void measure_roofline(StepRoofline& rows) { roofline_ = &rows; }

  /// Runs the next step. A window whose loss or gradient is not finite changes neither weights nor moments
  /// (with gradient release: no more of them, see Engine::single_step); so does one without any target.
  StepReport step();
  int64_t steps_done() const { return steps_done_; }
  /// Steps that changed the weights.
  int64_t updates_done() const { return updates_done_; }
  bool done() const { return steps_done_ >= schedule_.total_steps; }
  const Schedule& schedule() const { return schedule_; }

  /// The integers of a resumable run: steps, updates, data cursor. Weights and moments are
  /// ParamStore::state().
  json::Value state() const;
  /// Throws Error{model} for a state of another shape, Error{data} when the data has changed.
  void restore(const json::Value& state);

 private:
  Batch next_row(StepReport& report);
  void sum_counts(StepReport& report);
  UpdateResult accumulate_and_update(StepReport& report);
  UpdateResult update_inside_backward(StepReport& report);

  Engine& engine_;
  RowStream& stream_;
  Schedule schedule_;
  int64_t accumulation_;
  StepRoofline* roofline_ = nullptr;
  int64_t steps_done_ = 0;
  int64_t updates_done_ = 0;  ///< the n of the bias corrections: skipped steps do not count
};

}  // namespace deltatune
