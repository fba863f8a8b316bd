// Files like the source's, or new ones.
#include "io/weight_files.h"

#include <map>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "io/safetensors_head.h"

namespace deltatune {
namespace {

using WeightMap = std::map<std::string, std::string>;  // sorted by name, as the index is

std::string index_text(const json::Value* old_metadata, int64_t total_size, const WeightMap& map) {
  json::Value metadata = json::Object{};
  if (old_metadata && old_metadata->is_object()) metadata = *old_metadata;
  metadata.set("total_size", total_size);
  json::Object weight_map;
  for (const auto& [name, file] : map) weight_map.emplace_back(name, file);
  json::Value index;
  index.set("metadata", std::move(metadata));
  index.set("weight_map", std::move(weight_map));
  return json::dump(index, 2) + "\n";
}

void check_trained(const HfCheckpoint& source, std::span<const TensorInfo> trained) {
  for (const TensorInfo& info : trained) {
    const StoredTensor* stored = source.stored(info.name);
    if (!stored) {
      throw Error(ErrorKind::model, "trained tensor " + shown(info.name) + " is not in the input checkpoint",
                  source.folder().string(), "check that config.json and the weights belong together");
    }
    const std::optional<DType> dtype = dtype_from_safetensors(stored->dtype);
    if (!dtype || *dtype == DType::i32 || *dtype == DType::i64 || *dtype == DType::u8) {
      throw Error(ErrorKind::model,
                  format("trained tensor {} is stored as {}", shown(info.name), stored->dtype), info.name,
                  "use a checkpoint in BF16, F16 or F32");
    }
  }
}

WeightFiles like_source(const HfCheckpoint& source) {
  WeightFiles out;
  WeightMap map;
  int64_t total = 0;
  for (const SafetensorsFile& file : source.files()) {
    WeightFile made;
    made.name = file.path().filename().string();
    made.head.assign(reinterpret_cast<const char*>(file.head().data()), file.head().size());
    made.size = file.all().size();
    for (const StoredTensor* tensor : in_data_order(file.tensors())) {
      made.tensors.push_back(*tensor);
      map.emplace(tensor->name, made.name);
      total += static_cast<int64_t>(tensor->size);
    }
    out.files.push_back(std::move(made));
  }
  if (source.has_index()) out.index = index_text(source.index().find("metadata"), total, map);
  return out;
}

WeightFiles new_files(std::span<const TensorInfo> tensors, int64_t max_shard_bytes) {
  std::vector<std::vector<PlannedTensor>> shards(1);
  int64_t total = 0;
  int64_t in_shard = 0;
  for (const TensorInfo& info : tensors) {
    PlannedTensor planned{info.name, safetensors_name(info.dtype), info.shape};
    const auto size = static_cast<int64_t>(stored_bytes(planned.dtype, planned.shape).value());
    if (in_shard > 0 && in_shard + size > max_shard_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(std::move(planned));
    in_shard += size;
    total += size;
  }
  WeightFiles out;
  WeightMap map;
  for (size_t s = 0; s < shards.size(); ++s) {
    WeightFile made;
    made.name = shards.size() == 1 ? single_file_name
                                   : format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    made.tensors = place_tensors(shards[s]);
    made.head = safetensors_head(made.tensors);
    made.size = made.head.size();
    for (const StoredTensor& tensor : made.tensors) {
      map.emplace(tensor.name, made.name);
      made.size += tensor.size;
    }
    out.files.push_back(std::move(made));
  }
  if (shards.size() > 1) out.index = index_text(nullptr, total, map);
  return out;
}

}  // namespace

const StoredTensor* WeightFiles::find(std::string_view name) const {
  for (const WeightFile& file : files) {
    for (const StoredTensor& tensor : file.tensors) {
      if (tensor.name == name) return &tensor;
    }
  }
  return nullptr;
}

WeightFiles plan_weight_files(const HfCheckpoint* source, std::span<const TensorInfo> trained,
                              int64_t max_shard_bytes) {
  if (!source || !source->has_weights()) return new_files(trained, max_shard_bytes);
  check_trained(*source, trained);
  return like_source(*source);
}

}  // namespace deltatune
