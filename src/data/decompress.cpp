// zlib's inflate and zstd's streaming decoder behind one read().
#include "data/decompress.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>

#include "base/error.h"
#include "base/format.h"

namespace deltatune {

struct Decompressor::Codec {
  // `first` is the first piece of `bytes`.
  Codec(ByteStream& bytes, std::string_view first, std::string name)
      : piece_(first), bytes_(bytes), name_(std::move(name)) {}
  virtual ~Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;
  virtual size_t read(std::span<char> out) = 0;

 protected:
  [[noreturn]] void fail(const std::string& what, const std::string& fix) const {
    throw Error(ErrorKind::data, what, format("{}, byte {} of {}", name_, at_, bytes_.size()), fix);
  }
  [[noreturn]] void corrupt(const char* format_name, const char* reason) const {
    fail(format("the {} data is corrupt: {}", format_name, reason ? reason : "unknown reason"),
         "copy or download the file again, and compare its checksum");
  }
  [[noreturn]] void cut_off(const char* format_name) const {
    fail(format("the {} data is cut off", format_name),
         "copy or download the file again: its end is missing");
  }
  [[noreturn]] void no_memory() const {
    throw Error(ErrorKind::resource, "no memory to decompress", name_, "free memory, or decompress the file");
  }

  // False at the end of the file; else piece_ has bytes.
  bool more() {
    if (piece_.empty() && !ended_) piece_ = bytes_.next();
    ended_ = ended_ || piece_.empty();
    return !ended_;
  }
  void consume(size_t count) {
    piece_.remove_prefix(count);
    at_ += count;
  }

  std::string_view piece_;  // bytes that are not consumed yet
  uint64_t at_ = 0;         // compressed bytes consumed

 private:
  ByteStream& bytes_;
  std::string name_;
  bool ended_ = false;
};

namespace {

// zlib counts in 32 bits.
constexpr size_t most_at_once = size_t{1} << 30;
constexpr int zstd_window_log = 27;

struct Plain final : Decompressor::Codec {
  using Codec::Codec;
  size_t read(std::span<char> out) override {
    if (!more()) return 0;
    const size_t count = std::min(out.size(), piece_.size());
    std::copy_n(piece_.data(), count, out.data());
    consume(count);
    return count;
  }
};

struct Gzip final : Decompressor::Codec {
  Gzip(ByteStream& bytes, std::string_view first, std::string name) : Codec(bytes, first, std::move(name)) {
    if (::inflateInit2(&stream_, 15 + 16) != Z_OK) no_memory();  // 32 KiB window, gzip headers only
  }
  ~Gzip() override { ::inflateEnd(&stream_); }

  size_t read(std::span<char> out) override {
    for (;;) {
      if (between_members_ && !start_member()) return 0;
      const bool ended = !more();
      const size_t offered = std::min(piece_.size(), most_at_once);
      const size_t room = std::min(out.size(), most_at_once);
      stream_.next_in = reinterpret_cast<z_const Bytef*>(const_cast<char*>(piece_.data()));
      stream_.avail_in = static_cast<uInt>(offered);
      stream_.next_out = reinterpret_cast<Bytef*>(out.data());
      stream_.avail_out = static_cast<uInt>(room);
      const int result = ::inflate(&stream_, Z_NO_FLUSH);
      consume(offered - stream_.avail_in);
      const size_t count = room - stream_.avail_out;
      if (result == Z_MEM_ERROR) no_memory();
      if (result == Z_STREAM_END) {
        between_members_ = true;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        corrupt("gzip", stream_.msg);
      } else if (count == 0 && ended) {
        cut_off("gzip");
      }
      if (count > 0) return count;
    }
  }

 private:
  // False at the end of the file.
  bool start_member() {
    while (more() && piece_[0] == '\0') {
      consume(std::min(piece_.find_first_not_of('\0'), piece_.size()));
      padding_ = true;
    }
    if (!more()) return false;
    if (!padding_ && piece_[0] == '\x1F') {  // a cut-off magic number is a cut-off member
      ::inflateReset(&stream_);
      between_members_ = false;
      return true;
    }
    fail("something other than gzip follows the gzip data", "write the file again with gzip alone");
  }

  z_stream stream_{};
  bool padding_ = false;  // zeros were seen: nothing may follow them
  bool between_members_ = true;
};

struct Zstd final : Decompressor::Codec {
  Zstd(ByteStream& bytes, std::string_view first, std::string name)
      : Codec(bytes, first, std::move(name)), context_(ZSTD_createDCtx()) {
    if (!context_) no_memory();
    ::ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, zstd_window_log);
  }

  size_t read(std::span<char> out) override {
    for (;;) {
      const bool ended = !more();
      if (between_frames_ && ended) return 0;
      ZSTD_inBuffer source{piece_.data(), piece_.size(), 0};
      ZSTD_outBuffer target{out.data(), out.size(), 0};
      const size_t result = ::ZSTD_decompressStream(context_.get(), &target, &source);
      consume(source.pos);
      if (::ZSTD_isError(result)) refuse(result);
      between_frames_ = result == 0;
      if (target.pos > 0) return target.pos;
      if (!between_frames_ && ended) cut_off("zstd");
    }
  }

 private:
  [[noreturn]] void refuse(size_t result) const {
    const ZSTD_ErrorCode code = ::ZSTD_getErrorCode(result);
    if (code == ZSTD_error_memory_allocation) no_memory();
    if (code == ZSTD_error_frameParameter_windowTooLarge) {
      fail("the zstd data needs a window above 128 MiB", "compress it again without --ultra or --long");
    }
    if (code == ZSTD_error_dictionary_wrong) {
      fail("the zstd data needs a dictionary", "compress it again without one");
    }
    if (code == ZSTD_error_prefix_unknown && between_frames_) {
      fail("something other than zstd follows the zstd data", "write the file again with zstd alone");
    }
    corrupt("zstd", ::ZSTD_getErrorName(result));
  }
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ::ZSTD_freeDCtx(context); }
  };
  std::unique_ptr<ZSTD_DCtx, Free> context_;
  bool between_frames_ = true;
};

}  // namespace

Compression compression_of(std::string_view start) {
  if (start.substr(0, 2) == "\x1F\x8B") return Compression::gzip;
  if (start.substr(0, 4) == "\x28\xB5\x2F\xFD") return Compression::zstd;
  const bool skippable =
      start.size() >= 4 && (start[0] & 0xF0) == 0x50 && start.substr(1, 3) == "\x2A\x4D\x18";
  return skippable ? Compression::zstd : Compression::none;
}

Decompressor::Decompressor(ByteStream& bytes, std::string name) {
  const std::string_view first = bytes.next();
  compression_ = compression_of(first);
  switch (compression_) {
    case Compression::none:
      codec_ = std::make_unique<Plain>(bytes, first, std::move(name));
      break;
    case Compression::gzip:
      codec_ = std::make_unique<Gzip>(bytes, first, std::move(name));
      break;
    case Compression::zstd:
      codec_ = std::make_unique<Zstd>(bytes, first, std::move(name));
      break;
  }
}

Decompressor::~Decompressor() = default;

size_t Decompressor::read(std::span<char> out) {
  DELTATUNE_ASSERT(!out.empty());
  return codec_->read(out);
}

}  // namespace deltatune
