// What gdn_prologue's kernels for sm_90 share: bf16, heads of 128 channels, convolutions 4 wide. The walk is
// that of gdn_prologue.cuh - a warp, one head, a run of tokens in order, lane l with channels 4 l .. 4 l + 3
// - but the rows come through shared memory: eight tokens at a time, by the bulk copy engine, one group
// ahead, so that what is under way takes no registers and no instructions of the lanes.
//
// Each warp has its own ring of slots and barriers and waits for nothing but its own copies. Tokens behind
// the row's last are zeros.
#pragma once

#include "cuda/kernels/gdn_prologue_gates.cuh"
#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/tensor_map.h"

namespace deltatune::cuda::prologue {

struct Bulk {
  static constexpr int dim = 128;               ///< channels of a head
  static constexpr int each = dim / warp_size;  ///< of a lane
  static constexpr int tokens = 8;              ///< of a group, which arrives as a whole
  static constexpr int unit = 4;                ///< tokens worked on together
  static constexpr int row_bytes = dim * 2;
  static constexpr int unit_bytes = unit * row_bytes;
  static constexpr int group_bytes = tokens * row_bytes;  ///< of one array
  static constexpr int alignment = 128;                   ///< of the ring
};
using Four = float[Bulk::each];

/// A place in a ring: the slot of a group, and the parity of its barrier's phase.
template <int slots>
struct BulkPlace {
  int slot = 0, parity = 0;

  __device__ void next() {
    const bool last = ++slot == slots;
    slot = last ? 0 : slot;
    parity ^= last;
  }
};

/// What a warp has in shared memory: a ring of groups of up to `arrays` arrays, its barriers, and for each
/// token of the run its rstd, for each unit of tokens which of them start a document (bits 0 to 3).
template <int slots_, int arrays, int walked>
struct BulkRing {
  static constexpr int slots = slots_;
  static constexpr int slot_bytes = arrays * Bulk::group_bytes;
  using Place = BulkPlace<slots>;

  alignas(Bulk::alignment) unsigned char rows[slots * slot_bytes];
  alignas(16) float rstd[walked];
  unsigned starts[walked / Bulk::unit];
  uint64_t barriers[slots];

  /// By the warp, before any copy.
  __device__ void init(int lane) {
    if (lane < slots) ptx::mbarrier_init(ptx::shared_address(barriers + lane), 1);
    __syncwarp();
  }
  __device__ uint32_t barrier(int slot) const { return ptx::shared_address(barriers + slot); }
  __device__ uint32_t address(int slot, int array) const {
    return ptx::shared_address(rows + slot * slot_bytes + array * Bulk::group_bytes);
  }
  __device__ void wait(const Place& place) const { ptx::mbarrier_wait(barrier(place.slot), place.parity); }
  /// Where the calling lane's channels of a slot's first array begin.
  __device__ const unsigned char* lane_rows(int slot, int lane) const {
    return rows + slot * slot_bytes + lane * static_cast<int>(sizeof(uint2));
  }
  /// Marks of the tokens from t0 on, by the warp. rstds: of token 0; null: none.
  __device__ void mark(const int32_t* positions, const float* rstds, int stride, int t0, int tokens,
                       int lane) {
    static_assert(walked % warp_size == 0);
#pragma unroll
    for (int first = 0; first < walked; first += warp_size) {
      const int t = t0 + first + lane;
      const unsigned all = __ballot_sync(full_warp, t < tokens && positions[t] == 0);
      constexpr int units = warp_size / Bulk::unit;
      if (lane < units)
        starts[first / Bulk::unit + lane] = all >> (lane * Bulk::unit) & ((1u << Bulk::unit) - 1);
      if (rstds) rstd[first + lane] = rstds[static_cast<int64_t>(min(t, tokens - 1)) * stride];
    }
    __syncwarp();
  }
};

/// The lane's channels of a token of one array.
__device__ inline void read_four(Four& x, const unsigned char* rows, int array, int token) {
  const uint2 pairs =
      *reinterpret_cast<const uint2*>(rows + array * Bulk::group_bytes + token * Bulk::row_bytes);
  x[0] = __uint_as_float(pairs.x << 16);
  x[1] = __uint_as_float(pairs.x & 0xffff0000u);
  x[2] = __uint_as_float(pairs.y << 16);
  x[3] = __uint_as_float(pairs.y & 0xffff0000u);
}
/// Rounds and stores the calling lane's channels.
__device__ inline void write_four(device_bf16* to, const Four& x) {
  *reinterpret_cast<uint2*>(to) = make_uint2(ptx::pack_bf16(x[0], x[1]), ptx::pack_bf16(x[2], x[3]));
}

}  // namespace deltatune::cuda::prologue
