// What a checkpoint folder holds beyond the model, so that a run can go on: CHECKPOINT/deltatune/.
//
// rank-RRRRR-of-NNNNN.safetensors, one per rank: masters, moments, ... under names of the trainer's choice.
// state.json, written last: {"format", "version", "world_size", "files": [a record of each rank's file],
// "weights": [a record of each weight file beside it], "state_xxh3_128", "state": whatever the trainer
// needs}; records as in file_blocks.h. Values that the weight files hold exactly are in no rank's file.
// Invariants: a ResumeState that exists is whole as far as sizes tell; what RankFile and CheckedWeights give
// was checked by its hash. Not done here: making the folder appear at once (save_folder.h), re-cutting parts
// for another world size.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "io/checkpoint_reader.h"
#include "io/file_blocks.h"
#include "io/safetensors.h"
#include "tensor/param_source.h"

namespace deltatune {

inline constexpr const char* resume_folder_name = "deltatune";

/// CHECKPOINT/deltatune/rank-RRRRR-of-NNNNN.safetensors.
fs::path rank_file_path(const fs::path& checkpoint, int rank, int world_size);

/// Writes state.json into the folder, which exists; `ranks` are the records of all ranks' files in order.
/// Throws Error{resource}.
void write_resume_state(const fs::path& checkpoint, const json::Value& state,
                        std::span<const FileBlocks> ranks, std::span<const FileBlocks> weights);

class ResumeState {
 public:
  /// Reads state.json and looks whether every file is there in full size. Throws Error{model}: missing,
  /// truncated or altered files, another format version.
  explicit ResumeState(const fs::path& checkpoint);

  int world_size() const { return static_cast<int>(ranks_.size()); }
  const json::Value& state() const { return state_; }
  const fs::path& checkpoint() const { return checkpoint_; }
  const std::vector<FileBlocks>& ranks() const { return ranks_; }
  const std::vector<FileBlocks>& weights() const { return weights_; }

 private:
  fs::path checkpoint_;
  std::vector<FileBlocks> ranks_;
  std::vector<FileBlocks> weights_;
  json::Value state_;
};

/// One rank's tensors.
class RankFile {
 public:
  /// 0 <= rank < resume.world_size(). Throws Error{model}: the header is malformed or was altered.
  RankFile(const ResumeState& resume, int rank);
  /// nullptr when there is no tensor of that name.
  const StoredTensor* find(std::string_view name) const { return file_.find(name); }
  /// Bytes [begin, begin + to.size()) of a tensor, checked. From several threads at once. Throws
  /// Error{model}.
  void read(const StoredTensor& tensor, size_t begin, std::span<std::byte> to) const;
  /// Where a tensor starts in the file.
  size_t offset(const StoredTensor& tensor) const { return file_.header().data_begin + tensor.begin; }

 private:
  SafetensorsFile file_;
  HashedFile checked_;
};

/// The weights of a checkpoint that is resumed from, each stretch checked as it is read.
class CheckedWeights final : public ParamSource {
 public:
  /// Throws Error{model}: files are missing, or a header was altered.
  explicit CheckedWeights(const ResumeState& resume);
  const TensorInfo* find(std::string_view name) const override { return weights_.find(name); }
  void read(std::string_view name, std::byte* to) const override;
  void read_part(std::string_view name, size_t begin, size_t bytes, std::byte* to) const override;
  size_t next_cut(std::string_view name, size_t begin, size_t most) const override {
    return weights_.next_cut(name, begin, most);
  }

 private:
  HfCheckpoint weights_;
  std::vector<HashedFile> checked_;  ///< of weights_.files()
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
