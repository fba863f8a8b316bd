// Opening a checkpoint folder: which files count, and do they agree.
#include "io/checkpoint_reader.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/format.h"
#include "io/part_writer.h"
#include "io/save_folder.h"

namespace deltatune {
namespace {

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

[[noreturn]] void refuse(std::string what, const fs::path& where, std::string fix) {
  throw Error(ErrorKind::model, std::move(what), where.string(), std::move(fix));
}

// A JSON file that must be an object. Sizes of real ones: config below 100 kB, index below 20 MB.
json::Value parse_object(const fs::path& path) {
  constexpr uintmax_t limit = 100'000'000;
  std::error_code problem;
  const uintmax_t size = fs::file_size(path, problem);
  if (problem)
    refuse("cannot read " + path.string() + ": " + problem.message(), path, "check its permissions");
  if (size > limit) {
    refuse(format("{} has {} bytes, the limit is {}", path.filename().string(), size, limit), path,
           "this is not the JSON file that belongs here");
  }
  try {
    json::Value value = json::parse(read_file(path), path.string());
    if (!value.is_object())
      throw Error(ErrorKind::data, format("expected a JSON object, found {}", value.type_name()));
    return value;
  } catch (const Error& e) {
    refuse(path.filename().string() + ": " + std::string(e.what()).substr(0, 400),
           e.where().empty() ? path : fs::path(e.where()), "fetch the file again");
  }
}

std::vector<std::string> file_names(const fs::path& folder) {
  std::vector<std::string> out;
  std::error_code problem;
  fs::directory_iterator entries(folder, problem);
  if (problem) refuse("cannot read the folder: " + problem.message(), folder, "check its permissions");
  for (const fs::directory_entry& entry : entries) out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

// Without config.json: says what the folder is instead.
[[noreturn]] void explain_no_config(const fs::path& folder) {
  std::string latest;
  for (const std::string& name : file_names(folder)) {
    if (name == "adapter_config.json") {
      refuse("this folder holds a LoRA adapter, not a model", folder,
             "merge the adapter into its base model first (PEFT: merge_and_unload)");
    }
    if (name.ends_with(".gguf")) {
      refuse("this folder holds GGUF weights, which are quantised for inference", folder,
             "use the original Hugging Face checkpoint (safetensors)");
    }
    if (name.starts_with("checkpoint-") && is_file(folder / name / "config.json")) latest = name;
  }
  refuse("no config.json in the model folder", folder,
         latest.empty() ? "give a Hugging Face checkpoint folder: config.json, *.safetensors, tokenizer.json"
                        : "there are checkpoints in it: give " + (folder / latest).string());
}

// Without safetensors files: a folder with weights of another kind is an error, one without any weights is
// not.
void explain_no_weights(const fs::path& folder) {
  for (const std::string& name : file_names(folder)) {
    if (name == "adapter_config.json" || name.starts_with("adapter_model.")) {
      refuse("this folder holds a LoRA adapter, not a model", folder,
             "merge the adapter into its base model first (PEFT: merge_and_unload)");
    }
    if (name.ends_with(".gguf")) {
      refuse("this folder holds GGUF weights, which are quantised for inference", folder,
             "use the original Hugging Face checkpoint (safetensors)");
    }
    if (name.starts_with("pytorch_model") || name.ends_with(".pth") || name.ends_with(".ckpt")) {
      refuse("the weights are in pickle files (" + shown(name) + "), which deltatune does not read", folder,
             "convert once with transformers: from_pretrained(folder), then save_pretrained(new_folder)");
    }
  }
}

// Names in an index become paths: only plain names of safetensors files in the folder itself.
void check_shard_name(const std::string& shard, const std::string& tensor, const fs::path& index_path) {
  bool plain = shard.ends_with(".safetensors") && shard.size() <= 255;
  for (const char c : shard) plain = plain && c != '/' && c != '\\' && static_cast<unsigned char>(c) >= 0x20;
  if (!plain || shard.front() == '.') {
    refuse(
        format("the index maps tensor {} to {}, which is no file name of a .safetensors file in the folder",
               shown(tensor), shown(shard)),
        index_path, "fetch the index file again");
  }
}

std::string list(std::span<const std::string> names) {
  constexpr size_t listed = 20;
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), listed); ++i) out += (i ? ", " : "") + names[i];
  if (names.size() > listed) out += format(" and {} more", names.size() - listed);
  return out;
}

}  // namespace

HfCheckpoint::HfCheckpoint(const fs::path& folder) : folder_(folder) {
  finish_interrupted_save(folder);
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) refuse("no such model folder", folder, "check model_name_or_path");
  if (!is_file(folder / "config.json")) explain_no_config(folder);
  config_ = parse_object(folder / "config.json");
  if (is_file(folder / index_file_name)) {
    open_indexed(folder / index_file_name);
  } else {
    open_single();
  }
  for (size_t f = 0; f < files_.size(); ++f) {
    readers_.emplace_back(files_[f].path());
    for (const StoredTensor& tensor : files_[f].tensors()) {
      const std::optional<DType> dtype = dtype_from_safetensors(tensor.dtype);
      places_.emplace(
          tensor.name,
          Place{f, &tensor, {tensor.name, dtype.value_or(DType::u8), tensor.shape}, dtype.has_value()});
    }
  }
}

void HfCheckpoint::open_single() {
  if (is_file(folder_ / single_file_name)) {
    files_.emplace_back(folder_ / single_file_name);
    return;
  }
  std::vector<std::string> found;
  for (const std::string& name : file_names(folder_)) {
    if (name.ends_with(".safetensors") && !name.starts_with("adapter_") && is_file(folder_ / name)) {
      found.push_back(name);
    }
  }
  if (found.size() > 1) {
    refuse(format("{} .safetensors files and no {}: {}", found.size(), index_file_name, list(found)), folder_,
           "fetch the index file, or leave only one .safetensors file");
  }
  if (found.empty()) return explain_no_weights(folder_);
  files_.emplace_back(folder_ / found[0]);
}

void HfCheckpoint::open_indexed(const fs::path& index_path) {
  index_ = parse_object(index_path);
  const json::Value* weight_map = index_.find("weight_map");
  if (!weight_map || !weight_map->is_object() || weight_map->as_object().empty()) {
    refuse("the index has no weight_map", index_path, "fetch the index file again");
  }
  std::map<std::string, std::vector<std::string>> mapped;  // file -> tensors
  std::map<std::string_view, std::string_view> shard_of;
  for (const auto& [tensor, shard] : weight_map->as_object()) {
    if (!shard.is_string())
      refuse("the index maps tensor " + shown(tensor) + " to no file name", index_path,
             "fetch the index file again");
    check_shard_name(shard.as_string(), tensor, index_path);
    mapped[shard.as_string()].push_back(tensor);
    shard_of.emplace(tensor, shard.as_string());
  }
  std::vector<std::string> missing;
  for (const auto& [shard, tensors] : mapped) {
    if (!is_file(folder_ / shard)) missing.push_back(shard);
  }
  if (!missing.empty()) {
    refuse(format("{} of {} weight files are missing: {}", missing.size(), mapped.size(), list(missing)),
           folder_,
           "incomplete download? Fetch the missing files; a file that was renamed needs its own index");
  }
  for (const auto& [shard, tensors] : mapped) {
    files_.emplace_back(folder_ / shard);
    const SafetensorsFile& file = files_.back();
    for (const std::string& tensor : tensors) {
      if (file.find(tensor)) continue;
      refuse(
          format("the index maps tensor {} to {}, whose header lacks it", shown(tensor), shard),
          folder_ / shard,
          "index and files are of different revisions or a download was interrupted: fetch the model again");
    }
    for (const StoredTensor& tensor : file.tensors()) {
      const auto found = shard_of.find(tensor.name);
      if (found != shard_of.end() && found->second == shard) continue;
      refuse(found == shard_of.end()
                 ? format("{} holds tensor {}, which the index does not list", shard, shown(tensor.name))
                 : format("tensor {} is in {}, but the index maps it to {}", shown(tensor.name), shard,
                          found->second),
             folder_ / shard, "index and files are of different revisions: fetch the model again");
    }
  }
}

const HfCheckpoint::Place& HfCheckpoint::place(std::string_view name) const {
  const auto found = places_.find(name);
  if (found != places_.end()) return found->second;
  refuse("the checkpoint has no tensor " + shown(name), folder_,
         "check that config.json and the weights belong together");
}

std::vector<std::string> HfCheckpoint::names() const {
  std::vector<std::string> out;
  for (const auto& [name, unused] : places_) out.push_back(name);
  return out;
}

const TensorInfo* HfCheckpoint::find(std::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() || !found->second.known_dtype ? nullptr : &found->second.info;
}

void HfCheckpoint::read(std::string_view name, std::byte* to) const {
  read_part(name, 0, place(name).tensor->size, to);
}

void HfCheckpoint::read_part(std::string_view name, size_t begin, size_t bytes, std::byte* to) const {
  const Place& at = place(name);
  DELTATUNE_ASSERT(begin <= at.tensor->size && bytes <= at.tensor->size - begin);
  try {
    readers_[at.file].read(file_and_offset(name).second + begin, {to, bytes});
  } catch (const Error& e) {
    throw Error(ErrorKind::model, e.what(), e.where(), e.fix());
  }
}

size_t HfCheckpoint::next_cut(std::string_view name, size_t begin, size_t most) const {
  const Place& at = place(name);
  const size_t left = at.tensor->size - begin;
  const size_t unit = at.known_dtype ? size_of(at.info.dtype) : 1;
  return begin + std::min(most, first_stretch(file_and_offset(name).second + begin, left, unit));
}

std::pair<size_t, size_t> HfCheckpoint::file_and_offset(std::string_view name) const {
  const Place& at = place(name);
  return {at.file, files_[at.file].header().data_begin + at.tensor->begin};
}

const StoredTensor* HfCheckpoint::stored(std::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : found->second.tensor;
}

std::span<const std::byte> HfCheckpoint::bytes(std::string_view name) const {
  const Place& at = place(name);
  return files_[at.file].bytes(*at.tensor);
}

void HfCheckpoint::drop(std::string_view name) const {
  const Place& at = place(name);
  files_[at.file].drop(files_[at.file].bytes(*at.tensor));
}

void HfCheckpoint::check_trainable() const {
  const std::string fix = "fine-tune the unquantised checkpoint (BF16, F16 or F32)";
  const json::Value* text_config = config_.find("text_config");
  for (const json::Value* config : {&config_, text_config}) {
    if (!config) continue;
    for (const char* key : {"quantization_config", "compression_config"}) {
      const json::Value* quantised = config->find(key);
      if (!quantised || quantised->is_null()) continue;
      const json::Value* method = quantised->find("quant_method");
      refuse(format("the checkpoint is quantised{}: config.json has {}",
                    method && method->is_string() ? " (" + method->as_string() + ")" : "", key),
             folder_ / "config.json", fix);
    }
  }
  for (const auto& [name, at] : places_) {
    const fs::path& file = files_[at.file].path();
    if (name.find(".lora_A.") != std::string::npos || name.find(".lora_B.") != std::string::npos) {
      refuse("the checkpoint holds LoRA tensors: " + shown(name), file,
             "merge the adapter into the base model first (PEFT: merge_and_unload)");
    }
    if (at.tensor->dtype.starts_with("F8_") || at.tensor->dtype.starts_with("F6_") ||
        at.tensor->dtype == "F4") {
      refuse(format("the checkpoint is quantised: tensor {} is {}", shown(name), at.tensor->dtype), file,
             fix);
    }
    for (const char* end :
         {"_scale", "_scale_inv", ".scales", ".qweight", ".qzeros", ".weight_packed", ".absmax"}) {
      if (name.ends_with(end)) refuse("the checkpoint is quantised: it has tensor " + shown(name), file, fix);
    }
  }
}

}  // namespace deltatune
