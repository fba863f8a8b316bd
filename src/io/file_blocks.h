// Hashes of the blocks of a written file, so that whoever reads a part of it later can check just that part.
//
// As JSON: {"name": "rank-00000-of-00002.safetensors", "bytes": 123, "blocks": [[begin, bytes, "XXH3-128"],
// ...]}. Blocks are sorted and do not overlap; they need not cover the file.
// Invariant of a HashedFile: it gives no byte of a block whose hash did not fit.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace deltatune {

struct HashedBlock {
  size_t begin = 0;
  size_t bytes = 0;
  std::string hash;  ///< XXH3-128, 32 hexadecimal digits
};

struct FileBlocks {
  std::string name;  ///< without folder
  size_t size = 0;   ///< of the whole file
  std::vector<HashedBlock> blocks;
};

std::string block_hash(std::span<const std::byte> bytes);

json::Value to_json(const FileBlocks& file);
/// Throws Error{data} for anything but what to_json gives; a block is at most 64 MiB.
FileBlocks file_blocks_from_json(const json::Value& value);
/// Blocks of one file that several ranks have written, as one sorted list. Throws Error{data} where they
/// overlap.
void merge_blocks(FileBlocks& into, FileBlocks&& more);

/// A file that is read in ranges, each block checked when it is read.
class HashedFile {
 public:
  /// Throws Error{model} when the file is not there or has another size.
  HashedFile(const fs::path& path, FileBlocks blocks);
  /// Bytes [begin, begin + to.size()). Blocks that the range touches are read as a whole; where the range is
  /// made of whole blocks, nothing is read twice. Throws Error{model}: a block was altered, or part of the
  /// range has no block. From several threads at once.
  void read(size_t begin, std::span<std::byte> to) const;

 private:
  void read_block(const HashedBlock& block, std::span<std::byte> to) const;
  FileBlocks blocks_;
  RangeReader file_;
};

}  // namespace deltatune
