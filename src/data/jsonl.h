// JSON Lines (jsonlines.org): one JSON object per line, UTF-8.
//
// Lines are views into text that the caller keeps (a mapped file): nothing is copied, a line may be as long
// as the file. A byte order mark, CRLF, blank lines and a missing newline at the end are accepted. Only
// "\n" ends a line. Compressed text is data/row_source.h's concern.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/json.h"
#include "data/rows.h"

namespace deltatune {

struct JsonlLine {
  std::string_view text;  ///< without the line end and white space around it; never empty
  int64_t number = 0;     ///< 1-based; blank lines count
  uint64_t offset = 0;    ///< of text[0] in the (decompressed) file, bytes
};

/// Iterates over the lines that are not blank.
class JsonlLines {
 public:
  /// `text` must outlive this object and the lines it hands out.
  explicit JsonlLines(std::string_view text) : JsonlLines(text, 0, 0) {}
  /// The part of a longer text that follows `lines_before` lines of `bytes_before` bytes.
  JsonlLines(std::string_view text, int64_t lines_before, uint64_t bytes_before);
  /// False at the end.
  bool next(JsonlLine& line);
  /// Lines passed so far, those before and blank ones included.
  int64_t count() const { return number_; }

 private:
  std::string_view text_;
  size_t at_ = 0;
  uint64_t bytes_before_ = 0;
  int64_t number_ = 0;
};

/// Parses one line into an object. Throws RowError: malformed_json (with the column), invalid_utf8 (with the
/// byte offset in the file), not_an_object.
json::Value parse_line(const JsonlLine& line);

}  // namespace deltatune
