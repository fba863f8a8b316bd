// Hashing files and options.
#include "data/cache_key.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/format.h"
#include "base/hash.h"
#include "data/remote_files.h"
#include "data/token_cache.h"

namespace deltatune {
namespace {

constexpr size_t piece_bytes = size_t{1} << 20;

void hash_file(const fs::path& path, Hasher& hasher) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto fail = [&](int code) {
    if (descriptor >= 0) ::close(descriptor);
    throw Error(ErrorKind::data, format("cannot read {}: {}", path.string(), std::strerror(code)),
                path.string(), "check the path and its permissions");
  };
  if (descriptor < 0) fail(errno);
  std::vector<std::byte> piece(piece_bytes);
  Hasher content;
  for (;;) {
    const ssize_t count = ::read(descriptor, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(errno);
    if (count == 0) break;
    content.update(std::span(piece).first(static_cast<size_t>(count)));
  }
  ::close(descriptor);
  hasher.update(content.hex());
}

}  // namespace

FileStamps::FileStamps(const std::vector<fs::path>& files) : files_(files) {
  for (const fs::path& file : files) stamps_.push_back(stamp(file));
}

FileStamps::Stamp FileStamps::stamp(const fs::path& path) {
  if (is_remote(path.string())) return {0, 0, 0, 0, file_identity(path)};
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return {};
  const auto ns = [](const timespec& time) { return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec; };
  return {info.st_size, ns(info.st_mtim), ns(info.st_ctim), info.st_ino, {}};
}

bool FileStamps::unchanged() const {
  for (size_t i = 0; i < files_.size(); ++i) {
    const Stamp now = stamp(files_[i]);
    if (now.size < 0 || !(now == stamps_[i])) return false;
  }
  return true;
}

std::string cache_key(const std::vector<fs::path>& files, const RowOptions& options,
                      const std::string& recipe) {
  Hasher hasher;
  hasher.update(format("token cache {}", token_cache_version)).update(recipe);
  const int schema = options.schema.schema ? static_cast<int>(*options.schema.schema) : -1;
  hasher.update(format("{} {} {} {} {} {}", static_cast<int>(options.on_bad_row),
                       static_cast<int>(options.overflow), options.max_length, options.vocab_size,
                       options.keep_all_masked, schema));
  hasher.update(options.schema.messages_field);
  for (const fs::path& file : files) {
    hasher.update(without_compression(remote_name(file.string())).extension().string());
    if (is_remote(file.string())) {
      hasher.update(file_identity(file));
    } else {
      hash_file(file, hasher);
    }
  }
  return hasher.hex();
}

}  // namespace deltatune
