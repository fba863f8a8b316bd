// Blocks of rows from lines or arrays.
#include "data/row_source.h"

#include <vector>

#include "base/error.h"
#include "base/format.h"

namespace deltatune {
namespace {

[[noreturn]] void no_rows(const std::string& name) {
  throw Error(ErrorKind::data, "the file has no rows", name, "remove it from the dataset, or fill it");
}

const json::Array* array_of(const json::Value& value) {
  if (value.is_array()) return &value.as_array();
  for (const char* key : {"sequences", "data"}) {
    if (const json::Value* inner = value.find(key); inner && inner->is_array()) return &inner->as_array();
  }
  return nullptr;
}

// True when a .json file holds one document rather than lines: it starts an array, or its first line alone is
// no complete object, or that object wraps an array of rows.
bool is_one_document(std::string_view text) {
  JsonlLines lines(text);
  JsonlLine first;
  if (!lines.next(first)) return false;
  if (first.text[0] == '[') return true;
  try {
    const json::Value value = json::parse(first.text, "");
    return array_of(value) != nullptr && !value.find("messages") && !value.find("input_ids");
  } catch (const Error&) {
    return true;
  }
}

}  // namespace

json::Value RawRow::parse() const {
  if (!value) return parse_line(line);
  if (!value->is_object()) {
    throw RowError(RowProblem::not_an_object,
                   format("the row is a JSON {}, not an object", value->type_name()), "",
                   "each element of the array is one object");
  }
  return *value;
}

std::string place_of(const std::string& file, const RawRow& row) {
  return format("{}, {} {}", file, row.value ? "row" : "line", row.number);
}

void visit_lines(std::string_view text, const std::string& name, const VisitRows& visit, BlockSize block) {
  JsonlLines lines(text);
  JsonlLine line;
  std::vector<RawRow> rows;
  size_t bytes = 0;
  bool any = false;
  while (lines.next(line)) {
    any = true;
    rows.push_back({line, nullptr, line.number});
    bytes += line.text.size();
    if (rows.size() < block.rows && bytes < block.bytes) continue;
    if (!visit(rows)) return;
    rows.clear();
    bytes = 0;
  }
  if (!any) no_rows(name);
  if (!rows.empty()) visit(rows);
}

void visit_values(const json::Value& rows, const std::string& name, const VisitRows& visit, BlockSize block) {
  const json::Array* array = array_of(rows);
  if (!array) {
    throw Error(ErrorKind::data, format("a JSON {} where an array of rows belongs", rows.type_name()), name,
                "write [row, row, ...] or one row per line");
  }
  if (array->empty()) no_rows(name);
  std::vector<RawRow> pending;
  for (size_t i = 0; i < array->size(); ++i) {
    pending.push_back({{}, &(*array)[i], static_cast<int64_t>(i) + 1});
    if (pending.size() < block.rows && i + 1 < array->size()) continue;
    if (!visit(pending)) return;
    pending.clear();
  }
}

void visit_file(const fs::path& path, const VisitRows& visit, BlockSize block) {
  const MappedFile file(path);
  const std::string_view text = file.text();
  const std::string name = path.string();
  const std::string_view start = text.substr(0, 2);
  if (start == "\xFF\xFE" || start == "\xFE\xFF") {
    throw Error(ErrorKind::data, "the file is UTF-16", name, "save it as UTF-8");
  }
  if (path.extension() == ".json" && is_one_document(text)) {
    JsonlLines lines(text);  // skips a byte order mark
    JsonlLine first;
    lines.next(first);
    visit_values(json::parse(text.substr(first.offset), name), name, visit, block);
    return;
  }
  visit_lines(text, name, visit, block);
}

json::Value read_row(const std::vector<fs::path>& files, int64_t index, std::string& file, int64_t& line) {
  int64_t seen = 0;
  json::Value found;
  bool done = index < 0;
  for (const fs::path& path : files) {
    if (done) break;
    visit_file(path, [&](const std::vector<RawRow>& rows) {
      const auto count = static_cast<int64_t>(rows.size());
      if (index >= seen + count) {
        seen += count;
        return true;
      }
      const RawRow& row = rows[static_cast<size_t>(index - seen)];
      file = path.string();
      line = row.number;
      try {
        found = row.parse();
      } catch (const RowError& e) {
        throw e.within(place_of(file, row));
      }
      done = true;
      return false;
    });
  }
  if (!done || index < 0) {
    throw Error(ErrorKind::usage, format("row {} does not exist", index),
                format("the dataset has {} rows", seen), "rows are numbered from 0");
  }
  return found;
}

}  // namespace deltatune
