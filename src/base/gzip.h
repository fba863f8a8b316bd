// Writing gzip (RFC 1952): text in pieces, one member out. Reading is data/decompress.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace deltatune {

class GzipWriter {
 public:
  /// Throws std::bad_alloc.
  GzipWriter();
  ~GzipWriter();
  GzipWriter(const GzipWriter&) = delete;
  GzipWriter& operator=(const GzipWriter&) = delete;

  void add(std::string_view bytes);
  /// The whole member; nothing may be added after it. The same input gives the same bytes.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deltatune
