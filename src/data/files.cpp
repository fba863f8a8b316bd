// Expands dataset entries with std::filesystem and POSIX glob().
#include "data/files.h"

#include <glob.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/format.h"
#include "data/dataset_folder.h"
#include "data/file_tree.h"
#include "data/remote_files.h"
#include "data/row_source.h"

namespace deltatune {
namespace {

// POSIX glob() knows no "**": such a pattern is matched below the folder before its first wildcard.
std::vector<fs::path> matches_below(const std::string& pattern) {
  fs::path base;
  fs::path rest;
  for (const fs::path& part : fs::path(pattern)) {
    const bool plain = rest.empty() && part.string().find_first_of("*?[") == std::string::npos;
    plain ? base /= part : rest /= part;
  }
  if (base.empty()) base = ".";
  std::error_code ignored;
  if (!fs::is_directory(base, ignored)) return {};
  return files_matching(LocalTree(base), "", rest.string());
}

std::vector<fs::path> matches_of(const std::string& pattern) {
  if (pattern.find("**") != std::string::npos) return matches_below(pattern);
  glob_t found{};
  const int result = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<fs::path> out;
  for (size_t i = 0; result == 0 && i < found.gl_pathc; ++i) out.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  std::sort(out.begin(), out.end());
  return out;
}

// The objects that a URI names: itself, those of a folder, or those that match.
std::vector<fs::path> expand_remote(const std::string& uri, const std::string& split) {
  const std::string name = remote_name(uri);
  if (const size_t wildcard = name.find_first_of("*["); wildcard != std::string::npos) {
    const size_t base_end = name.rfind('/', wildcard);
    const RemoteTree tree(name.substr(0, base_end) + uri.substr(name.size()));
    std::vector<fs::path> out = files_matching(tree, "", name.substr(base_end + 1));
    if (!out.empty()) return out;
  } else if (name.back() != '/' && remote_file_exists(uri)) {
    return {uri};
  } else if (const RemoteTree tree(uri); !tree.empty()) {
    return dataset_folder_files(tree, split);
  }
  throw Error(ErrorKind::data, format("nothing is called {}, and nothing lies below it", name), "dataset",
              "check the URI, and that the credentials may list the bucket");
}

std::vector<fs::path> expand(const std::string& given, const std::string& split) {
  check_uri(given);
  if (is_remote(given)) return expand_remote(given, split);
  const std::string entry = local_path(given);
  std::error_code ignored;
  if (fs::is_directory(entry, ignored)) return dataset_folder_files(LocalTree(entry), split);
  if (fs::exists(entry, ignored)) return {entry};
  std::vector<fs::path> out;
  if (entry.find_first_of("*?[") != std::string::npos) {
    for (const fs::path& match : matches_of(entry)) {
      if (!fs::is_directory(match, ignored)) {
        out.push_back(match);
        continue;
      }
      const std::vector<fs::path> inside = dataset_folder_files(LocalTree(match), split);
      out.insert(out.end(), inside.begin(), inside.end());
    }
  }
  if (out.empty()) {
    throw Error(ErrorKind::data, format("no such file or folder: {}", entry), "dataset",
                "check the path; ids of the hub are not looked up");
  }
  return out;
}

}  // namespace

std::vector<fs::path> dataset_files(const std::vector<std::string>& entries, const std::string& split) {
  if (entries.empty()) {
    throw Error(ErrorKind::usage, "no dataset given", "dataset",
                "dataset: [file.jsonl, folder, \"part-*.jsonl\"]");
  }
  std::vector<fs::path> out;
  std::map<fs::path, std::string> seen;  // entry that named it
  std::map<fs::path, fs::path> forms;    // by name without compression
  for (const std::string& entry : entries) {
    for (const fs::path& path : expand(entry, split)) {
      const bool remote = is_remote(path.string());
      if (!is_row_file(path)) {
        throw Error(
            ErrorKind::data,
            format("{} is not a .parquet, .jsonl, .ndjson or .json file (or .gz, .zst of the last three)",
                   remote_name(path.string())),
            "dataset", "convert it to Parquet, or to one JSON object per line");
      }
      std::error_code failure;
      if (!remote && !fs::is_regular_file(path, failure)) {  // opening a named pipe would wait for a writer
        throw Error(ErrorKind::data, format("{} is not a regular file", path.string()), "dataset",
                    "write its rows to a file: data is read more than once");
      }
      const fs::path real = remote ? path : fs::canonical(path, failure);
      const auto [named, is_new] = seen.emplace(failure ? path : real, entry);
      if (!is_new) {
        throw Error(ErrorKind::usage, format("{} is named twice", path.string()),
                    named->second == entry ? format("dataset: {}", entry)
                                           : format("dataset: {} and {}", named->second, entry),
                    "name it once; num_train_epochs repeats the data");
      }
      const auto [twin, is_alone] = forms.emplace(without_compression(path), path);
      if (!is_alone) {
        throw Error(ErrorKind::usage,
                    format("{} and {} look like the same rows twice", twin->second.string(), path.string()),
                    "dataset", "name one of them, or rename one if they differ");
      }
      out.push_back(path);
    }
  }
  return out;
}

}  // namespace deltatune
