// Looking up checkpoints; see the header for the cache's layout.
#include "io/model_path.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/format.h"

namespace deltatune {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Ids and revisions become path components: no "..", nothing hidden, no odd characters.
bool is_component(std::string_view text) {
  if (text.empty() || text.size() > 96 || text[0] == '.') return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '-' || c == '_';
  });
}

bool is_id(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return is_component(text);
  return is_component(text.substr(0, slash)) && is_component(text.substr(slash + 1));
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  return text;
}

}  // namespace

fs::path hf_hub_cache() {
  if (const std::string hub = environment("HF_HUB_CACHE"); !hub.empty()) return hub;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string xdg = environment("XDG_CACHE_HOME"); !xdg.empty())
    return fs::path(xdg) / "huggingface" / "hub";
  return fs::path(environment("HOME")) / ".cache" / "huggingface" / "hub";
}

fs::path program_cache() {
  if (const std::string own = environment("DELTATUNE_CACHE"); !own.empty()) return own;
  if (const std::string xdg = environment("XDG_CACHE_HOME"); !xdg.empty()) return fs::path(xdg) / "deltatune";
  if (const std::string home = environment("HOME"); !home.empty())
    return fs::path(home) / ".cache" / "deltatune";
  return {};
}

fs::path resolve_model_path(const std::string& name_or_path, const std::string& revision) {
  if (name_or_path.empty()) {
    throw Error(ErrorKind::usage, "model_name_or_path is empty", "", "give a checkpoint folder");
  }
  if (is_folder(name_or_path)) return name_or_path;
  std::error_code ignored;
  if (fs::exists(name_or_path, ignored)) {
    throw Error(ErrorKind::model, "a checkpoint is a folder, this is a file: " + name_or_path, name_or_path,
                "give the folder that holds config.json and the .safetensors files");
  }
  if (!is_id(name_or_path)) {
    throw Error(ErrorKind::model, "no such folder: " + name_or_path, name_or_path,
                "check model_name_or_path");
  }
  std::string folder_name = "models--" + name_or_path;
  if (const size_t slash = folder_name.find('/'); slash != std::string::npos)
    folder_name.replace(slash, 1, "--");
  const fs::path model = hf_hub_cache() / folder_name;
  const std::string fix = "give a folder, or fetch the model first: `hf download " + name_or_path +
                          "` (deltatune never downloads)";
  if (!is_folder(model)) {
    throw Error(ErrorKind::model,
                format("{} is neither a folder nor a model in the local Hugging Face cache", name_or_path),
                model.string(), fix);
  }
  std::string commit = revision;
  if (const fs::path ref = model / "refs" / revision;
      is_component(revision) && fs::is_regular_file(ref, ignored)) {
    commit = trimmed(read_file(ref));
  }
  const fs::path snapshot = model / "snapshots" / commit;
  if (!is_component(commit) || !is_folder(snapshot)) {
    throw Error(
        ErrorKind::model,
        format("{} is in the local Hugging Face cache, but not its revision {}", name_or_path, revision),
        snapshot.string(), fix);
  }
  return snapshot;
}

}  // namespace deltatune
