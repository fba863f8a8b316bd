// skipped_rows.jsonl of a run that streams: a line for each row that on_bad_row: skip left out, written when
// the row is met, once for every row however many epochs meet it. A set that is tokenised first is listed as
// a whole instead (train/run_data.h).
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "base/file.h"
#include "data/rows.h"

namespace deltatune {

/// {"file", "line", "problem", "what", "where", "fix"} and a line end.
std::string skipped_row_line(const std::string& file, int64_t line, RowProblem problem, const Error& error);

class SkippedRowsFile {
 public:
  /// go_on: the rows that the file lists already stay and are not listed again (a resumed run); a last line
  /// that was cut is dropped. Otherwise the file is removed. Throws Error{resource, data}.
  SkippedRowsFile(fs::path path, bool go_on);
  /// Lists a row unless it is listed. Several threads may call it. Throws Error{resource}.
  void add(const std::string& file, int64_t line, const RowError& problem);
  int64_t count() const;
  const fs::path& path() const { return path_; }

 private:
  void keep_listed();

  fs::path path_;
  mutable std::mutex mutex_;
  std::set<std::pair<std::string, int64_t>> listed_;
};

}  // namespace deltatune
