// Frames in and out of non-blocking sockets.
#include "comm/frames.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace deltatune {
namespace {

constexpr uint32_t magic = 0x47485444;  // "DTHG"

struct Header {
  uint32_t magic;
  uint32_t type;
  uint64_t call;
  uint64_t bytes;
};

}  // namespace

FileHandle& FileHandle::operator=(FileHandle&& other) noexcept {
  if (this != &other) {
    reset();
    number_ = std::exchange(other.number_, -1);
  }
  return *this;
}

void FileHandle::reset() {
  if (number_ >= 0) ::close(number_);
  number_ = -1;
}

struct pollfd Link::interest() const {
  struct pollfd out {};
  out.fd = socket_.get();
  if (!arrived_) out.events |= POLLIN;
  if (!outgoing_.empty()) out.events |= POLLOUT;
  // A link that holds a frame nobody has asked for yet, and sends nothing, is not looked at.
  if (out.events == 0) out.fd = -1;
  return out;
}

void Link::queue(FrameType type, uint64_t call, std::shared_ptr<const std::string> payload) {
  static_assert(sizeof(Header) == header_bytes);
  if (!is_open()) return;
  const Header header{magic, static_cast<uint32_t>(type), call, payload ? payload->size() : 0};
  Outgoing out{{}, std::move(payload), 0};
  std::memcpy(out.header.data(), &header, sizeof header);
  outgoing_.push_back(std::move(out));
}

bool Link::flush() {
  while (is_open() && !outgoing_.empty()) {
    Outgoing& next = outgoing_.front();
    const size_t payload = next.payload ? next.payload->size() : 0;
    const bool in_header = next.sent < header_bytes;
    const char* from =
        in_header ? next.header.data() + next.sent : next.payload->data() + (next.sent - header_bytes);
    const size_t count = in_header ? header_bytes - next.sent : header_bytes + payload - next.sent;
    const ssize_t sent =
        ::send(socket_.get(), from, count, MSG_NOSIGNAL | (in_header && payload ? MSG_MORE : 0));
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (sent < 0) {
      // What the other side said before it closed may still lie here unread: the end is seen by receive().
      outgoing_.clear();
      return true;
    }
    next.sent += static_cast<size_t>(sent);
    if (next.sent == header_bytes + payload) outgoing_.pop_front();
  }
  return true;
}

bool Link::read_header(uint64_t longest) {
  Header header{};
  std::memcpy(&header, header_.data(), sizeof header);
  if (header.magic != magic || header.type < 1 || header.type > static_cast<uint32_t>(FrameType::goodbye) ||
      header.bytes > longest)
    return false;
  incoming_ = Frame{static_cast<FrameType>(header.type), header.call, {}};
  incoming_bytes_ = header.bytes;
  payload_read_ = 0;
  return true;
}

void Link::receive(uint64_t longest) {
  while (is_open() && !arrived_) {
    char* to = header_.data() + header_read_;
    size_t count = header_bytes - header_read_;
    if (incoming_) {
      // Doubles what has arrived: an announced length alone costs nothing.
      std::string& payload = incoming_->payload;
      const uint64_t room = std::min<uint64_t>(incoming_bytes_, std::max<uint64_t>(65536, 2 * payload_read_));
      if (payload.size() < room && payload_read_ == payload.size()) payload.resize(room);
      to = payload.data() + payload_read_;
      count = payload.size() - payload_read_;
    }
    if (count > 0) {
      const ssize_t got = ::recv(socket_.get(), to, count, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got <= 0) return close();
      (incoming_ ? payload_read_ : header_read_) += static_cast<size_t>(got);
    }
    if (!incoming_) {
      if (header_read_ < header_bytes) {
        // A stranger's first bytes are enough to tell.
        if (std::memcmp(header_.data(), &magic, std::min(header_read_, sizeof magic)) == 0) continue;
        foreign_ = true;
        return close();
      }
      if (!read_header(longest)) {
        foreign_ = true;
        return close();
      }
    }
    if (incoming_ && payload_read_ == incoming_bytes_) {
      arrived_ = std::move(incoming_);
      incoming_.reset();
      header_read_ = 0;
    }
  }
}

Frame Link::take() {
  DELTATUNE_ASSERT(arrived_.has_value());
  Frame out = std::move(*arrived_);
  arrived_.reset();
  return out;
}

void Link::end_sending() {
  if (is_open()) ::shutdown(socket_.get(), SHUT_WR);
}

}  // namespace deltatune
