// RowProgress: "tokenising: 120,000 rows, 2,310 rows/s, 151,000,000 tokens, eta 38 s" every few seconds, for
// whatever goes through all rows of a dataset.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "data/row_source.h"

namespace deltatune {

class RowProgress {
 public:
  /// `doing`: "tokenising", "checking". Says nothing in the first `after_s` seconds.
  explicit RowProgress(std::string doing, double after_s = 2) : doing_(std::move(doing)), next_(after_s) {}

  /// Bytes that all files together have: for the time left.
  void expect_bytes(int64_t bytes) { total_bytes_ = bytes; }
  /// A line, if it is time for one. `rows` and `tokens` so far (no tokens: 0), `block` the rows just done.
  void show(int64_t rows, int64_t tokens, const std::vector<RawRow>& block);
  void file_done(const fs::path& path);

 private:
  std::string doing_;
  int64_t total_bytes_ = 0;
  int64_t finished_bytes_ = 0;  // of files that are read
  Stopwatch clock_;
  double next_;
};

}  // namespace deltatune
