// Locks by flock(2), age by the time of the last change.
#include "data/cache_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/log.h"

namespace deltatune {
namespace {

using Time = fs::file_time_type;
constexpr std::string_view extension = ".tokens";

// Of names: whatever a host may be called, without dots and dashes.
std::string host_word() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "host";
  std::string out(name.data());
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return out.empty() ? "host" : out;
}

// The file's lock for oneself alone, as long as this object lives.
class Alone {
 public:
  explicit Alone(const fs::path& path)
      : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (descriptor_ < 0) return;
    got_ = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
    in_use_ = !got_ && errno == EWOULDBLOCK;
  }
  ~Alone() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  // `trusted`: the lock alone tells. Else the file has to be a day old, too.
  bool may_remove(const fs::path& path, bool trusted) const {
    if (descriptor_ < 0 || in_use_) return false;
    std::error_code code;
    const Time time = fs::last_write_time(path, code);
    return (got_ && trusted) || (!code && time < Time::clock::now() - std::chrono::hours(24));
  }

 private:
  int descriptor_;
  bool got_ = false;
  bool in_use_ = false;
};

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code))
    out.push_back(it->path());
  return out;
}

bool is_cache(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.size() == 32 + extension.size() && name.ends_with(extension) &&
         name.find_first_not_of("0123456789abcdef") == 32;
}

}  // namespace

FileHold::FileHold(const fs::path& path)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ >= 0) static_cast<void>(::flock(descriptor_, LOCK_SH | LOCK_NB));
}

FileHold::~FileHold() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

FileHold::FileHold(FileHold&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileHold& FileHold::operator=(FileHold&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

bool FileHold::has_name() const {
  struct stat status {};
  return descriptor_ < 0 || ::fstat(descriptor_, &status) != 0 || status.st_nlink > 0;
}

fs::path temporary_cache_name(const fs::path& path) {
  static std::atomic<int> count{0};
  return path.string() + format(".{}-{}-{}.tmp", host_word(), ::getpid(), ++count);
}

void remove_cache_leftovers(const fs::path& folder) {
  const std::string ours = format("{}.{}-", extension, host_word());
  for (const fs::path& path : files_of(folder)) {
    const std::string name = path.filename().string();
    if (name.find(".tokens.") == std::string::npos || !name.ends_with(".tmp")) continue;
    const Alone alone(path);
    std::error_code ignored;
    if (alone.may_remove(path, name.find(ours) != std::string::npos)) fs::remove(path, ignored);
  }
}

void trim_cache_folder(const fs::path& folder, int64_t limit, const fs::path& keep) {
  if (limit <= 0) return;
  struct Entry {
    Time used;
    fs::path path;
    int64_t size = 0;
  };
  std::vector<Entry> entries;
  int64_t total = 0;
  for (const fs::path& path : files_of(folder)) {
    std::error_code gone, untimed;
    const auto size = static_cast<int64_t>(is_cache(path) ? fs::file_size(path, gone) : 0);
    const Time used = fs::last_write_time(path, untimed);
    if (gone || untimed || !is_cache(path)) continue;
    total += size;
    if (path.filename() != keep.filename()) entries.push_back({used, path, size});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.used, a.path) < std::pair(b.used, b.path);
  });
  int64_t removed = 0, bytes = 0;
  for (const Entry& entry : entries) {
    if (total <= limit) break;
    const Alone alone(entry.path);
    std::error_code code;
    if (!alone.may_remove(entry.path, true) || !fs::remove(entry.path, code)) continue;
    total -= entry.size;
    bytes += entry.size;
    ++removed;
  }
  if (removed > 0) {
    log::info("{} token caches, {:.3g} GiB, are removed from {}: dataset_cache_limit is {:.3g} GiB", removed,
              static_cast<double>(bytes) / (1 << 30), folder.string(),
              static_cast<double>(limit) / (1 << 30));
  }
}

void touch_cache(const fs::path& path) {
  std::error_code ignored;
  fs::last_write_time(path, Time::clock::now(), ignored);
}

}  // namespace deltatune
