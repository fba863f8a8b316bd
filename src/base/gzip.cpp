// zlib's deflate.
#include "base/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>
#include <new>

#include "base/error.h"

namespace deltatune {

struct GzipWriter::State {
  z_stream stream{};
  std::string out;

  void run(std::string_view bytes, int flush) {
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // zlib does not write there
    stream.avail_in = static_cast<uInt>(bytes.size());
    std::array<char, 1 << 16> piece;
    do {
      stream.next_out = reinterpret_cast<Bytef*>(piece.data());
      stream.avail_out = static_cast<uInt>(piece.size());
      ::deflate(&stream, flush);
      out.append(piece.data(), piece.size() - stream.avail_out);
    } while (stream.avail_out == 0);
    DELTATUNE_ASSERT(stream.avail_in == 0);
  }
};

GzipWriter::GzipWriter() : state_(std::make_unique<State>()) {
  constexpr int gzip_window = 15 + 16;
  if (::deflateInit2(&state_->stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, gzip_window, 8,
                     Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::bad_alloc();
  }
}

GzipWriter::~GzipWriter() {
  ::deflateEnd(&state_->stream);
}

void GzipWriter::add(std::string_view bytes) {
  constexpr size_t most = std::numeric_limits<uInt>::max();  // zlib counts in 32 bits
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, most);
    state_->run(piece, Z_NO_FLUSH);
    bytes.remove_prefix(piece.size());
  }
}

std::string GzipWriter::finish() {
  state_->run({}, Z_FINISH);
  return std::move(state_->out);
}

}  // namespace deltatune
