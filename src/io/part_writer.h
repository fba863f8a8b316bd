// Files that several threads of several processes write at once, each process its own byte ranges.
//
// Ranges are cut at multiples of StagingLanes::block of the file. Where the file system allows, whole pages
// go past the page cache (O_DIRECT: no copy, no memory of the machine filled with what nobody reads again);
// the rest of a range, and everything where it does not, is written as usual. Each piece is hashed as it
// passes. Not done here: who writes what (checkpoint_writer.h), making the files appear (save_folder.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "base/file.h"
#include "io/file_blocks.h"
#include "tensor/staging_lanes.h"

namespace deltatune {

struct PartFile {
  fs::path path;
  size_t size = 0;       ///< when all ranks have written
  bool reserve = false;  ///< ask the file system for the whole size first (one rank does it)
};

/// Bytes [begin, begin + bytes) of a file, at most StagingLanes::block of them. `fill` writes them to `to`;
/// it may use lane.second.
struct FilePiece {
  size_t file = 0;
  size_t begin = 0;
  size_t bytes = 0;
  std::function<void(std::byte* to, StagingLanes::Lane&)> fill;
};

/// Where a range of a file that starts at `begin` and holds elements of `unit` bytes is cut first: the length
/// of the first stretch, whole elements, at most `bytes` and at most StagingLanes::block.
size_t first_stretch(size_t begin, size_t bytes, size_t unit);
/// Calls each(begin, bytes) for all stretches of [begin, begin + bytes).
void cut_range(size_t begin, size_t bytes, size_t unit, const std::function<void(size_t, size_t)>& each);

/// Writes the pieces, in any order, and fsyncs the files. Files are created where they are not there yet;
/// what is to be reserved is so before anything is written, so that a full disk is known early. `written`
/// rises by the bytes of each piece. Returns a record of each file with the blocks that this call wrote.
/// Throws Error{resource}, and what `fill` throws; when `stop` becomes true it returns early, with the files
/// incomplete.
std::vector<FileBlocks> write_pieces(std::span<const PartFile> files, std::vector<FilePiece> pieces,
                                     const StagingLanes& lanes, const std::atomic<bool>& stop,
                                     std::atomic<size_t>& written);

}  // namespace deltatune
