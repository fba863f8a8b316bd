// The kernels of collectives between GPUs of one machine: a handshake that orders work of several GPUs, and
// sums in rank order.
//
// A handshake is one warp. It tells every peer that this rank's stream has come this far, by writing its turn
// into the peer's flags, and waits until every peer has told the same. Turns are counted in device memory, so
// a captured handshake works in every replay. It gives up when the deadline passes, when a peer has said that
// it leaves, or when the host says so; then it writes why into memory that the host reads, and this and every
// later handshake of the rank returns at once. Copies between handshakes run on regardless: what they bring
// is looked at by nobody, since the host throws before it uses it. The warp has few registers and no shared
// memory, so that it finds room beside a matrix product's blocks.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/device.h"

namespace deltatune::cuda {

/// The most ranks that meet this way; a warp's lanes.
inline constexpr int max_peers = 32;
/// In a peer's flag in place of a turn: that rank has left.
inline constexpr uint64_t peer_left = ~uint64_t{0};

/// Local to a rank, in its device memory.
struct HandshakeState {
  uint64_t turn;
  uint32_t failed;
  uint64_t wait_began;  ///< of the clock of begin_wait() and end_wait()
  uint64_t waited;      ///< nanoseconds
};

/// In host memory that the device writes.
struct HandshakeReport {
  enum Reason : uint32_t { fine, timed_out, left, abandoned };
  uint32_t reason;                    ///< written last
  uint32_t call;                      ///< what launch_handshake() was given
  uint32_t missing;                   ///< bit r: rank r
  uint32_t abandon;                   ///< written by the host: give up
  uint64_t waited;                    ///< a copy of HandshakeState::waited
  uint64_t calls_begun, calls_ended;  ///< of launch_begin_call(), launch_end_call(), in stream order
};

/// One rank's view. flags[r]: rank r's array of max_peers words, of which word q is written by rank q.
struct Handshake {
  uint64_t* flags[max_peers] = {};
  HandshakeState* state = nullptr;
  HandshakeReport* report = nullptr;
  uint64_t timeout_ns = 0;
  int rank = 0;
  int world_size = 1;
};

/// Work behind it starts when the work before it is done on all ranks. `call` names the call in the report.
void launch_handshake(Stream& stream, const Handshake& handshake, uint32_t call);
/// Tells all peers that this rank has left.
void launch_farewell(Stream& stream, const Handshake& handshake);
/// The time between the two, in stream order, is added to HandshakeState::waited.
void launch_begin_wait(Stream& stream, const Handshake& handshake);
void launch_end_wait(Stream& stream, const Handshake& handshake);

/// Where collectives are not handshakes: the host sees by HandshakeReport::calls_begun and ::calls_ended
/// whether one is under way, and which.
void launch_begin_call(Stream& stream, const Handshake& handshake, uint32_t call);
void launch_end_call(Stream& stream, const Handshake& handshake);

/// to = (add: to +) ((parts[0] + parts[1]) + parts[2]) + ..., element by element, in the dtype of `to`: f32
/// of f32 or bf16 parts, f64 of f64 parts. A part may be `to` itself. At most max_peers parts of to.count()
/// elements. The same bits as comm/ordered_sum.h.
void launch_sum_parts(Stream& stream, Tensor to, std::span<const CTensor> parts, bool add);

}  // namespace deltatune::cuda
