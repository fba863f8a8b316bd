// A Hugging Face checkpoint folder: config.json and safetensors files, with or without an index.
//
// Rules: model.safetensors.index.json decides which files belong to the checkpoint, whatever their names;
// other files are ignored. Without an index: model.safetensors, or the only .safetensors file. An index must
// agree with the files: every mapped tensor is in its file, every tensor of those files is mapped.
// Invariants: a HfCheckpoint that exists was checked in full except for the values; nothing is resident but
// headers (data is memory-mapped). All functions are const and may be called from several threads.
// Not done here: whether the names fit a model (tensor_names.h), finding cached ids (model_path.h).
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "tensor/param_source.h"

namespace deltatune {

class HfCheckpoint final : public ParamSource {
 public:
  /// Opens `folder` and checks it as said above. A folder with config.json and no weights at all is allowed
  /// (init: random). A save into this folder that was interrupted after its point of no return is completed
  /// first (save_folder.h). Throws Error{model}: missing shards (all listed), stale index, several files
  /// without index, malformed files, only weights of another format (pickle, GGUF, adapter).
  explicit HfCheckpoint(const fs::path& folder);

  const fs::path& folder() const { return folder_; }
  bool has_weights() const { return !files_.empty(); }
  bool has_index() const { return !index_.is_null(); }
  /// config.json, an object.
  const json::Value& config() const { return config_; }
  /// The index, an object; null without one.
  const json::Value& index() const { return index_; }
  /// The weight files by name.
  const std::vector<SafetensorsFile>& files() const { return files_; }
  /// All tensor names, sorted.
  std::vector<std::string> names() const;

  /// ParamSource. Only tensors whose dtype DType has are found; the others are seen through stored().
  const TensorInfo* find(std::string_view name) const override;
  void read(std::string_view name, std::byte* to) const override;
  void read_part(std::string_view name, size_t begin, size_t bytes, std::byte* to) const override;
  size_t next_cut(std::string_view name, size_t begin, size_t most) const override;
  /// Where a tensor's bytes start in its file, and which of files() that is. Throws Error{model} for a name
  /// that is not there.
  std::pair<size_t, size_t> file_and_offset(std::string_view name) const;

  /// Any tensor as the file describes it; nullptr when there is none.
  const StoredTensor* stored(std::string_view name) const;
  /// The bytes of any tensor, perhaps unaligned, valid as long as this object. Throws Error{model} for a name
  /// that is not there.
  std::span<const std::byte> bytes(std::string_view name) const;
  /// Releases the memory that reading a tensor's bytes() made resident.
  void drop(std::string_view name) const;

  /// Throws Error{model} for a checkpoint that full fine-tuning cannot start from: quantised
  /// (quantization_config, FP8 or smaller dtypes, scale tensors) or with LoRA tensors in it.
  void check_trainable() const;

 private:
  struct Place {
    size_t file;
    const StoredTensor* tensor;
    TensorInfo info;
    bool known_dtype;
  };
  void open_indexed(const fs::path& index_path);
  void open_single();
  const Place& place(std::string_view name) const;

  fs::path folder_;
  json::Value config_;
  json::Value index_;
  std::vector<SafetensorsFile> files_;
  std::vector<RangeReader> readers_;  ///< of files_
  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace deltatune
