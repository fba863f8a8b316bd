// Tokenised datasets kept between runs: where the cache file of a set lies, reading it back, and what is
// stored in it besides arrays.
//
// A set is read back as if it had just been tokenised: same arrays, counts, fingerprint, skipped rows and
// notices. What cannot be used is said and replaced; a cache never stops a run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/cache_folder.h"
#include "data/cache_key.h"
#include "data/row_encoder.h"
#include "data/tokenized_set.h"

namespace deltatune {

struct CacheOptions {
  fs::path folder;          ///< empty: no cache
  std::string recipe;       ///< see data/cache_key.h
  int64_t least_bytes = 0;  ///< datasets with less to read than this are not worth a file
  int64_t most_bytes = 0;   ///< of all caches in the folder, see trim_cache_folder(); 0: no limit
};

/// Bytes of all files; those that cannot be looked at count nothing.
int64_t total_bytes(const std::vector<fs::path>& files);

/// The cache file of one dataset under given options.
class DatasetCache {
 public:
  /// Reads all files (for the key). Throws Error{data} for one that cannot be read.
  DatasetCache(const CacheOptions& options, const std::vector<fs::path>& files, const RowOptions& rows);

  /// The set, with its notices logged; nullopt when there is no file, or one that cannot be used (which is
  /// logged). `files`: the names that messages use.
  std::optional<TokenizedSet> read() const;

  /// To be called when the file was written: older caches go where the folder has too many bytes.
  void trim() const { trim_cache_folder(path_.parent_path(), most_bytes_, path_); }

  const fs::path& path() const { return path_; }
  const std::string& key() const { return key_; }
  /// True when no file was written to since the key was made: what was read belongs to the key.
  bool inputs_unchanged() const { return stamps_.unchanged(); }

 private:
  FileStamps stamps_;
  std::vector<std::string> names_;
  std::string key_;
  fs::path path_;
  int64_t vocab_size_;
  int64_t max_length_;
  int64_t most_bytes_;
};

/// What a cache file holds in its meta section.
struct CacheMeta {
  DatasetCounts counts;
  std::vector<SkippedRow> skipped;
  std::vector<std::string> notices;
};
std::string dump_meta(const CacheMeta& meta);
/// `files`: number of source files. Throws Error{data} for anything that dump_meta() does not write.
CacheMeta parse_meta(const std::string& text, int64_t files);

/// "9 rows: 1 malformed, 0 empty, ...".
std::string describe_rows(const DatasetCounts& counts);
/// The lines about what a set leaves out. max_length: that of the set.
void log_left_out(const DatasetCounts& counts, int64_t max_length);

}  // namespace deltatune
