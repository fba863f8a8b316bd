// The seam to the Arrow plug-in (libdeltatune_arrow.so): Parquet and object stores through Apache Arrow.
//
// Without the plug-in everything else is read as ever; a file that needs it is an error that says what is
// missing. No Arrow header is needed on this side.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/byte_source.h"
#include "data/remote_files.h"
#include "data/row_source.h"

namespace deltatune {

struct ArrowPlugin {
  /// Rows of a Parquet file, see visit_parquet().
  void (*visit_parquet)(RandomAccess& file, const std::string& name, const VisitRows& visit, BlockSize block);
  /// One try to open an object, to tell whether there is one, and to list those below a folder at any depth;
  /// see data/remote_files.h. They throw TransientError for what may pass.
  std::shared_ptr<RemoteFile> (*open)(const std::string& uri);
  bool (*is_file)(const std::string& uri);
  std::vector<RemoteEntry> (*list)(const std::string& uri);
  /// See close_object_stores().
  void (*close)();
  /// Version of the Arrow libraries, and where they were loaded from.
  std::string (*versions)();
};

inline constexpr int arrow_plugin_abi = 3;
/// The plug-in's only exported symbol: `const void* deltatune_arrow_plugin(int abi)`, an ArrowPlugin;
/// nullptr: other ABI.
inline constexpr const char* arrow_plugin_symbol = "deltatune_arrow_plugin";

/// Opens the plug-in once. Arrow's libraries are those it was built with, else those of
/// DELTATUNE_ARROW_LIB_PATH, else of the loader's path, else of the package pyarrow of python3. nullptr with
/// the reason in `why`.
const ArrowPlugin* arrow_plugin(std::string& why);

/// Calls visit(rows) for blocks of the rows of a Parquet file (compressed with snappy, gzip, zstd, lz4,
/// brotli or not). A row becomes the value that a JSON line of the same content gives: a struct an object
/// without the members that are null, a list an array, a map an object, a date or time its text. Memory is
/// that of a few blocks and one page per column, whatever the size of the file and of its row groups; row
/// numbers count from 1. Throws Error{data} with `name` for bytes that are no Parquet, corrupt, cut off or
/// encrypted, and Error{resource} when the plug-in is missing.
void visit_parquet(RandomAccess& file, const std::string& name, const VisitRows& visit, BlockSize block = {});

}  // namespace deltatune
