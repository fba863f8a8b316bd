// Saving: all ranks write their parts of one folder, in the background where there is memory for a copy.
//
// start() copies the state and returns; a thread of each rank writes the rank's byte ranges of the weight
// files and its own resume file. At step boundaries the ranks tell each other how far they are (poll): when
// every part is on disk, rank 0 writes state.json and renames the folder. One save at a time. Without a copy
// the same threads read the device, and the caller has to finish() before it changes anything. Invariants: a
// checkpoint is visible only when every rank's part is on disk; the communicator is used by the caller's
// thread alone; after an error nothing of the new checkpoint is left and the old ones are whole.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "io/trainer_state.h"
#include "train/engine.h"
#include "train/model_source.h"

namespace deltatune {

struct CheckpointOptions {
  fs::path output_dir;
  DType storage = DType::bf16;  ///< dtype of tensors where there was no input checkpoint
  fs::path side_files;  ///< tokenizer and template where they are not the model folder's; may be empty
  int64_t max_shard_bytes = 5'000'000'000;
  int64_t save_total_limit = 0;  ///< 0: keep all
  bool only_model = false;       ///< without resume state
  bool copies = false;           ///< write from a copy, in the background, where memory is there
};

/// What a save took.
struct SaveReport {
  int64_t step = 0;
  fs::path folder;
  bool background = false;
  double stall_s = 0;  ///< that training stood still for the copy, or, without one, for all of it
  double wait_s = 0;   ///< that the next save or the end of the run waited for this one
  double write_s = 0;  ///< from start to the end of the slowest rank's writing
  int64_t bytes = 0;   ///< of all ranks
};

class CheckpointSaver {
 public:
  /// On a GPU the memory for copies is taken here. Engine and source must outlive it. Throws Error{resource};
  /// Error{model} when the source cannot be saved like this.
  CheckpointSaver(Engine& engine, const ModelSource& source, CheckpointOptions options);
  /// Stops a save that is under way; nothing of it is left.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// All that follows is called by all ranks together. Where one fails, that one throws its error -
  /// Error{resource}, Error{diverged} (NaN in the weights), Error{model} - and the others Error{distributed}.

  /// Starts output_dir/checkpoint-<step>. `state` is the run's own (Trainer::state and more). False: there is
  /// no copy, finish() has to follow. No save may be pending.
  bool start(int64_t step, const json::Value& state, const TrainerState& trainer_state);
  /// A save was started and not reported yet. The same on all ranks.
  bool pending() const { return job_ != nullptr; }
  /// Never waits for the disk; the report once the save is done.
  std::optional<SaveReport> poll();
  /// Waits for the end of a pending save.
  SaveReport finish();

  /// Writes the final model into output_dir itself.
  void save_model(const TrainerState& trainer_state);

 private:
  struct Job;
  struct Parts;
  void open(Job& job);
  std::optional<SaveReport> advance();

  Engine& engine_;
  CheckpointOptions options_;
  std::unique_ptr<Parts> parts_;
  std::unique_ptr<Job> job_;
};

}  // namespace deltatune
