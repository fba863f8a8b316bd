// Blocks of rows from lines or arrays.
#include "data/row_source.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "data/ahead.h"
#include "data/arrow_plugin.h"
#include "data/byte_source.h"
#include "data/decompress.h"
#include "data/remote.h"
#include "data/remote_files.h"

namespace deltatune {
namespace {

constexpr size_t most_looked_at = 4096;  // bytes from which a format is told

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

// True for an object with a member that a row of some schema has: no wrapper of an array, whatever else it
// has.
bool has_row_member(const json::Value& value) {
  for (const char* key :
       {"messages", "conversations", "instruction", "output", "prompt", "completion", "input_ids"}) {
    if (value.find(key)) return true;
  }
  return false;
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
    return array_of(value) != nullptr && !has_row_member(value);
  } catch (const Error&) {
    return true;
  }
}

// Formats that are no text, by their first bytes.
void refuse_other_formats(std::string_view text, const std::string& name) {
  struct Format {
    std::string_view start;
    const char* what;
    const char* fix;
  };
  static constexpr Format formats[] = {
      {"\xFF\xFE", "the file is UTF-16", "save it as UTF-8"},
      {"\xFE\xFF", "the file is UTF-16", "save it as UTF-8"},
      {"PAR1", "the file is compressed Parquet", "decompress it: Parquet compresses its own pages"},
      {"version https://git-lfs", "the file is a pointer of Git LFS, not the data", "run `git lfs pull`"},
      {"PARE", "the file is encrypted Parquet", "write it without encryption"},
      {"PK\x03\x04", "the file is a zip archive", "unpack it"},
      {"BZh", "the file is compressed with bzip2", "compress it with gzip or zstd, or not at all"},
      {"\xFD"
       "7zXZ",
       "the file is compressed with xz", "compress it with gzip or zstd, or not at all"},
      {"\x04\x22\x4D\x18", "the file is compressed with lz4", "compress it with gzip or zstd, or not at all"},
  };
  for (const Format& format : formats) {
    if (text.substr(0, format.start.size()) == format.start) {
      throw Error(ErrorKind::data, format.what, name, format.fix);
    }
  }
}

bool is_parquet(std::string_view bytes) {
  return bytes.substr(0, 4) == "PAR1";
}

// The first character that is no white space is that of a JSON row or array.
bool starts_as_json(std::string_view text) {
  JsonlLines lines(text);  // skips a byte order mark
  JsonlLine first;
  return lines.next(first) && (first.text[0] == '{' || first.text[0] == '[');
}

// May a file that starts with `start` be one document instead of lines? By its name; one that is called
// Parquet but is JSON may be anything. Throws for one that is neither.
bool may_be_document(const std::string& name, std::string_view start) {
  const fs::path plain_name = without_compression(name);
  if (plain_name.extension() != ".parquet") return plain_name.extension() == ".json";
  if (starts_as_json(start)) {
    log::info("{}: called Parquet, but it is JSON and is read as that", name);
    return true;
  }
  throw Error(ErrorKind::data, "the file is no Parquet: it does not start with PAR1", name,
              "copy or download it again; a file of the Git LFS kind needs `git lfs pull`");
}

// The text of a compressed file, of which a window is in memory. It is decompressed ahead, by another thread.
class TextWindow {
 public:
  TextWindow(ByteStream& bytes, const std::string& name)
      : source_(bytes, name), pieces_([this] { return decompressed(); }, pieces_ahead) {}
  bool compressed() const { return source_.compression() != Compression::none; }
  std::string_view view() const { return text_; }
  bool ended() const { return ended_; }
  // Reads until the window has `size` bytes or the text ends.
  void fill(size_t size) {
    while (!ended_ && text_.size() < size) {
      if (const std::optional<std::string> next = pieces_.next()) {
        text_ += *next;
      } else {
        ended_ = true;
      }
    }
  }
  void drop_front(size_t size) { text_.erase(0, size); }

 private:
  static constexpr size_t piece = size_t{1} << 20;
  static constexpr size_t pieces_ahead = 16;

  std::optional<std::string> decompressed() {
    std::string out(piece, '\0');
    out.resize(source_.read(out));
    if (out.empty()) return std::nullopt;
    return out;
  }

  Decompressor source_;
  std::string text_;
  bool ended_ = false;
  Ahead<std::string> pieces_;
};

[[noreturn]] void too_long(const char* what, size_t limit, const std::string& name, const char* fix) {
  throw Error(ErrorKind::data, format("{} is longer than {} bytes when decompressed", what, limit), name,
              fix);
}

// Fills the window until it holds the first line that is not blank, or shows that the text is an array.
void fill_first_line(TextWindow& text, const std::string& name, size_t limit) {
  for (size_t size = size_t{64} << 10;; size *= 2) {
    text.fill(std::min(size, limit));
    JsonlLines lines(text.view());
    JsonlLine first;
    if (text.ended()) return;
    if (lines.next(first)) {
      const auto end = static_cast<size_t>(first.offset) + first.text.size();
      if (first.text[0] == '[' || text.view().find('\n', end) != std::string_view::npos) return;
    }
    if (size >= limit)
      too_long("the first row", limit, name, "decompress the file, or write one row per line");
  }
}

void visit_document(std::string_view text, const std::string& name, const VisitRows& visit, BlockSize block) {
  JsonlLines lines(text);  // skips a byte order mark
  JsonlLine first;
  lines.next(first);
  visit_values(json::parse(text.substr(first.offset), name), name, visit, block);
}

void visit_window(TextWindow& text, const std::string& name, const VisitRows& visit, BlockSize block) {
  std::vector<RawRow> rows;
  bool any = false;
  int64_t lines_before = 0;
  uint64_t bytes_before = 0;
  for (;;) {
    size_t searched = 0;
    size_t size = 0;  // of the whole lines in the window
    for (size_t wanted = block.bytes; size == 0; wanted *= 2) {
      text.fill(std::min(wanted, block.longest_line + 1));
      const size_t last = text.view().substr(searched).rfind('\n');
      size = last != std::string_view::npos ? searched + last + 1 : text.ended() ? text.view().size() : 0;
      searched = text.view().size();
      if (size == 0 && text.ended()) break;
      if (size == 0 && searched > block.longest_line) {
        too_long("the line", block.longest_line, format("{}, line {}", name, lines_before + 1),
                 "split the row, or decompress the file");
      }
    }
    if (size == 0) break;
    JsonlLines lines(text.view().substr(0, size), lines_before, bytes_before);
    for (JsonlLine line; lines.next(line);) {
      any = true;
      rows.push_back({line, nullptr, line.number});
      if (rows.size() < block.rows) continue;
      if (!visit(rows)) return;
      rows.clear();
    }
    if (!rows.empty() && !visit(rows)) return;
    rows.clear();
    lines_before = lines.count();
    bytes_before += size;
    text.drop_front(size);
  }
  if (!any) no_rows(name);
}

}  // namespace

json::Value RawRow::parse() const {
  if (batch) return batch->row(index);
  if (!value) return parse_line(line);
  if (!value->is_object()) {
    throw RowError(RowProblem::not_an_object,
                   format("the row is a JSON {}, not an object", value->type_name()), "",
                   "each element of the array is one object");
  }
  return *value;
}

std::string place_of(const std::string& file, const RawRow& row) {
  return format("{}, {} {}", file, row.value || row.batch ? "row" : "line", row.number);
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

void visit_stream(ByteStream& bytes, const std::string& name, const VisitRows& visit, BlockSize block) {
  TextWindow text(bytes, name);
  text.fill(most_looked_at);
  refuse_other_formats(text.view(), name);
  const bool document = may_be_document(name, text.view());
  if (text.compressed() && compression_of(text.view()) != Compression::none) {
    throw Error(ErrorKind::data, "the file is compressed twice", name, "decompress it once");
  }
  if (document) {
    fill_first_line(text, name, block.longest_document);
    if (is_one_document(text.view())) {
      text.fill(block.longest_document + 1);
      if (text.view().size() > block.longest_document) {
        too_long("the document", block.longest_document, name, "write one row per line");
      }
      visit_document(text.view(), name, visit, block);
      return;
    }
  }
  visit_window(text, name, visit, block);
}

void visit_bytes(std::string_view bytes, const std::string& name, const VisitRows& visit, BlockSize block) {
  if (is_parquet(bytes)) {
    MemoryBytes file(bytes);
    visit_parquet(file, name, visit, block);
    return;
  }
  if (compression_of(bytes) != Compression::none) {
    OnePiece piece(bytes);
    visit_stream(piece, name, visit, block);
    return;
  }
  refuse_other_formats(bytes, name);
  const bool document = may_be_document(name, bytes.substr(0, most_looked_at));
  if (document && is_one_document(bytes)) {
    visit_document(bytes, name, visit, block);
  } else {
    visit_lines(bytes, name, visit, block);
  }
}

namespace {

void visit_remote(const std::string& uri, const VisitRows& visit, BlockSize block) {
  const std::string name = remote_name(uri);
  RetryingFile file([uri] { return open_remote(uri); }, name);
  char start[4];
  if (is_parquet({start, file.read_at(0, start)})) {
    visit_parquet(file, name, visit, block);
  } else if (file.size() == 0) {
    no_rows(name);
  } else {
    ReadAheadStream stream(file);
    visit_stream(stream, name, visit, block);
  }
  log_remote_counts(name);
}

}  // namespace

void visit_file(const fs::path& path, const VisitRows& visit, BlockSize block) {
  if (is_remote(path.string())) {
    visit_remote(path.string(), visit, block);
    return;
  }
  {
    const MappedFile file(path);
    if (!is_parquet(file.text())) {
      visit_bytes(file.text(), path.string(), visit, block);
      return;
    }
  }
  LocalBytes file(path);
  visit_parquet(file, path.string(), visit, block);
}

fs::path without_compression(const fs::path& path) {
  const std::string extension = path.extension().string();
  for (const char* known : {".gz", ".gzip", ".zst", ".zstd"}) {
    if (extension == known) return path.parent_path() / path.stem();
  }
  return path;
}

std::optional<int64_t> most_rows(const std::vector<fs::path>& files) {
  int64_t rows = 0;
  for (const fs::path& path : files) {
    const std::string extension = path.extension().string();
    if (is_remote(path.string()) || (extension != ".jsonl" && extension != ".ndjson")) return std::nullopt;
    try {
      const MappedFile file(path);
      if (is_parquet(file.text()) || compression_of(file.text()) != Compression::none) return std::nullopt;
      rows += std::count(file.text().begin(), file.text().end(), '\n') + 1;
    } catch (const Error&) {
      return std::nullopt;  // reading it will say why
    }
  }
  return rows;
}

}  // namespace deltatune
