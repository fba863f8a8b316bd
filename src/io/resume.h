// What a checkpoint folder holds beyond the model, so that a run can go on: CHECKPOINT/deltatune/.
//
// state.json: {"format", "version", "world_size", "files": [{"name", "bytes", "xxh3_128"}], "state_xxh3_128",
// "state": whatever the trainer needs}; rank-RRRRR-of-NNNNN.safetensors, one per rank: master weights,
// moments, ... under names of the trainer's choice. state.json is written after the rank files and knows
// their sizes and hashes. Invariants: a ResumeState that exists is whole as far as sizes tell; rank() checks
// the hash before it returns. Not done here: making the folder appear at once (save_folder.h), re-cutting
// shards for another world size.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "tensor/param_source.h"

namespace deltatune {

inline constexpr const char* resume_folder_name = "deltatune";

/// Writes this rank's tensors, in their memory dtypes, one at a time; makes the folder if needed. Each rank
/// calls it once, then rank 0 collects the records. Throws Error{resource}.
FileRecord write_resume_rank(const fs::path& checkpoint, int rank, int world_size,
                             std::span<const TensorInfo> tensors, const ParamSource& values);

/// Writes state.json; `ranks` are the records of all ranks in order. Throws Error{resource}.
void write_resume_state(const fs::path& checkpoint, const json::Value& state,
                        std::span<const FileRecord> ranks);

class ResumeState {
 public:
  /// Reads state.json and looks whether every rank's file is there in full size. Throws Error{model}:
  /// missing, truncated or altered files, another format version.
  explicit ResumeState(const fs::path& checkpoint);

  int world_size() const { return static_cast<int>(files_.size()); }
  const json::Value& state() const { return state_; }
  /// One rank's tensors, 0 <= rank < world_size(). Reads the file once to check its hash. Throws
  /// Error{model}.
  SafetensorsFile rank(int rank) const;

 private:
  fs::path folder_;
  std::vector<FileRecord> files_;
  json::Value state_;
};

struct CheckpointFolder {
  int64_t step = 0;
  fs::path path;
};

/// The checkpoint-N folder of the highest N that has a whole model and a whole resume state (by sizes, not
/// hashes). Folders named *.tmp are not looked at; incomplete ones are passed over with a warning.
std::optional<CheckpointFolder> latest_complete_checkpoint(const fs::path& output_dir);

/// Deletes the oldest checkpoint-N folders until `save_total_limit` are left, never one in `keep` and never
/// the newest; deletes nothing when the newest is incomplete or save_total_limit < 1. A kill while deleting
/// leaves a .tmp folder that the next save removes.
void prune_checkpoints(const fs::path& output_dir, int64_t save_total_limit,
                       std::span<const fs::path> keep = {});

}  // namespace deltatune
