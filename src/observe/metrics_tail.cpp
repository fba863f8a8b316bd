// Reading a growing file in chunks and cutting it into lines.
#include "observe/metrics_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/format.h"

namespace deltatune {
namespace {

constexpr size_t chunk_bytes = size_t{1} << 20;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void fail(const fs::path& path, int code) {
  throw Error(ErrorKind::data, format("cannot read {}: {}", path.string(), std::strerror(code)),
              path.string(), "check that it is a file and that you may read it");
}

}  // namespace

void MetricsTail::line(std::string_view text, const std::function<void(const json::Value&)>& visit) {
  json::Value event;
  try {
    event = json::parse(text, "metrics");
  } catch (const Error&) {
    ++skipped_;
    return;
  }
  const json::Value* name = event.find("event");
  if (name == nullptr || !name->is_string()) {
    ++skipped_;
    return;
  }
  visit(event);
}

void MetricsTail::read(const std::function<void(const json::Value&)>& visit,
                       const std::function<void()>& restart,
                       const std::function<void(int64_t, int64_t)>& progress) {
  const Descriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe must not block
  if (file.get() < 0) {
    if (errno == ENOENT) return;
    fail(path_, errno);
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail(path_, errno);
  if (!S_ISREG(info.st_mode)) fail(path_, EINVAL);
  const bool other = info.st_dev != device_ || info.st_ino != inode_ || info.st_size < position_;
  if (other) {
    if (position_ > 0 || skipped_ > 0) restart();
    position_ = skipped_ = 0;
    device_ = info.st_dev;
    inode_ = info.st_ino;
  }
  std::string begun;      // of a line whose end is in a later chunk
  bool too_long = false;  // begun is not kept any more
  int64_t at = position_;
  std::vector<char> chunk(chunk_bytes);
  for (;;) {
    const ssize_t got = ::pread(file.get(), chunk.data(), chunk.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path_, errno);
    if (got == 0) return;
    std::string_view rest(chunk.data(), static_cast<size_t>(got));
    while (!rest.empty()) {
      const size_t end = rest.find('\n');
      const std::string_view piece = rest.substr(0, end);
      too_long = too_long || begun.size() + piece.size() > max_line;
      if (end == std::string_view::npos) {
        if (too_long) {
          begun.clear();
        } else {
          begun += piece;
        }
        break;
      }
      if (too_long) {
        ++skipped_;
      } else if (begun.empty()) {
        line(piece, visit);
      } else {
        begun += piece;
        line(begun, visit);
      }
      begun.clear();
      too_long = false;
      rest.remove_prefix(end + 1);
      position_ = at + got - static_cast<int64_t>(rest.size());
    }
    at += got;
    if (progress && at < info.st_size) progress(at, info.st_size);
  }
}

}  // namespace deltatune
