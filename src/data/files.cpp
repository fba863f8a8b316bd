// Expands dataset entries with std::filesystem and POSIX glob().
#include "data/files.h"

#include <glob.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/format.h"

namespace deltatune {
namespace {

bool is_row_file(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".jsonl" || extension == ".ndjson" || extension == ".json";
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(folder, failure)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && is_row_file(entry.path()) && name[0] != '.') out.push_back(entry.path());
  }
  if (failure) {
    throw Error(ErrorKind::data, format("cannot read folder {}: {}", folder.string(), failure.message()),
                "dataset", "check the path and its permissions");
  }
  if (out.empty()) {
    throw Error(ErrorKind::data, format("no .jsonl, .ndjson or .json file in {}", folder.string()), "dataset",
                "name the files, or a folder that holds them directly");
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<fs::path> matches_of(const std::string& pattern) {
  glob_t found{};
  const int result = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<fs::path> out;
  for (size_t i = 0; result == 0 && i < found.gl_pathc; ++i) out.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<fs::path> expand(const std::string& entry) {
  std::error_code ignored;
  if (fs::is_directory(entry, ignored)) return files_in(entry);
  if (fs::exists(entry, ignored)) return {entry};
  std::vector<fs::path> out;
  if (entry.find_first_of("*?[") != std::string::npos) {
    for (const fs::path& match : matches_of(entry)) {
      if (!fs::is_directory(match, ignored)) {
        out.push_back(match);
        continue;
      }
      const std::vector<fs::path> inside = files_in(match);
      out.insert(out.end(), inside.begin(), inside.end());
    }
  }
  if (out.empty()) {
    throw Error(ErrorKind::data, format("no such file or folder: {}", entry), "dataset",
                "check the path; data is read from disk, nothing is downloaded");
  }
  return out;
}

}  // namespace

std::vector<fs::path> dataset_files(const std::vector<std::string>& entries) {
  if (entries.empty()) {
    throw Error(ErrorKind::usage, "no dataset given", "dataset",
                "dataset: [file.jsonl, folder, \"part-*.jsonl\"]");
  }
  std::vector<fs::path> out;
  std::set<fs::path> seen;
  for (const std::string& entry : entries) {
    for (const fs::path& path : expand(entry)) {
      if (!is_row_file(path)) {
        throw Error(ErrorKind::data, format("{} is not a .jsonl, .ndjson or .json file", path.string()),
                    "dataset", "convert it to one JSON object per line");
      }
      std::error_code failure;
      if (!fs::is_regular_file(path, failure)) {  // opening a named pipe would wait for a writer
        throw Error(ErrorKind::data, format("{} is not a regular file", path.string()), "dataset",
                    "write its rows to a file: data is read more than once");
      }
      const fs::path real = fs::canonical(path, failure);
      if (!seen.insert(failure ? path : real).second) {
        throw Error(ErrorKind::usage, format("{} is named twice", path.string()), "dataset",
                    "name it once; num_train_epochs repeats the data");
      }
      out.push_back(path);
    }
  }
  return out;
}

}  // namespace deltatune
