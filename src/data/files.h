// Which files a `dataset` names: files, folders and glob patterns.
//
// Files are *.parquet, and *.jsonl, *.ndjson (one row per line) and *.json (one array of rows, or lines), the
// last three also compressed (.gz, .zst). A folder stands for the files of one split (data/dataset_folder.h),
// a pattern for what it matches, where "**" is any number of folders. Folders and patterns are sorted by
// name, so the order of rows does not depend on the file system. URIs of object stores stand for the same
// (data/remote_files.h); their wildcards are * and [ ], as ? begins the options. file:// is a path here.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"

namespace deltatune {

/// `split` chooses among the files of folders; empty means all of them. Files and patterns that are named are
/// taken whatever their split. Throws Error{data} for an entry that does not exist, matches nothing or is of
/// another format, and Error{usage} for an empty list, a file that is named twice, or a file beside its own
/// compressed form.
std::vector<fs::path> dataset_files(const std::vector<std::string>& entries, const std::string& split = {});

}  // namespace deltatune
