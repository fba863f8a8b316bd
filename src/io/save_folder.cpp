// The order of renames and fsyncs behind SaveFolder.
#include "io/save_folder.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "io/safetensors.h"

namespace deltatune {
namespace {

constexpr const char* merge_temporary = "deltatune-save.tmp";
constexpr const char* merge_committed = "deltatune-save.commit";
constexpr const char* obsolete_list = ".obsolete";  // in the committed folder: JSON array of files to delete

[[noreturn]] void fail(const std::string& what, const fs::path& path, const std::string& reason) {
  throw Error(ErrorKind::resource, "cannot " + what + " " + path.string() + ": " + reason, path.string(),
              "check the folder's permissions and free space; nothing that existed before was changed");
}

void check(const std::error_code& problem, const char* what, const fs::path& path) {
  if (problem) fail(what, path, problem.message());
}

void rename_path(const fs::path& from, const fs::path& to) {
  std::error_code problem;
  fs::rename(from, to, problem);
  check(problem, "rename", from);
}

void remove_tree(const fs::path& path) {
  std::error_code problem;
  fs::remove_all(path, problem);
  check(problem, "remove", path);
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

fs::path with_suffix(const fs::path& path, const char* suffix) {
  return path.string() + suffix;
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// All files below a folder, relative, sorted; folders too when asked for (deepest last).
std::vector<fs::path> files_below(const fs::path& folder, bool folders) {
  std::vector<fs::path> out;
  std::error_code problem;
  fs::recursive_directory_iterator entries(folder, problem);
  check(problem, "read", folder);
  while (entries != fs::recursive_directory_iterator()) {
    if (entries->is_directory(problem) == folders)
      out.push_back(fs::relative(entries->path(), folder, problem));
    entries.increment(problem);
    check(problem, "read", folder);
  }
  std::sort(out.begin(), out.end());
  return out;
}

void sync_tree(const fs::path& folder) {
  for (const fs::path& file : files_below(folder, false)) sync_path(folder / file);
  for (const fs::path& inner : files_below(folder, true)) sync_path(folder / inner);
  sync_path(folder);
}

// Order of appearance: side files, weights, index.
int rank_of(const fs::path& file) {
  if (file == index_file_name) return 2;
  return file.extension() == ".safetensors" ? 1 : 0;
}

// Files of the model now in `target` that the model in `staged` does not replace by name. Without deleting
// them a reader could take the old ones: model.safetensors goes before an index, an index before other files.
std::vector<std::string> obsolete_files(const fs::path& target, const fs::path& staged) {
  std::vector<std::string> candidates{single_file_name, index_file_name};
  try {
    if (is_there(target / index_file_name)) {
      const json::Value index = json::parse_file((target / index_file_name).string());
      for (const auto& [tensor, shard] : index.at("weight_map").as_object())
        candidates.push_back(shard.as_string());
    }
  } catch (const Error&) {
    log::warn("{} is unreadable; only the file itself is replaced", (target / index_file_name).string());
  }
  const std::vector<fs::path> fresh = files_below(staged, false);
  const bool has_weights =
      std::any_of(fresh.begin(), fresh.end(), [](const fs::path& f) { return rank_of(f) > 0; });
  std::vector<std::string> out;
  for (const std::string& name : candidates) {
    const bool plain =
        name.find('/') == std::string::npos && (name.ends_with(".safetensors") || name == index_file_name);
    if (has_weights && plain && is_there(target / name) && !is_there(staged / name)) out.push_back(name);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// Moves the committed files up. May be entered again after a kill at any point.
void roll_forward(const fs::path& target) {
  const fs::path staged = target / merge_committed;
  std::vector<fs::path> files = files_below(staged, false);
  std::stable_sort(files.begin(), files.end(),
                   [](const fs::path& a, const fs::path& b) { return rank_of(a) < rank_of(b); });
  std::error_code problem;
  if (is_there(staged / index_file_name)) {
    fs::remove(target / index_file_name, problem);
    check(problem, "remove", target / index_file_name);
  }
  if (is_there(staged / obsolete_list)) {
    const json::Value list = json::parse_file((staged / obsolete_list).string());
    for (const json::Value& name : list.as_array()) {
      fs::remove(target / name.as_string(), problem);
      check(problem, "remove", target / name.as_string());
    }
  }
  sync_path(target);
  for (const fs::path& file : files) {
    if (file == obsolete_list) continue;
    if (file == index_file_name) sync_path(target);
    if (file.has_parent_path()) {
      fs::create_directories(target / file.parent_path(), problem);
      check(problem, "create", target / file.parent_path());
    }
    rename_path(staged / file, target / file);
    if (file.has_parent_path()) sync_path((target / file).parent_path());
  }
  sync_path(target);
  remove_tree(staged);
}

// A folder that was to be replaced by two renames and lost the second one.
void restore_replaced(const fs::path& target) {
  const fs::path old = with_suffix(target, ".old.tmp");
  if (!is_there(target) && is_there(old)) rename_path(old, target);
}

// The checkpoint-N.tmp and checkpoint-N.old.tmp folders in `output_dir`.
std::vector<fs::path> temporary_checkpoints(const fs::path& output_dir) {
  std::error_code problem;
  std::vector<fs::path> out;
  fs::directory_iterator entries(output_dir, problem);
  for (; !problem && entries != fs::directory_iterator(); entries.increment(problem)) {
    std::string stem = entries->path().filename().string();
    for (const std::string_view suffix : {".tmp", ".old"}) {
      if (stem.ends_with(suffix)) stem.resize(stem.size() - suffix.size());
    }
    if (entries->path().extension() == ".tmp" && is_checkpoint_name(stem)) out.push_back(entries->path());
  }
  return out;
}

void restore_replaced_checkpoints(const fs::path& output_dir) {
  for (const fs::path& path : temporary_checkpoints(output_dir)) {
    const std::string text = path.string();
    if (text.ends_with(".old.tmp"))
      restore_replaced(text.substr(0, text.size() - std::string_view(".old.tmp").size()));
  }
}

}  // namespace

bool is_checkpoint_name(const std::string& name, int64_t* step) {
  constexpr std::string_view prefix = "checkpoint-";
  if (!name.starts_with(prefix) || name.size() == prefix.size()) return false;
  int64_t number = 0;
  const char* end = name.data() + name.size();
  const auto [at, problem] = std::from_chars(name.data() + prefix.size(), end, number);
  if (problem != std::errc() || at != end || number < 0) return false;
  if (step) *step = number;
  return true;
}

SaveFolder::SaveFolder(fs::path target, SaveMode mode) : target_(std::move(target)), mode_(mode) {
  if (!target_.has_filename()) target_ = target_.parent_path();  // "out/"
  std::error_code problem;
  const fs::path output_dir = mode_ == SaveMode::merge ? target_ : parent_of(target_);
  fs::create_directories(output_dir, problem);
  check(problem, "create", output_dir);
  finish_interrupted_save(target_);
  restore_replaced_checkpoints(output_dir);
  for (const fs::path& stale : temporary_checkpoints(output_dir)) remove_tree(stale);
  temporary_ = mode_ == SaveMode::merge ? target_ / merge_temporary : with_suffix(target_, ".tmp");
  remove_tree(temporary_);
  remove_tree(with_suffix(target_, ".old.tmp"));
  fs::create_directory(temporary_, problem);
  check(problem, "create", temporary_);
}

SaveFolder::~SaveFolder() {
  if (!active_) return;
  std::error_code problem;
  fs::remove_all(temporary_, problem);
  if (problem) log::warn("cannot remove {}: {}", temporary_.string(), problem.message());
}

void SaveFolder::commit() {
  DELTATUNE_ASSERT(active_);
  sync_tree(temporary_);
  mode_ == SaveMode::merge ? commit_merge() : commit_replace();
}

void SaveFolder::commit_replace() {
  const fs::path old = with_suffix(target_, ".old.tmp");
  if (!is_there(target_)) {
    rename_path(temporary_, target_);
    active_ = false;
  } else if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0) {
    // The old content now has the temporary name; the destructor removes it.
  } else if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) {
    rename_path(target_, old);
    try {
      rename_path(temporary_, target_);
    } catch (const Error&) {
      restore_replaced(target_);
      throw;
    }
    active_ = false;
  } else {
    fail("replace", target_, std::strerror(errno));
  }
  sync_path(parent_of(target_));
  std::error_code ignored;  // the new content is in place; leftovers go at the next save
  fs::remove_all(active_ ? temporary_ : old, ignored);
  active_ = false;
}

void SaveFolder::commit_merge() {
  json::Array list;
  for (const std::string& name : obsolete_files(target_, temporary_)) list.emplace_back(name);
  if (!list.empty()) {
    FileWriter writer(temporary_ / obsolete_list);
    writer.write(json::dump(json::Value(std::move(list))));
    writer.close();
    sync_path(temporary_);
  }
  rename_path(temporary_, target_ / merge_committed);
  active_ = false;
  sync_path(target_);
  roll_forward(target_);
}

void finish_interrupted_save(const fs::path& folder) {
  restore_replaced(folder);
  restore_replaced_checkpoints(folder);
  if (!is_there(folder / merge_committed)) return;
  log::warn("finishing a save into {} that was interrupted", folder.string());
  try {
    roll_forward(folder);
  } catch (const Error& e) {
    throw Error(
        ErrorKind::resource,
        "a save into this folder was interrupted and cannot be finished: " + std::string(e.what()),
        folder.string(),
        "make the folder writable: the complete new files are in " + (folder / merge_committed).string());
  }
}

}  // namespace deltatune
