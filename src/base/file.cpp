// POSIX file access with errors that name the path and the reason.
#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace deltatune {
namespace {

[[noreturn]] void fail_read(const fs::path& path, int code) {
  throw Error(ErrorKind::data, "cannot read " + path.string() + ": " + std::strerror(code), path.string(),
              "check the path and its permissions");
}

[[noreturn]] void fail_write(const fs::path& path, int code) {
  const char* fix = code == ENOSPC || code == EDQUOT || code == EFBIG
                        ? "free some disk space; nothing that existed before was changed"
                        : "check the folder's permissions";
  throw Error(ErrorKind::resource, "cannot write " + path.string() + ": " + std::strerror(code),
              path.string(), fix);
}

int open_for_read(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail_read(path, errno);
  return descriptor;
}

}  // namespace

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const int descriptor = open_for_read(path);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    const int code = S_ISDIR(info.st_mode) ? EISDIR : (errno ? errno : EINVAL);
    ::close(descriptor);
    fail_read(path, code);
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (mapped == MAP_FAILED) {
      const int code = errno;
      ::close(descriptor);
      size_ = 0;
      fail_read(path, code);
    }
    data_ = static_cast<const std::byte*>(mapped);
  }
  ::close(descriptor);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

std::string read_file(const fs::path& path) {
  const int descriptor = open_for_read(path);
  std::string out;
  char block[1 << 16];
  for (;;) {
    const ssize_t got = ::read(descriptor, block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int code = errno;
      ::close(descriptor);
      fail_read(path, code);
    }
    if (got == 0) break;
    out.append(block, static_cast<size_t>(got));
  }
  ::close(descriptor);
  return out;
}

RangeReader::RangeReader(const fs::path& path) : descriptor_(open_for_read(path)), path_(path) {
  struct stat info {};
  if (::fstat(descriptor_, &info) == 0 && S_ISREG(info.st_mode)) return;
  ::close(descriptor_);
  fail_read(path, EINVAL);
}

RangeReader::~RangeReader() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

RangeReader::RangeReader(RangeReader&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

void RangeReader::read(size_t begin, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t got = ::pread(descriptor_, to.data(), to.size(), static_cast<off_t>(begin));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_read(path_, errno);
    if (got == 0) {
      throw Error(ErrorKind::data, path_.string() + " has become shorter while it was read", path_.string(),
                  "do not change files that a run reads");
    }
    begin += static_cast<size_t>(got);
    to = to.subspan(static_cast<size_t>(got));
  }
}

FileWriter::FileWriter(const fs::path& path) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail_write(path, errno);
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FileWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) fail_write(path_, put < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
}

void FileWriter::write(std::string_view bytes) {
  write(std::as_bytes(std::span(bytes)));
}

void FileWriter::close() {
  if (::fsync(descriptor_) != 0) fail_write(path_, errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) fail_write(path_, errno);
}

void sync_path(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail_write(path, errno);
  const int result = ::fsync(descriptor);
  const int code = errno;
  ::close(descriptor);
  // Some file systems cannot fsync a folder and say EINVAL; there is nothing more to do about it then.
  if (result != 0 && code != EINVAL) fail_write(path, code);
}

void write_file_atomic(const fs::path& link, std::string_view bytes) {
  std::error_code code;
  const fs::path path = fs::is_symlink(link, code) ? fs::weakly_canonical(link, code) : link;
  // A rename would replace a device or pipe by a file.
  if (fs::exists(path, code) && !fs::is_regular_file(path, code)) {
    throw Error(ErrorKind::usage, "not a regular file", path.string(), "name a file, new or old");
  }
  const fs::path temporary = path.string() + ".tmp";
  try {
    FileWriter writer(temporary);
    writer.write(bytes);
    writer.close();
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_write(path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_path(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

void copy_file_synced(const fs::path& from, const fs::path& to) {
  const MappedFile source(from);
  FileWriter writer(to);
  writer.write(source.bytes());
  writer.close();
}

}  // namespace deltatune
