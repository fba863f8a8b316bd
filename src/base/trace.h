// Tracing: what ops and spans note while a profiler asks for it. Header-only, so that every folder can be
// timed without knowing who reports; the readers are in observe/.
//
// A profiler makes a TraceBuffer and sets current_trace in the thread that it watches. Without one, a scope
// costs one load and one branch. Invariants: all room is taken when the buffer is made, nothing allocates
// later; what does not fit is counted, not kept; scopes nest, and are opened and closed by one thread. The
// buffer knows nothing of devices: `push` and `pop` tell a tracer of device activity which event is open.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace deltatune {

/// What a step is doing. `comm`: between ranks.
enum class TracePhase : uint8_t { other, forward, recompute, backward, update, comm, count };
inline const char* name_of(TracePhase phase) {
  static constexpr const char* names[] = {"other", "forward", "recompute", "backward", "update", "comm"};
  return names[static_cast<size_t>(phase)];
}

enum class TraceKind : uint8_t {
  op,      ///< work of a device: an op, a copy, a collective
  launch,  ///< a graph of ops
  span,    ///< the host's own work
  wait,    ///< the host waits for the device
  data,    ///< the host waits for rows
};

/// Sizes of an op as numbers: "bf16 [8192, 5120]", or of a matrix product "nt 8192x5120x16480 bf16 +=".
struct TraceShape {
  const char* layout = "";  ///< of a matrix product; a literal
  const char* dtype = "";   ///< a literal
  bool adds = false;        ///< a matrix product that is added to what is there
  int rank = 0;
  int64_t d[4] = {};

  bool operator==(const TraceShape& other) const {
    return std::string_view(layout) == other.layout && std::string_view(dtype) == other.dtype &&
           adds == other.adds && rank == other.rank && std::memcmp(d, other.d, sizeof d) == 0;
  }
  /// Empty without sizes.
  std::string text() const {
    if (rank == 0) return "";
    const bool product = *layout != '\0';
    std::string out = product ? std::string(layout) + " " : std::string(dtype) + " [";
    for (int i = 0; i < rank; ++i) {
      if (i > 0) out += product ? "x" : ", ";
      out += std::to_string(d[i]);
    }
    if (!product) return out + "]";
    return out + " " + dtype + (adds ? " +=" : "");
  }
};

/// One scope. Times are those of std::chrono::steady_clock.
struct TraceEvent {
  const char* name = "";    ///< a literal
  const char* kernel = "";  ///< what serves the op, "cublaslt"; empty: not an op of the table
  char stream[16] = "";     ///< name of the stream; empty: the host's own work
  TraceShape shape;
  double bytes = 0;  ///< read and written
  double flops = 0;
  int64_t begin_ns = 0;      ///< of the call
  int64_t end_ns = 0;        ///< 0: still open
  int64_t run_begin_ns = 0;  ///< on a stream that is a thread: when it ran; 0: inside of the call
  int64_t run_end_ns = 0;
  uint64_t id = 0;  ///< see TraceBuffer
  TracePhase phase = TracePhase::other;
  TraceKind kind = TraceKind::span;
  bool slow = false;  ///< a plain kernel where there should be a better one
};

inline int64_t trace_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Events in the order in which they began. Ids count up from 1 and are not used twice; those of ops that
/// were captured into a graph instead of run have the bit `captured`, and stay until forget_captured().
class TraceBuffer {
 public:
  static constexpr uint64_t captured = uint64_t{1} << 62;

  TraceBuffer(size_t events, size_t captured_events) : events_(events), captured_(captured_events) {}
  TraceBuffer(const TraceBuffer&) = delete;
  TraceBuffer& operator=(const TraceBuffer&) = delete;

  /// nullptr: there is no room.
  TraceEvent* begin(const char* name, TraceKind kind, std::string_view stream) {
    const bool capture = capturing;
    size_t& used = capture ? captured_used_ : used_;
    std::vector<TraceEvent>& list = capture ? captured_ : events_;
    if (used == list.size()) {
      ++dropped_;
      return nullptr;
    }
    TraceEvent& e = list[used];
    e = TraceEvent{};
    e.name = name;
    e.kind = kind;
    e.phase = phase;
    std::memcpy(e.stream, stream.data(),
                stream.size() < sizeof e.stream ? stream.size() : sizeof e.stream - 1);
    e.id = capture ? captured | (captured_used_ + 1) : first_id_ + used_;
    ++used;
    if (push) push(e.id);
    e.begin_ns = trace_now_ns();
    return &e;
  }
  void end(TraceEvent& e) {
    e.end_ns = trace_now_ns();
    if (pop) pop();
  }

  /// Forgets all events but the captured ones.
  void clear() {
    first_id_ += used_;
    used_ = 0;
    dropped_ = 0;
  }
  void forget_captured() { captured_used_ = 0; }
  /// Ids below it are of events that clear() has forgotten.
  uint64_t first_id() const { return first_id_; }
  /// Those of events() and captured_events() stand in the order of ids.
  std::vector<TraceEvent> events() const { return {events_.begin(), events_.begin() + offset(used_)}; }
  std::vector<TraceEvent> captured_events() const {
    return {captured_.begin(), captured_.begin() + offset(captured_used_)};
  }
  int64_t dropped() const { return dropped_; }

  // What scopes set and read.
  TracePhase phase = TracePhase::other;
  bool capturing = false;         ///< ops are noted for a graph
  TraceEvent* open_op = nullptr;  ///< the op whose kernel is about to be given to a stream
  void (*push)(uint64_t id) = nullptr;
  void (*pop)() = nullptr;

 private:
  static std::ptrdiff_t offset(size_t n) { return static_cast<std::ptrdiff_t>(n); }
  std::vector<TraceEvent> events_, captured_;
  size_t used_ = 0, captured_used_ = 0;
  uint64_t first_id_ = 1;
  int64_t dropped_ = 0;
};

/// Where this thread's scopes write to; nullptr: nowhere.
inline constinit thread_local TraceBuffer* current_trace = nullptr;

/// A stretch of the host's work, or work for a device that is no op (a copy, a collective).
class TraceSpan {
 public:
  /// `name` is a literal. `stream` and `bytes` where it is work of a device.
  explicit TraceSpan(const char* name, TraceKind kind = TraceKind::span, std::string_view stream = {},
                     double bytes = 0)
      : buffer_(current_trace) {
    if (!buffer_) return;
    event_ = buffer_->begin(name, kind, stream);
    if (event_) event_->bytes = bytes;
  }
  ~TraceSpan() {
    if (event_) buffer_->end(*event_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  TraceBuffer* buffer_;
  TraceEvent* event_ = nullptr;
};

/// Says what the step is doing until it is destroyed.
class TracePhaseScope {
 public:
  explicit TracePhaseScope(TracePhase phase) : buffer_(current_trace) {
    if (!buffer_) return;
    before_ = buffer_->phase;
    buffer_->phase = phase;
  }
  ~TracePhaseScope() {
    if (buffer_) buffer_->phase = before_;
  }
  TracePhaseScope(const TracePhaseScope&) = delete;
  TracePhaseScope& operator=(const TracePhaseScope&) = delete;

 private:
  TraceBuffer* buffer_;
  TracePhase before_ = TracePhase::other;
};

}  // namespace deltatune
