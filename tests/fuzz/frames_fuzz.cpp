// Bytes from the port where ranks meet: any stream, cut into pieces anywhere, through the reader of frames,
// and every frame's payload through those that take payloads apart.
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "comm/frames.h"
#include "comm/host_star.h"

using namespace deltatune;

namespace {

constexpr uint64_t longest = 40000;

void take_apart(const std::string& payload) {
  for (const size_t count : {size_t{2}, size_t{4}, size_t{100}}) {
    try {
      const auto texts = unpack_texts(payload, count);
      DELTATUNE_ASSERT(pack_texts(texts) == payload);
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::internal) throw;  // an assertion: a finding
    }
  }
  DELTATUNE_ASSERT(unpack_failure(payload).kind() == ErrorKind::distributed);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) return 0;
  FileHandle sender(pair[0]);
  Link link{FileHandle(pair[1])};
  size_t payloads = 0;
  for (size_t at = 0; at < size && link.is_open();) {
    // The length of each piece comes from the input.
    const size_t piece = std::min(size - at, size_t{1} + data[at] % 61u);
    if (::send(sender.get(), data + at, piece, MSG_NOSIGNAL) < 0) break;
    at += piece;
    link.receive(longest);
    while (link.arrived() != nullptr) {
      const Frame frame = link.take();
      DELTATUNE_ASSERT(frame.payload.size() <= longest);
      payloads += frame.payload.size();
      take_apart(frame.payload);
      link.receive(longest);
    }
  }
  DELTATUNE_ASSERT(payloads <= size);
  sender.reset();
  link.receive(longest);
  DELTATUNE_ASSERT(!link.is_open() || link.arrived() != nullptr);
  return 0;
}
