// Which files a `dataset` names: files, folders and glob patterns.
//
// Files are *.jsonl, *.ndjson (one row per line) and *.json (one array of rows, or lines). A folder stands
// for the files with such names directly inside it, hidden ones left out; folders and patterns are sorted by
// name, so the order of rows does not depend on the file system.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"

namespace deltatune {

/// Throws Error{data} for an entry that does not exist, matches nothing or is of another format, and
/// Error{usage} for an empty list or a file that is named twice.
std::vector<fs::path> dataset_files(const std::vector<std::string>& entries);

}  // namespace deltatune
