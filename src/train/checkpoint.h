// Finding and loading the checkpoint of a run that goes on. A checkpoint-N folder is a Hugging Face
// checkpoint plus deltatune/ with everything that goes on from there to the same bits (masters, moments,
// counters, data cursor). Formats: io/; writing: checkpoint_saver.h.
#pragma once

#include <optional>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "train/engine.h"

namespace deltatune {

/// What `resume_from_checkpoint` names: "" none, "true" the latest complete one of output_dir (none:
/// nullopt), else a folder.
std::optional<fs::path> find_resume(const std::string& wish, const fs::path& output_dir);

/// Fills the store with a checkpoint's masters and moments, whatever number of ranks wrote it, and returns
/// the run's state. A rank reads just the stretches of the files that it needs, and checks their hashes. Not
/// collective. Throws Error{model} when it is damaged or of another model.
json::Value load_checkpoint(const fs::path& checkpoint, Engine&);

}  // namespace deltatune
