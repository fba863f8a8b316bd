// What a tokenised dataset depends on, as one hash: the name of its cache file.
//
// The key covers the bytes of every file, in order, and the end of its name (which says how it is read),
// every option that changes the result, and a `recipe` for what data/ does not know: tokenizer, template and
// their options, and the program itself. Paths are not part of it: moved or copied files keep their cache. It
// hashes bytes, every time: a time stamp can lie, and hashing runs at the speed of the disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/row_encoder.h"

namespace deltatune {

/// Size and times of files and versions of objects, for finding out whether one was written to meanwhile.
class FileStamps {
 public:
  explicit FileStamps(const std::vector<fs::path>& files);
  /// True when all files still have their size, times and inode.
  bool unchanged() const;

 private:
  struct Stamp {
    int64_t size = -1;
    int64_t modified = 0;  // ns
    int64_t changed = 0;   // ns
    uint64_t inode = 0;
    std::string version;  // of an object
    bool operator==(const Stamp&) const = default;
  };
  static Stamp stamp(const fs::path& path);
  std::vector<fs::path> files_;
  std::vector<Stamp> stamps_;
};

/// 32 hexadecimal digits. Reads all files, in pieces. Throws Error{data} for a file that cannot be read.
std::string cache_key(const std::vector<fs::path>& files, const RowOptions& options,
                      const std::string& recipe);

}  // namespace deltatune
