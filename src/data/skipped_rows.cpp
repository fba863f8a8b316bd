// The list is short where data is sound, so each row opens and closes the file.
#include "data/skipped_rows.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/format.h"
#include "base/json.h"

namespace deltatune {

std::string skipped_row_line(const std::string& file, int64_t line, RowProblem problem, const Error& error) {
  return json::dump(json::Object{{"file", file},
                                 {"line", line},
                                 {"problem", name_of(problem)},
                                 {"what", error.what()},
                                 {"where", error.where()},
                                 {"fix", error.fix()}}) +
         "\n";
}

SkippedRowsFile::SkippedRowsFile(fs::path path, bool go_on) : path_(std::move(path)) {
  std::error_code code;
  if (!go_on) {
    fs::remove(path_, code);
  } else if (fs::exists(path_, code)) {
    keep_listed();
  }
}

void SkippedRowsFile::keep_listed() {
  const std::string text = read_file(path_);
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    const json::Value row = json::parse(text.substr(begin, end - begin), path_.string());
    listed_.emplace(row.at("file").as_string(), row.at("line").as_integer());
    begin = end + 1;
  }
  if (begin < text.size()) write_file_atomic(path_, std::string_view(text).substr(0, begin));
}

void SkippedRowsFile::add(const std::string& file, int64_t line, const RowError& problem) {
  const std::lock_guard lock(mutex_);
  if (!listed_.emplace(file, line).second) return;
  std::ofstream out(path_, std::ios::app | std::ios::binary);
  out << skipped_row_line(file, line, problem.problem(), problem) << std::flush;
  if (out) return;
  throw Error(ErrorKind::resource, format("cannot be written: {}", std::strerror(errno)), path_.string(),
              "free space on the disk, or check its permissions");
}

int64_t SkippedRowsFile::count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(listed_.size());
}

}  // namespace deltatune
