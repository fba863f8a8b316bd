// Bytes of memory and of local files.
#include "data/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/format.h"

namespace deltatune {

size_t MemoryBytes::read_at(uint64_t offset, std::span<char> out) {
  if (offset >= bytes_.size()) return 0;
  const size_t count = std::min(out.size(), bytes_.size() - static_cast<size_t>(offset));
  std::copy_n(bytes_.data() + offset, count, out.data());
  return count;
}

LocalBytes::LocalBytes(const fs::path& path) : path_(path) {
  // O_NONBLOCK: a named pipe must not wait for a writer; regular files do not know it.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
    const int reason = errno;
    if (descriptor_ >= 0) ::close(descriptor_);
    throw Error(ErrorKind::data, format("cannot open the file: {}", std::strerror(reason)), path.string(),
                "check the path and its permissions");
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    throw Error(ErrorKind::data, "not a regular file", path.string(), "write its rows to a file");
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

LocalBytes::~LocalBytes() {
  ::close(descriptor_);
}

size_t LocalBytes::read_at(uint64_t offset, std::span<char> out) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t count =
        ::pread(descriptor_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw Error(ErrorKind::data, format("cannot read the file: {}", std::strerror(errno)),
                  format("{}, byte {}", path_.string(), offset + done), "check the disk");
    }
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

}  // namespace deltatune
