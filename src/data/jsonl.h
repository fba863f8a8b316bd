// JSON Lines (jsonlines.org): one JSON object per line, UTF-8.
//
// Lines are views into text that the caller keeps (a mapped file): nothing is copied, a line may be as long
// as the file. A byte order mark, CRLF, blank lines and a missing newline at the end are accepted. Only
// "\n" ends a line. Compressed files are not read.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/json.h"
#include "data/rows.h"

namespace deltatune {

struct JsonlLine {
  std::string_view text;  ///< without the line end and white space around it; never empty
  int64_t number = 0;     ///< 1-based; blank lines count
  uint64_t offset = 0;    ///< of text[0] in the file, bytes
};

/// Iterates over the lines that are not blank.
class JsonlLines {
 public:
  /// `text` must outlive this object and the lines it hands out.
  explicit JsonlLines(std::string_view text);
  /// False at the end.
  bool next(JsonlLine& line);

 private:
  std::string_view text_;
  size_t at_ = 0;
  int64_t number_ = 0;
};

/// Parses one line into an object. Throws RowError: malformed_json (with the column), invalid_utf8 (with the
/// byte offset in the file), not_an_object.
json::Value parse_line(const JsonlLine& line);

}  // namespace deltatune
