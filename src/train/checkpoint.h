// Saving and resuming a run: a checkpoint-N folder is a Hugging Face checkpoint plus deltatune/ with
// everything that goes on from there to the same bits (masters, moments, counters, data cursor). Formats:
// io/.
#pragma once

#include <cstdint>
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
};

/// Writes output_dir/checkpoint-<step>: complete or not at all. `state` is the run's own (Trainer::state and
/// more). All ranks call it together: rank 0 writes the model, each its own part of the state, and the folder
/// appears when all of it is on disk. Returns the folder. Throws Error{resource} (nothing that was there
/// before is lost) and Error{diverged}; where another rank failed, Error{distributed}.
fs::path save_checkpoint(const CheckpointOptions&, Engine&, const ModelSource&, int64_t step,
                         const json::Value& state, const TrainerState&);

/// Writes the final model into output_dir itself; all ranks together.
void save_model(const CheckpointOptions&, Engine&, const ModelSource&, const TrainerState&);

/// What `resume_from_checkpoint` names: "" none, "true" the latest complete one of output_dir (none:
/// nullopt), else a folder.
std::optional<fs::path> find_resume(const std::string& wish, const fs::path& output_dir);

/// Fills the store with a checkpoint's masters and moments, whatever number of ranks wrote it, and returns
/// the run's state. Throws Error{model} when it is damaged or of another model.
json::Value load_checkpoint(const fs::path& checkpoint, Engine&);

}  // namespace deltatune
