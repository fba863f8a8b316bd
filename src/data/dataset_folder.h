// Which files of a dataset folder make up one split, as folders on the Hugging Face hub are laid out.
//
// In this order: `configs: data_files` (or data_dir) in the YAML front matter of README.md; else the row
// files directly in the folder, or, where there are none, in its folder `data`, or in a folder named like the
// split. Files tell their split by name: "train_sft-00000-of-00003.jsonl.gz" is of train_sft; "train.jsonl"
// and "my-test_2.jsonl" are of train and test, by the words train, validation and test (and the common
// spellings of those), and by their whole names. A file that names no split is of train; a folder in which no
// file names one has no splits, and all of it is read. It reads no data and follows no links to folders.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "data/file_tree.h"

namespace deltatune {

/// *.parquet; *.jsonl, *.ndjson or *.json, also with .gz, .gzip, .zst or .zstd behind.
bool is_row_file(const fs::path& path);

/// Files of `split` in `folder`, sorted by name; hidden ones left out. An empty split means every file.
/// Throws Error{data}: unreadable, no such files, a split or configuration that cannot be chosen (the message
/// names those that are there), or a README.md whose front matter cannot be read.
std::vector<fs::path> dataset_folder_files(const FileTree& folder, const std::string& split);

/// Regular files below folder `base` of the tree whose path relative to it matches `pattern`, sorted. Each
/// component of the pattern is one of POSIX glob; a component "**" stands for any number of folders. Hidden
/// files and folders have to be named.
std::vector<fs::path> files_matching(const FileTree& tree, const fs::path& base, const std::string& pattern);

}  // namespace deltatune
