// One write() a piece.
#include "observe/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/error.h"
#include "base/format.h"

namespace deltatune {
namespace {

[[noreturn]] void fail(const fs::path& path, int code) {
  throw Error(ErrorKind::resource, format("cannot write {}: {}", path.string(), std::strerror(code)),
              path.string(), "check the folder's permissions and the free space");
}

}  // namespace

AppendFile::AppendFile(const fs::path& path) : path_(path) {
  std::error_code code;
  fs::create_directories(path.parent_path(), code);
  if (code) fail(path, code.value());
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  struct stat facts {};
  if (descriptor_ < 0) fail(path, errno);
  if (::fstat(descriptor_, &facts) == 0) size_ = facts.st_size;
}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void AppendFile::append(std::string_view piece) {
  for (std::string_view rest = piece; !rest.empty();) {
    const ssize_t written = ::write(descriptor_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int code = errno;
      if (::ftruncate(descriptor_, size_) != 0) fail(path_, errno);
      fail(path_, code);
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
  size_ += static_cast<int64_t>(piece.size());
}

}  // namespace deltatune
