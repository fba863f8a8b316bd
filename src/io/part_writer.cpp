// Direct and ordinary writes of ranges.
#include "io/part_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace deltatune {
namespace {

constexpr size_t page = StagingLanes::page;
// Below this a direct write's two edges cost more than the copy that it saves.
constexpr size_t least_direct = size_t{1} << 20;

class RangeWriter {
 public:
  explicit RangeWriter(const fs::path& path) : path_(path) {
    ordinary_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (ordinary_ < 0) fail(errno);
    direct_ = ::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC);  // -1: not on this file system
  }
  ~RangeWriter() {
    ::close(ordinary_);
    if (direct_ >= 0) ::close(direct_);
  }
  RangeWriter(const RangeWriter&) = delete;
  RangeWriter& operator=(const RangeWriter&) = delete;

  void reserve(size_t size) {
    if (size == 0 || ::fallocate(ordinary_, 0, 0, static_cast<off_t>(size)) == 0) return;
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) fail(errno);  // others: it cannot
  }
  // `from` has the remainder by pages that `begin` has.
  void write(size_t begin, std::span<const std::byte> from) {
    const size_t head = std::min(from.size(), (page - begin % page) % page);
    const size_t body = (from.size() - head) / page * page;
    if (body < least_direct || !direct_works_) {
      put(ordinary_, begin, from);
      return;
    }
    put(ordinary_, begin, from.first(head));
    if (!put(direct_, begin + head, from.subspan(head, body), true)) {
      direct_works_ = false;
      put(ordinary_, begin + head, from.subspan(head, body));
    }
    put(ordinary_, begin + head + body, from.subspan(head + body));
  }
  void sync() {
    if (::fsync(ordinary_) != 0) fail(errno);
  }

 private:
  // False: the file system does not take such a direct write.
  bool put(int descriptor, size_t begin, std::span<const std::byte> from, bool direct = false) {
    while (!from.empty()) {
      const ssize_t put = ::pwrite(descriptor, from.data(), from.size(), static_cast<off_t>(begin));
      if (put < 0 && errno == EINTR) continue;
      if (direct && (put < 0 ? errno == EINVAL || errno == EBADF : static_cast<size_t>(put) % page != 0))
        return false;
      if (put <= 0) fail(put < 0 ? errno : EIO);
      begin += static_cast<size_t>(put);
      from = from.subspan(static_cast<size_t>(put));
    }
    return true;
  }
  [[noreturn]] void fail(int code) const {
    const char* fix = code == ENOSPC || code == EDQUOT || code == EFBIG
                          ? "free some disk space; nothing that existed before was changed"
                          : "check the folder's permissions";
    throw Error(ErrorKind::resource, "cannot write " + path_.string() + ": " + std::strerror(code),
                path_.string(), fix);
  }

  fs::path path_;
  int ordinary_ = -1;
  int direct_ = -1;
  std::atomic<bool> direct_works_{true};
};

}  // namespace

size_t first_stretch(size_t begin, size_t bytes, size_t unit) {
  constexpr size_t block = StagingLanes::block;
  size_t boundary = (begin / block + 1) * block;
  // Not inside an element: data may start anywhere in a file.
  if (boundary - begin < unit) boundary += block;
  if (begin + bytes <= boundary) return bytes;
  return (boundary - begin) / unit * unit;
}

void cut_range(size_t begin, size_t bytes, size_t unit, const std::function<void(size_t, size_t)>& each) {
  while (bytes > 0) {
    const size_t stretch = first_stretch(begin, bytes, unit);
    each(begin, stretch);
    begin += stretch;
    bytes -= stretch;
  }
}

std::vector<FileBlocks> write_pieces(std::span<const PartFile> files, std::vector<FilePiece> pieces,
                                     const StagingLanes& lanes, const std::atomic<bool>& stop,
                                     std::atomic<size_t>& written) {
  std::sort(pieces.begin(), pieces.end(), [](const FilePiece& a, const FilePiece& b) {
    return std::pair(a.file, a.begin) < std::pair(b.file, b.begin);
  });
  std::vector<std::unique_ptr<RangeWriter>> writers(files.size());
  for (size_t f = 0; f < files.size(); ++f) {
    const bool used =
        std::any_of(pieces.begin(), pieces.end(), [&](const FilePiece& p) { return p.file == f; });
    if (!used && !files[f].reserve) continue;
    writers[f] = std::make_unique<RangeWriter>(files[f].path);
    if (files[f].reserve) writers[f]->reserve(files[f].size);
  }
  std::vector<std::string> hashes(pieces.size());
  const auto one = [&](int64_t i, StagingLanes::Lane& lane) {
    const FilePiece& piece = pieces[static_cast<size_t>(i)];
    DELTATUNE_ASSERT(piece.bytes <= StagingLanes::block);
    // At the file offset's place in its page: then the whole pages are pages of the memory too.
    const std::span<std::byte> bytes(lane.first + piece.begin % page, piece.bytes);
    piece.fill(bytes.data(), lane);
    hashes[static_cast<size_t>(i)] = block_hash(bytes);
    writers[piece.file]->write(piece.begin, bytes);
    written += piece.bytes;
  };
  lanes.run(static_cast<int64_t>(pieces.size()), one, &stop);
  std::vector<FileBlocks> out;
  for (const PartFile& file : files) out.push_back({file.path.filename().string(), file.size, {}});
  if (stop) return out;
  // Each file's fsync waits for the disk: side by side they take the time of one.
  lanes.run(static_cast<int64_t>(files.size()), [&](int64_t f, StagingLanes::Lane&) {
    if (writers[static_cast<size_t>(f)]) writers[static_cast<size_t>(f)]->sync();
  });
  for (size_t i = 0; i < pieces.size(); ++i)
    out[pieces[i].file].blocks.push_back({pieces[i].begin, pieces[i].bytes, std::move(hashes[i])});
  return out;
}

}  // namespace deltatune
