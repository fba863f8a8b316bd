// Where the bytes of a data file come from: places of it in any order, or pieces front to back.
//
// RandomAccess is what Parquet needs, ByteStream what lines need. Both know nothing of formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "base/file.h"

namespace deltatune {

/// A file of known size, read at any place.
class RandomAccess {
 public:
  RandomAccess() = default;
  virtual ~RandomAccess() = default;
  RandomAccess(const RandomAccess&) = delete;
  RandomAccess& operator=(const RandomAccess&) = delete;
  virtual uint64_t size() const = 0;  ///< bytes
  /// Fills `out` from `offset`; returns how many bytes, fewer than asked for only where the file ends. May be
  /// called by several threads. Throws Error.
  virtual size_t read_at(uint64_t offset, std::span<char> out) = 0;
};

/// Bytes in memory that outlive this object.
class MemoryBytes final : public RandomAccess {
 public:
  explicit MemoryBytes(std::string_view bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  size_t read_at(uint64_t offset, std::span<char> out) override;

 private:
  std::string_view bytes_;
};

/// Bytes front to back, a piece at a time.
class ByteStream {
 public:
  ByteStream() = default;
  virtual ~ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  virtual uint64_t size() const = 0;  ///< of all pieces, bytes
  /// The next piece, valid until the next call; empty at the end. The first has 8 bytes or more unless all of
  /// the file is shorter. Throws Error.
  virtual std::string_view next() = 0;
};

/// Bytes in memory as one piece.
class OnePiece final : public ByteStream {
 public:
  explicit OnePiece(std::string_view bytes) : bytes_(bytes), size_(bytes.size()) {}
  uint64_t size() const override { return size_; }
  std::string_view next() override { return std::exchange(bytes_, std::string_view()); }

 private:
  std::string_view bytes_;
  uint64_t size_;
};

/// A regular file on a mounted disk, by pread(2): pages that were read do not count as the program's memory.
class LocalBytes final : public RandomAccess {
 public:
  /// Throws Error{data} when it cannot be opened or is no regular file.
  explicit LocalBytes(const fs::path& path);
  ~LocalBytes() override;
  uint64_t size() const override { return size_; }
  size_t read_at(uint64_t offset, std::span<char> out) override;

 private:
  fs::path path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

}  // namespace deltatune
