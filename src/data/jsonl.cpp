// Line splitting and per-line parsing; json::parse does the grammar.
#include "data/jsonl.h"

#include "base/format.h"
#include "text/unicode.h"

namespace deltatune {
namespace {

constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
constexpr std::string_view blanks = " \t\r";

}  // namespace

JsonlLines::JsonlLines(std::string_view text, int64_t lines_before, uint64_t bytes_before)
    : text_(text), bytes_before_(bytes_before), number_(lines_before) {
  if (bytes_before == 0 && text_.substr(0, byte_order_mark.size()) == byte_order_mark)
    at_ = byte_order_mark.size();
}

bool JsonlLines::next(JsonlLine& line) {
  while (at_ < text_.size()) {
    const size_t found = text_.find('\n', at_);
    const size_t end = found == std::string_view::npos ? text_.size() : found;
    const std::string_view whole = text_.substr(at_, end - at_);
    const size_t begin = at_;
    at_ = found == std::string_view::npos ? end : end + 1;
    ++number_;
    const size_t first = whole.find_first_not_of(blanks);
    if (first == std::string_view::npos) continue;
    const size_t last = whole.find_last_not_of(blanks);
    line = {whole.substr(first, last - first + 1), number_, bytes_before_ + begin + first};
    return true;
  }
  return false;
}

json::Value parse_line(const JsonlLine& line) {
  if (const size_t bad = find_invalid_utf8(line.text); bad != utf8_ok) {
    const auto byte = static_cast<unsigned char>(line.text[bad]);
    throw RowError(RowProblem::invalid_utf8, format("invalid UTF-8 (byte 0x{:02x})", byte),
                   format("byte {} of the file", line.offset + bad), "save the file as UTF-8");
  }
  json::Value row;
  try {
    row = json::parse(line.text, "");
  } catch (const Error& e) {
    // The parser counts lines of its own text, which is one line here: only the column says something.
    const size_t column = e.where().rfind("column ");
    const std::string where = column == std::string::npos ? std::string() : e.where().substr(column);
    if (const size_t zero = line.text.find('\0'); zero != std::string_view::npos) {
      throw RowError(
          RowProblem::malformed_json, "the line has bytes of value 0",
          format("byte {} of the file", line.offset + zero),
          "copy the file again: such bytes are left by a write that was cut off; or remove the line");
    }
    if (line.text.find('\r') != std::string_view::npos) {
      throw RowError(RowProblem::malformed_json, format("{}; the line has carriage returns in it", e.what()),
                     where, "end lines with a newline, not with CR alone: tr '\\r' '\\n'");
    }
    throw RowError(RowProblem::malformed_json, e.what(), where,
                   "repair or remove the line; each line is one complete JSON object");
  }
  if (!row.is_object()) {
    throw RowError(RowProblem::not_an_object, format("the line is a JSON {}, not an object", row.type_name()),
                   "", "each line is one object; one JSON array of rows belongs in a .json file");
  }
  return row;
}

}  // namespace deltatune
