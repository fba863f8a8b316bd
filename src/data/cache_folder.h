// The folder of token caches: which of its files are in use, and removing those that nobody needs.
//
// Whoever writes or maps a file there holds a shared flock(2) on it, which ends with the process however that
// ends. A file is removed only by someone who gets the exclusive lock. Between machines that is right where
// the file system passes locks on; where it has none, or a temporary file is another machine's, a file is
// left alone until it is a day old. It knows names and sizes, not what is inside (data/token_cache.h).
#pragma once

#include <cstdint>

#include "base/file.h"

namespace deltatune {

/// A lock on a file that others may hold too; it keeps the file from being removed by this program.
class FileHold {
 public:
  FileHold() = default;
  /// Without effect where the file cannot be opened or locked.
  explicit FileHold(const fs::path& path);
  ~FileHold();
  FileHold(FileHold&& other) noexcept;
  FileHold& operator=(FileHold&& other) noexcept;
  /// False when the file has no name any more: someone removed it before the lock was there.
  bool has_name() const;

 private:
  int descriptor_ = -1;
};

/// A name beside `path` that no other process takes, with machine and process in it.
fs::path temporary_cache_name(const fs::path& path);

/// Removes temporary files whose writers are gone.
void remove_cache_leftovers(const fs::path& folder);

/// Removes the token caches that were not used for longest until all of the folder have at most `limit` bytes
/// (0: any number). `keep` and those that are in use stay. Says what it did. Never throws.
void trim_cache_folder(const fs::path& folder, int64_t limit, const fs::path& keep);

/// Notes that a cache was used now, for the order in which they go.
void touch_cache(const fs::path& path);

}  // namespace deltatune
