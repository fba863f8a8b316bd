// Files: read, memory-map, and write so that a reader sees the old file or the new one, never half of one.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltatune {

namespace fs = std::filesystem;

/// Whole file as bytes. Throws Error{data} when it cannot be read.
std::string read_file(const fs::path& path);

/// Writes `path`.tmp, fsyncs it, renames it to `path` and fsyncs the folder. Throws Error{resource} (disk
/// full, no permission) and removes the temporary file.
void write_file_atomic(const fs::path& path, std::string_view bytes);

/// fsync of a file or folder by path; throws Error{resource}.
void sync_path(const fs::path& path);

/// Byte-for-byte copy with fsync (hard links are not used: the source may be edited later). Throws
/// Error{resource} for the destination, Error{data} for the source.
void copy_file_synced(const fs::path& from, const fs::path& to);

/// A read-only mapping of a whole file; an empty file maps to an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  /// Throws Error{data} when the file is missing, is not a regular file or cannot be mapped.
  explicit MappedFile(const fs::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const fs::path& path() const { return path_; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  fs::path path_;
};

/// An open file of which byte ranges are read, from several threads if need be.
class RangeReader {
 public:
  /// Throws Error{data} when the file is missing or is not a regular file.
  explicit RangeReader(const fs::path& path);
  ~RangeReader();
  RangeReader(RangeReader&& other) noexcept;
  RangeReader(const RangeReader&) = delete;
  RangeReader& operator=(const RangeReader&) = delete;

  /// Throws Error{data}: a failing disk, or an end of the file before the range's.
  void read(size_t begin, std::span<std::byte> to) const;
  const fs::path& path() const { return path_; }

 private:
  int descriptor_ = -1;
  fs::path path_;
};

/// An open file that is written front to back. Errors are Error{resource} naming the path; a file that was
/// not close()d is left as it is (callers write to temporary names).
class FileWriter {
 public:
  explicit FileWriter(const fs::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  void write(std::span<const std::byte> bytes);
  void write(std::string_view bytes);
  /// Flushes to the disk (fsync) and closes.
  void close();

 private:
  int descriptor_ = -1;
  fs::path path_;
};

}  // namespace deltatune
