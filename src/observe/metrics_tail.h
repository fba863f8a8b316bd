// Reading metrics.jsonl as it grows: each call hands over the lines that were added since the last one.
//
// Invariants: memory is bounded whatever the file holds; a line that is no JSON object with an "event", or
// longer than max_line bytes, is counted and passed over; a last line without a newline waits for the next
// call. A file that became another one (a resumed run cuts it atomically) or shorter is read from its start,
// after `restart` was called. Not done here: what the events mean (run_record.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/file.h"
#include "base/json.h"

namespace deltatune {

class MetricsTail {
 public:
  static constexpr size_t max_line = size_t{1} << 20;  ///< bytes

  explicit MetricsTail(fs::path path) : path_(std::move(path)) {}

  /// Calls visit for every new event in file order. `restart`: what was visited before is void. A missing
  /// file has no lines. `progress` is told after every MiB, where there is more: bytes read, bytes of the
  /// file. Throws Error{data} when a file that is there cannot be read.
  void read(const std::function<void(const json::Value&)>& visit, const std::function<void()>& restart,
            const std::function<void(int64_t, int64_t)>& progress = {});

  /// Lines passed over since the last restart.
  int64_t skipped() const { return skipped_; }
  /// Bytes of whole lines that were read since the last restart.
  int64_t position() const { return position_; }

 private:
  void line(std::string_view text, const std::function<void(const json::Value&)>& visit);

  fs::path path_;
  int64_t position_ = 0;  // of the first byte that belongs to no whole line yet
  int64_t skipped_ = 0;
  uint64_t device_ = 0, inode_ = 0;
};

}  // namespace deltatune
