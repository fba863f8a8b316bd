// Frames: messages of known length over a connected stream socket that never blocks.
//
// A frame is a header of 24 bytes (magic "DTHG", type, call number, length of the payload; little-endian, as
// every machine that this program is built for) and its payload. Bytes come from outside until a hello has
// been accepted: a wrong magic, an unknown type or a length above the limit closes the link; memory grows
// only with bytes that have arrived. The caller polls; nothing here waits.
#pragma once

#include <poll.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

namespace deltatune {

enum class FrameType : uint32_t {
  hello = 1,    ///< a rank introduces itself to rank 0
  welcome = 2,  ///< rank 0: all are here
  give = 3,     ///< one rank's part of a call
  all = 4,      ///< the parts of all ranks
  waiting = 5,  ///< rank 0 has come to the call and waits for others
  failure = 6,  ///< rank 0: the group is over, and why
  goodbye = 7,  ///< an orderly end
};

struct Frame {
  FrameType type = FrameType::hello;
  uint64_t call = 0;
  std::string payload;
};

/// Owns a file descriptor.
class FileHandle {
 public:
  explicit FileHandle(int number = -1) : number_(number) {}
  ~FileHandle() { reset(); }
  FileHandle(FileHandle&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  FileHandle& operator=(FileHandle&& other) noexcept;
  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  void reset();

 private:
  int number_;
};

class Link {
 public:
  Link() = default;
  /// `socket` is connected and non-blocking.
  explicit Link(FileHandle socket) : socket_(std::move(socket)) {}

  bool is_open() const { return socket_.is_open(); }
  /// What it waits for now, for poll(); fd -1 when closed.
  struct pollfd interest() const;
  /// Appends a frame; flush() sends it.
  void queue(FrameType type, uint64_t call, std::shared_ptr<const std::string> payload);
  /// Sends what the socket takes. True: nothing is left.
  bool flush();
  /// Reads what has come, up to the end of one frame; that frame then stays until take(). A closed or broken
  /// connection, or bytes that are no frame of at most `longest` bytes, closes the link.
  void receive(uint64_t longest);
  /// The frame that has arrived, or nullptr.
  const Frame* arrived() const { return arrived_ ? &*arrived_ : nullptr; }
  Frame take();
  /// True: what came was no frame.
  bool is_foreign() const { return foreign_; }
  /// Sends no more; the other side sees the end.
  void close() { socket_.reset(); }
  /// Says that nothing more will be sent.
  void end_sending();

 private:
  static constexpr size_t header_bytes = 24;
  struct Outgoing {
    std::array<char, header_bytes> header;
    std::shared_ptr<const std::string> payload;
    size_t sent = 0;  ///< of both together
  };
  bool read_header(uint64_t longest);

  FileHandle socket_;
  std::deque<Outgoing> outgoing_;
  std::array<char, header_bytes> header_{};
  size_t header_read_ = 0;
  std::optional<Frame> incoming_;  ///< header complete
  uint64_t incoming_bytes_ = 0;    ///< of its payload
  size_t payload_read_ = 0;
  std::optional<Frame> arrived_;
  bool foreign_ = false;
};

}  // namespace deltatune
