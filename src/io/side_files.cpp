// Which files of a folder belong to a model besides its weights.
#include "io/side_files.h"

#include <algorithm>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "io/save_folder.h"

namespace deltatune {
namespace {

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

void copy_side_files(const fs::path& from, const fs::path& to, const std::string& config_text) {
  if (!from.empty()) {
    for (const fs::path& file : side_files_of(from)) {
      if (file == "config.json" && !config_text.empty()) continue;
      std::error_code problem;
      fs::create_directories((to / file).parent_path(), problem);  // copying reports what went wrong
      copy_file_synced(from / file, to / file);
    }
  }
  if (config_text.empty()) return;
  FileWriter writer(to / "config.json");
  writer.write(config_text);
  writer.close();
}

}  // namespace deltatune
