// From a source checkpoint and trained values to a folder.
#include "io/checkpoint_writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "io/finite.h"
#include "io/safetensors_writer.h"

namespace deltatune {
namespace {

constexpr size_t copy_block = size_t{16} << 20;
constexpr int64_t convert_block = 1 << 20;  // elements

int64_t count_of(std::span<const int64_t> shape) {
  int64_t out = 1;
  for (const int64_t size : shape) out *= size;
  return out;
}

double value_at(DType dtype, const std::byte* data, int64_t i) {
  double out = 0;
  convert(&out, DType::f64, data + static_cast<size_t>(i) * size_of(dtype), dtype, 1);
  return out;
}

// `written` holds elements [begin, begin + n) of the tensor as they would go to the file.
void refuse_nonfinite(const StoredTensor& target, DType file_dtype, std::span<const std::byte> written,
                      int64_t begin, DType memory_dtype, const std::byte* memory) {
  const NonFinite found = count_nonfinite(file_dtype, written);
  if (!found.any()) return;
  const int64_t at = begin + found.first;
  const double value = value_at(memory_dtype, memory, at);
  const std::string place = format("tensor {}, element {}", target.name, at);
  if (!std::isfinite(value)) {
    throw Error(
        ErrorKind::diverged,
        format("refusing to save: {} is {}", shown(target.name), std::isnan(value) ? "NaN" : "infinite"),
        place, "training has diverged: go back to an earlier checkpoint and lower learning_rate");
  }
  throw Error(ErrorKind::model,
              format("refusing to save: {} has become {}, which {} cannot hold", shown(target.name), value,
                     target.dtype),
              place, "start from a BF16 or F32 copy of the checkpoint, whose range is larger");
}

// Reads one trained tensor and gives it to the writer in the file's dtype.
void write_trained(SafetensorsWriter& writer, const StoredTensor& target, const ParamSource& values) {
  const TensorInfo* info = values.find(target.name);
  if (!info || info->shape != target.shape) {
    throw Error(ErrorKind::internal, info
                                         ? format("{} has shape {} in memory and {} in the file",
                                                  shown(target.name), shown(info->shape), shown(target.shape))
                                         : "no value for trained tensor " + shown(target.name));
  }
  const std::optional<DType> file_dtype = dtype_from_safetensors(target.dtype);
  if (!file_dtype || *file_dtype == DType::i32 || *file_dtype == DType::i64 || *file_dtype == DType::u8) {
    throw Error(ErrorKind::model,
                format("trained tensor {} is stored as {}", shown(target.name), target.dtype), target.name,
                "use a checkpoint in BF16, F16 or F32");
  }
  const int64_t count = count_of(target.shape);
  std::vector<std::byte> memory(static_cast<size_t>(count) * size_of(info->dtype));
  values.read(target.name, memory.data());
  std::vector<std::byte> block(static_cast<size_t>(std::min(count, convert_block)) * size_of(*file_dtype));
  for (int64_t begin = 0; begin < count; begin += convert_block) {
    const int64_t n = std::min(convert_block, count - begin);
    convert(block.data(), *file_dtype, memory.data() + static_cast<size_t>(begin) * size_of(info->dtype),
            info->dtype, n);
    const auto written =
        std::span<const std::byte>(block).first(static_cast<size_t>(n) * size_of(*file_dtype));
    refuse_nonfinite(target, *file_dtype, written, begin, info->dtype, memory.data());
    writer.write(written);
  }
}

void copy_bytes(SafetensorsWriter& writer, const SafetensorsFile& file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::span<const std::byte> block = bytes.first(std::min(bytes.size(), copy_block));
    writer.write(block);
    file.drop(block);
    bytes = bytes.subspan(block.size());
  }
}

using WeightMap = std::map<std::string, std::string>;  // sorted by name, as the index is

void write_index(const fs::path& folder, const json::Value* old_metadata, int64_t total_size,
                 const WeightMap& map) {
  json::Value metadata = json::Object{};
  if (old_metadata && old_metadata->is_object()) metadata = *old_metadata;
  metadata.set("total_size", total_size);
  json::Object weight_map;
  for (const auto& [name, file] : map) weight_map.emplace_back(name, file);
  json::Value index;
  index.set("metadata", std::move(metadata));
  index.set("weight_map", std::move(weight_map));
  FileWriter writer(folder / index_file_name);
  writer.write(json::dump(index, 2) + "\n");
  writer.close();
}

void write_like_source(const fs::path& folder, const HfCheckpoint& source,
                       std::span<const TensorInfo> trained, const ParamSource& values) {
  std::set<std::string_view> trained_names;
  for (const TensorInfo& info : trained) {
    trained_names.insert(info.name);
    if (source.stored(info.name)) continue;
    throw Error(ErrorKind::model, "trained tensor " + shown(info.name) + " is not in the input checkpoint",
                source.folder().string(), "check that config.json and the weights belong together");
  }
  WeightMap map;
  int64_t total = 0;
  for (const SafetensorsFile& file : source.files()) {
    const std::string name = file.path().filename().string();
    SafetensorsWriter writer(folder / name, file);
    for (const StoredTensor& tensor : writer.tensors()) {
      if (trained_names.count(tensor.name)) {
        write_trained(writer, tensor, values);
      } else {
        copy_bytes(writer, file, file.bytes(tensor));
      }
      map.emplace(tensor.name, name);
      total += static_cast<int64_t>(tensor.size);
    }
    writer.close();
    log::debug("wrote {}", (folder / name).string());
  }
  if (source.has_index()) write_index(folder, source.index().find("metadata"), total, map);
}

void write_new(const fs::path& folder, std::span<const TensorInfo> tensors, const ParamSource& values,
               int64_t max_shard_bytes) {
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
  WeightMap map;
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string name = shards.size() == 1
                                 ? single_file_name
                                 : format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    SafetensorsWriter writer(folder / name, shards[s]);
    for (const StoredTensor& tensor : writer.tensors()) {
      write_trained(writer, tensor, values);
      map.emplace(tensor.name, name);
    }
    writer.close();
    log::debug("wrote {}", (folder / name).string());
  }
  if (shards.size() > 1) write_index(folder, nullptr, total, map);
}

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return name.ends_with(end); });
}

bool is_any(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_side_file(std::string_view name) {
  // Weights of any format and their indexes.
  if (ends_with_any(
          name, {".safetensors", ".bin", ".pth", ".pt", ".ckpt", ".gguf", ".ggml", ".h5", ".msgpack", ".onnx",
                 ".ot", ".npz", ".safetensors.index.json", ".bin.index.json"})) {
    return false;
  }
  if (name.starts_with("consolidated")) return false;
  // What a training run or an interrupted download leaves behind.
  if (ends_with_any(name, {".tmp", ".lock", ".incomplete"})) return false;
  return !is_any(name, {"trainer_state.json", "config.resolved.yaml", "run.json", "metrics.jsonl",
                        "metrics.prom", "report.html"});
}

bool is_side_folder(const std::string& name) {
  return !name.starts_with(".") && !name.ends_with(".tmp") && !is_checkpoint_name(name) &&
         !name.starts_with("checkpoint-") &&
         !is_any(name,
                 {"deltatune", "deltatune-save.commit", "runs", "trace", "original", "onnx", "__pycache__"});
}

// The side files of one sub-folder; nothing when they are more than a checkpoint's documentation.
void add_sub_folder(const fs::path& folder, const fs::path& inner, std::vector<fs::path>& out) {
  constexpr uintmax_t limit = 100'000'000;
  std::error_code problem;
  // A training run whose output_dir lies inside the model folder is not part of the model.
  if (fs::exists(folder / inner / "run.json", problem)) return;
  std::vector<fs::path> found;
  uintmax_t bytes = 0;
  fs::recursive_directory_iterator entries(folder / inner, problem);
  for (; !problem && entries != fs::recursive_directory_iterator(); entries.increment(problem)) {
    const std::string name = entries->path().filename().string();
    if (entries->is_directory(problem)) {
      if (!is_side_folder(name)) entries.disable_recursion_pending();
    } else if (entries->is_regular_file(problem) && is_side_file(name)) {
      found.push_back(entries->path().lexically_relative(folder));
      bytes += entries->file_size(problem);
    }
  }
  if (problem) {
    throw Error(ErrorKind::model, "cannot read " + (folder / inner).string() + ": " + problem.message(),
                (folder / inner).string(), "check its permissions");
  }
  if (bytes > limit) {
    log::warn("{} is not copied: {} of files", (folder / inner).string(), format_bytes(bytes));
    return;
  }
  out.insert(out.end(), found.begin(), found.end());
}

}  // namespace

std::vector<fs::path> side_files_of(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code problem;
  for (fs::directory_iterator entries(folder, problem), end; !problem && entries != end;
       entries.increment(problem)) {
    const std::string name = entries->path().filename().string();
    std::error_code ignored;
    if (entries->is_regular_file(ignored)) {
      if (is_side_file(name)) out.emplace_back(name);
    } else if (entries->is_directory(ignored) && !entries->is_symlink(ignored) && is_side_folder(name)) {
      add_sub_folder(folder, name, out);
    }
  }
  if (problem) {
    throw Error(ErrorKind::model, "cannot read the folder: " + problem.message(), folder.string(),
                "check its permissions");
  }
  std::sort(out.begin(), out.end());
  return out;
}

void write_hf(const fs::path& folder, const HfCheckpoint* source, std::span<const TensorInfo> trained,
              const ParamSource& values, const SaveOptions& options) {
  if (source && source->has_weights()) {
    write_like_source(folder, *source, trained, values);
  } else {
    write_new(folder, trained, values, options.max_shard_bytes);
  }
  fs::path side = options.side_files;
  if (side.empty() && source) side = source->folder();
  if (!side.empty()) {
    for (const fs::path& file : side_files_of(side)) {
      if (file == "config.json" && !options.config_text.empty()) continue;
      std::error_code problem;
      fs::create_directories((folder / file).parent_path(), problem);  // copying reports what went wrong
      copy_file_synced(side / file, folder / file);
    }
  }
  if (!options.config_text.empty()) {
    FileWriter writer(folder / "config.json");
    writer.write(options.config_text);
    writer.close();
  }
}

void save_hf(const fs::path& out_dir, SaveMode mode, const HfCheckpoint* source,
             std::span<const TensorInfo> trained, const ParamSource& values, const SaveOptions& options) {
  SaveFolder folder(out_dir, mode);
  write_hf(folder.path(), source, trained, values, options);
  folder.commit();
}

}  // namespace deltatune
