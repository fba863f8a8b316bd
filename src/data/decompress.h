// Decompressed bytes of a gzip or Zstandard file, a piece at a time: the only place that knows zlib and zstd.
//
// The format is told by its first bytes, never by a name. Several gzip members or zstd frames in one file are
// read as one text; zeros after the last gzip member are padding. Memory is bounded whatever the file says:
// 32 KiB of history for gzip, 128 MiB at most for zstd, and never more output than was asked for. Checksums
// are verified. It does not know dictionaries, zlib streams without a gzip header, or other formats.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data/byte_source.h"

namespace deltatune {

enum class Compression { none, gzip, zstd };

/// By the first 4 bytes; a zstd file may start with a skippable frame.
Compression compression_of(std::string_view start);

/// Reads front to back, once.
class Decompressor {
 public:
  /// `bytes` is a whole file and must outlive this object; `name` stands for it in messages. Bytes that are
  /// not compressed are handed out as they are.
  Decompressor(ByteStream& bytes, std::string name);
  ~Decompressor();
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  /// Fills the front of `out` (not empty) and returns how many bytes; 0 only at the end. Throws Error{data}
  /// with file and byte: corrupt, cut off, followed by something else, or a zstd window above 128 MiB; and
  /// Error{resource} when memory runs out. Not to be called again after an error.
  size_t read(std::span<char> out);
  /// That of the file.
  Compression compression() const { return compression_; }

  struct Codec;

 private:
  Compression compression_ = Compression::none;
  std::unique_ptr<Codec> codec_;
};

}  // namespace deltatune
