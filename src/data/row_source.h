// All rows of a list of files, in order, a block of them at a time.
//
// A row is numbered from 0 over all files; malformed ones count. A .jsonl or .ndjson file is read line by
// line from a mapping. A .json file is one array of rows, one object {"sequences": [...]} or {"data": [...]},
// or lines after all (a common habit); an array is parsed as a whole. A Parquet file, whatever its name, is
// read in blocks by the Arrow plug-in (data/arrow_plugin.h).
// Files compressed with gzip or zstd, whatever their names say, are decompressed as they are read: lines in
// pieces, so that a small file which expands without end is stopped by the longest line or document.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "data/byte_source.h"
#include "data/jsonl.h"

namespace deltatune {

/// Rows of a columnar file that become values when they are asked for.
class RowBatch {
 public:
  RowBatch() = default;
  virtual ~RowBatch() = default;
  RowBatch(const RowBatch&) = delete;
  RowBatch& operator=(const RowBatch&) = delete;
  /// Row `index` of the batch. Called by several threads at a time. Throws RowError without the file's name.
  virtual json::Value row(int64_t index) const = 0;
};

/// One row as it lies in its file: a line that is not parsed yet, an element of a parsed array, or a row of a
/// batch. A view: it ends with the visit that it was handed to.
struct RawRow {
  JsonlLine line;  ///< used when value and batch are nullptr
  const json::Value* value = nullptr;
  int64_t number = 0;  ///< 1-based line, or 1-based element of the array or row of the columns
  const RowBatch* batch = nullptr;
  int64_t index = 0;  ///< within the batch
  /// Parses the line, copies the element or makes the row. Throws RowError without the file's name.
  json::Value parse() const;
};

/// Calls visit(rows) for consecutive blocks of the rows of one text; a block ends after `rows` rows or
/// `bytes` bytes. visit returns false to stop. Throws Error{data} when the text has no rows.
struct BlockSize {
  size_t rows = 4096;
  size_t bytes = size_t{32} << 20;
  size_t longest_line = size_t{256} << 20;    ///< of compressed lines, bytes when decompressed
  size_t longest_document = size_t{1} << 30;  ///< of a compressed array, bytes when decompressed
};
using VisitRows = std::function<bool(const std::vector<RawRow>& rows)>;
void visit_lines(std::string_view text, const std::string& name, const VisitRows& visit,
                 BlockSize block = {});

/// The same for the elements of a parsed array, or of the array inside {"sequences": [...]} or
/// {"data": [...]}. Throws Error{data} for another shape and for no rows.
void visit_values(const json::Value& rows, const std::string& name, const VisitRows& visit,
                  BlockSize block = {});

/// The same for the bytes of a whole file, compressed or not. `name` stands for it in messages and says by
/// its extension (one of a compression left out) whether it may be one document. Throws Error{data} for
/// UTF-16, Parquet, archives, bytes that do not decompress, and decompressed lines or documents above the
/// limits. Rows may have been visited before.
void visit_bytes(std::string_view bytes, const std::string& name, const VisitRows& visit,
                 BlockSize block = {});

/// The same for bytes that are no Parquet, read front to back.
void visit_stream(ByteStream& bytes, const std::string& name, const VisitRows& visit, BlockSize block = {});

/// The same for a file, or for an object whose URI stands in `path` (data/remote_files.h).
void visit_file(const fs::path& path, const VisitRows& visit, BlockSize block = {});

/// The name without an extension that says how the file is compressed: "a.jsonl" for "a.jsonl.gz".
fs::path without_compression(const fs::path& path);

/// "file, line 3" or "file, row 3": the place of a row in messages.
std::string place_of(const std::string& file, const RawRow& row);

/// A number that the rows of all files do not exceed, from counting line ends; nullopt where that does not
/// tell: compressed files, arrays, columns, objects of a store, files that cannot be read.
std::optional<int64_t> most_rows(const std::vector<fs::path>& files);

}  // namespace deltatune
