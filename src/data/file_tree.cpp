// Trees of std::filesystem and of object listings.
#include "data/file_tree.h"

#include <algorithm>

#include "base/error.h"
#include "base/format.h"

namespace deltatune {
namespace {

[[noreturn]] void unreadable(const fs::path& folder, const std::error_code& failure) {
  throw Error(ErrorKind::data, format("cannot read folder {}: {}", folder.string(), failure.message()),
              "dataset", "check the path and its permissions");
}

// `path` starts with all components of `folder`.
bool lies_below(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

}  // namespace

std::vector<fs::path> LocalTree::files_in(const fs::path& inner) const {
  std::vector<fs::path> out;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(root_ / inner, failure)) {
    std::error_code ignored;
    if (entry.is_regular_file(ignored)) out.push_back(inner / entry.path().filename());
  }
  if (failure) unreadable(root_ / inner, failure);
  return out;
}

std::vector<fs::path> LocalTree::files_below(const fs::path& inner) const {
  std::vector<fs::path> out;
  std::error_code failure;
  const fs::path base = root_ / inner;
  auto at = fs::recursive_directory_iterator(base, fs::directory_options::skip_permission_denied, failure);
  for (; !failure && at != fs::recursive_directory_iterator(); at.increment(failure)) {
    std::error_code ignored;
    if (at->is_regular_file(ignored)) out.push_back(inner / at->path().lexically_relative(base));
  }
  if (failure) unreadable(base, failure);
  return out;
}

bool LocalTree::has_folder(const fs::path& inner) const {
  std::error_code ignored;
  return fs::is_directory(root_ / inner, ignored);
}

std::string LocalTree::text(const fs::path& file) const {
  std::error_code ignored;
  return fs::is_regular_file(root_ / file, ignored) ? read_file(root_ / file) : std::string();
}

RemoteTree::RemoteTree(const std::string& uri) : root_(remote_name(uri)) {
  options_ = uri.substr(root_.size());
  for (const RemoteEntry& entry : remote_files_below(uri)) files_.emplace_back(entry.path);
  while (!root_.empty() && root_.back() == '/') root_.pop_back();
}

std::vector<fs::path> RemoteTree::files_in(const fs::path& inner) const {
  std::vector<fs::path> out;
  for (const fs::path& file : files_) {
    if (file.parent_path() == inner) out.push_back(file);
  }
  return out;
}

std::vector<fs::path> RemoteTree::files_below(const fs::path& inner) const {
  std::vector<fs::path> out;
  for (const fs::path& file : files_) {
    if (file != inner && lies_below(file, inner)) out.push_back(file);
  }
  return out;
}

std::string RemoteTree::text(const fs::path& file) const {
  const bool there = std::find(files_.begin(), files_.end(), file) != files_.end();
  return there ? read_remote(full(file).string()) : std::string();
}

fs::path RemoteTree::full(const fs::path& inner) const {
  return root_ + (inner.empty() ? "" : "/" + inner.string()) + options_;
}

}  // namespace deltatune
