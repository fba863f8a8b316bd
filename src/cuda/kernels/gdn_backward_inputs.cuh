// The inputs of the products of the fast gated_delta backward in shared memory: where they lie, how they come
// there. What is computed from them: gdn_backward_chunk.cuh.
//
// Bulk (sm_90): one thread tells the bulk copy engine what to fetch as soon as a place is free, mbarriers
// tell of the end; S has two places, so that it comes a head early. Otherwise cp.async: S, R and V are
// fetched when a head starts, and D takes the place of W, which fits 163 KiB.
#pragma once

#include <cstddef>

#include "cuda/kernels/gdn_backward_sums.cuh"

namespace deltatune::cuda::gdn_backward {

/// Bytes of shared memory.
template <bool Bulk>
struct ChunkTile {
  static constexpr int threads = 256;
  static constexpr int rows = chunk * dim * 2;
  static constexpr int states = dim * dim * 2;
  static constexpr int square = chunk * chunk * 2;
  static constexpr int queries = rows;  // keys: 0
  static constexpr int state = 2 * rows;
  static constexpr int state_step = Bulk ? states : 0;
  static constexpr int leaving = state + states + state_step;
  static constexpr int values = leaving + states;
  static constexpr int dout = values + rows;
  static constexpr int z = dout + rows;
  static constexpr int inverse = z + rows;
  static constexpr int d = Bulk ? inverse + square : values;
  static constexpr int floats = inverse + square + (Bulk ? rows : 0);
};

/// Behind the panels. barriers: keys, S (two places), R, V and T, Z, dO.
template <int Ratio, bool Bulk>
struct ChunkFloats {
  float gates[Ratio][2][chunk];  ///< G and beta of the value heads
  ChunkSums sums;                ///< of one head
  uint64_t barriers[7];
  Place places[2];                                          ///< this tile and the next one, in turn
  uint32_t pairs[Bulk ? 16 : 1][ChunkTile<Bulk>::threads];  ///< q_i . k_j and k_i . k_j of each thread
};

template <int Ratio, bool Bulk>
constexpr int chunk_shared = 1024 + ChunkTile<Bulk>::floats +
                             static_cast<int>(sizeof(ChunkFloats<Ratio, Bulk>));

template <int Ratio, bool Bulk>
class ChunkInputs {
 public:
  using Tile = ChunkTile<Bulk>;
  using Floats = ChunkFloats<Ratio, Bulk>;
  static constexpr int threads = Tile::threads;

  __device__ ChunkInputs(const Call& call, unsigned char* memory)
      : call_(call),
        base_((ptx::shared_address(memory) + 1023) & ~1023u),
        floats_(reinterpret_cast<Floats*>(memory + (base_ - ptx::shared_address(memory)) + Tile::floats)) {
    if (Bulk && threadIdx.x == 0) {
      for (int i = 0; i < 7; ++i) ptx::mbarrier_init(barrier(i), 1);
    }
    __syncthreads();
  }

  __device__ Floats& floats() const { return *floats_; }
  __device__ Panel<chunk> keys() const { return Panel<chunk>(base_); }
  __device__ Panel<chunk> queries() const { return Panel<chunk>(base_ + Tile::queries); }
  __device__ Panel<dim> state() const { return Panel<dim>(base_ + Tile::state + slot_ * Tile::state_step); }
  __device__ uint32_t leaving() const { return base_ + Tile::leaving; }
  __device__ Panel<chunk> values() const { return Panel<chunk>(base_ + Tile::values); }
  __device__ Panel<chunk> dout() const { return Panel<chunk>(base_ + Tile::dout); }
  __device__ Panel<chunk> z() const { return Panel<chunk>(base_ + Tile::z); }
  __device__ Panel<chunk> inverse() const { return Panel<chunk>(base_ + Tile::inverse); }
  __device__ Panel<chunk> d() const { return Panel<chunk>(base_ + Tile::d); }
  // Behind the heads of a tile, over D (and, without Bulk, over W).
  __device__ Panel<chunk> weights() const { return Panel<chunk>(base_ + Tile::d); }
  __device__ Panel<chunk> mixing() const { return Panel<chunk>(base_ + Tile::d + Tile::square); }

  // Copies of the inputs of a tile or of head h of it. With Bulk, from the moment on that the block has
  // passed a barrier behind the last use of their place.
  __device__ void copy_keys(const Place& at) {
    const int64_t gates = (static_cast<int64_t>(at.c) * call_.value_heads + at.key_head * Ratio) * 2 * chunk;
    constexpr int bytes = Ratio * 2 * chunk * 4;
    if constexpr (Bulk) {
      if (threadIdx.x != 0) return;
      ptx::mbarrier_expect(barrier(0), 2 * Tile::rows + bytes);
      copy_boxes<2>(base_, call_.k_map, at.key_head, at.first_token, barrier(0));
      copy_boxes<2>(base_ + Tile::queries, call_.q_map, at.key_head, at.first_token, barrier(0));
      ptx::copy_bytes(base_ + Tile::floats, call_.gates + gates, bytes, barrier(0));
    } else {
      const int64_t from = call_.key_row(at.first_token, at.key_head);
      copy_rows<threads, 16>(keys(), call_.k + from, call_.key_heads * dim, at.length, chunk);
      copy_rows<threads, 16>(queries(), call_.q + from, call_.key_heads * dim, at.length, chunk);
      const int piece = static_cast<int>(threadIdx.x);
      if (piece < bytes / 16) {
        ptx::cp_async_16(base_ + Tile::floats + piece * 16, call_.gates + gates + piece * 4);
      }
      ptx::cp_async_commit();
    }
  }
  /// With Bulk into the place that is not in use, which becomes state() at the next swap.
  __device__ void copy_state(const Place& at, int h) {
    if (!at.enters) return;
    const int64_t row = (static_cast<int64_t>(at.c) * call_.value_heads + at.key_head * Ratio + h) * dim;
    if constexpr (Bulk) {
      if (threadIdx.x != 0) return;
      const int slot = slot_ ^ 1;
      const uint32_t to = base_ + Tile::state + slot * Tile::state_step;
      ptx::mbarrier_expect(barrier(1 + slot), Tile::states);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ptx::copy_box(to + i * chunk * 128, &call_.states_map, i / 2 * 64, 0,
                      static_cast<int>(row) + i % 2 * chunk, barrier(1 + slot));
      }
    } else {
      const int row0 = static_cast<int>(threadIdx.x) / 16, piece = static_cast<int>(threadIdx.x) % 16;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int r = row0 + i * (threads / 16);
        ptx::cp_async_16(state().piece(r, piece), call_.states + (row + r) * dim + piece * 8);
      }
      ptx::cp_async_commit();
    }
  }
  __device__ void swap_states() {
    if (Bulk) slot_ ^= 1;
  }
  __device__ void copy_leaving(const Place& at, int h) {
    if (!at.leaves) return;
    const bf16* const from = call_.leaving_of(at.first_token, at.key_head * Ratio + h);
    if constexpr (Bulk) {
      if (threadIdx.x != 0) return;
      ptx::mbarrier_expect(barrier(3), Tile::states);
      ptx::copy_bytes(leaving(), from, Tile::states, barrier(3));
    } else {
#pragma unroll
      for (int i = 0; i < Tile::states / 16 / threads; ++i) {
        const int piece = static_cast<int>(threadIdx.x) + i * threads;
        ptx::cp_async_16(leaving() + piece * 16, from + piece * 8);
      }
      ptx::cp_async_commit();
    }
  }
  __device__ void copy_values(const Place& at, int h) {
    const int head = at.key_head * Ratio + h;
    const int64_t row = (static_cast<int64_t>(at.c) * call_.value_heads + head) * chunk;
    if constexpr (Bulk) {
      if (threadIdx.x != 0) return;
      ptx::mbarrier_expect(barrier(4), Tile::rows + Tile::square);
      copy_boxes<2>(base_ + Tile::values, call_.v_map, head, at.first_token, barrier(4));
      ptx::copy_box(base_ + Tile::inverse, &call_.inverse_map, 0, 0, static_cast<int>(row), barrier(4));
    } else {
      copy_rows<threads, 16>(values(), call_.v + call_.value_row(at.first_token, head),
                             call_.value_heads * dim, at.length, chunk);
      copy_rows<threads, 8>(inverse(), call_.inverse + row * chunk, chunk, at.length, chunk);
      ptx::cp_async_commit();
    }
  }
  __device__ void copy_z(const Place& at, int h) {
    copy_head(z(), Tile::z, call_.z, call_.z_map, at, h, 5);
  }
  __device__ void copy_dout(const Place& at, int h) {
    copy_head(dout(), Tile::dout, call_.d_o, call_.d_o_map, at, h, 6);
  }

  // What was copied is there once the block has passed a barrier behind these; rows behind the chunk are
  // zero.
  __device__ void wait_keys(const Place& at) {
    if (!Bulk) return ptx::cp_async_wait<0>();
    wait(0);
    if (at.length == chunk) return;
    clear_rows<threads, 16>(keys(), at.length);
    clear_rows<threads, 16>(queries(), at.length);
  }
  /// S, V, T and Z.
  __device__ void wait_head(const Place& at) {
    if (!Bulk) return ptx::cp_async_wait<0>();
    if (at.enters) wait(1 + slot_);
    wait(4);
    wait(5);
    if (at.length == chunk) return;
    clear_rows<threads, 16>(values(), at.length);
    clear_rows<threads, 16>(z(), at.length);
  }
  __device__ void wait_dout(const Place& at) {
    if (!Bulk) return;
    wait(6);
    if (at.length < chunk) clear_rows<threads, 16>(dout(), at.length);
  }
  __device__ void wait_leaving(const Place& at) {
    if (Bulk && at.leaves) wait(3);
  }

 private:
  __device__ uint32_t barrier(int i) const {
    return base_ + Tile::floats + static_cast<uint32_t>(offsetof(Floats, barriers)) + 8 * i;
  }
  __device__ void wait(int i) {
    ptx::mbarrier_wait(barrier(i), static_cast<int>(parity_ >> i & 1));
    parity_ ^= 1u << i;
  }
  __device__ void copy_head(const Panel<chunk>& to, int offset, const bf16* from, const CUtensorMap& map,
                            const Place& at, int h, int i) {
    const int head = at.key_head * Ratio + h;
    if constexpr (Bulk) {
      if (threadIdx.x != 0) return;
      ptx::mbarrier_expect(barrier(i), Tile::rows);
      copy_boxes<2>(base_ + offset, map, head, at.first_token, barrier(i));
    } else {
      copy_rows<threads, 16>(to, from + call_.value_row(at.first_token, head), call_.value_heads * dim,
                             at.length, chunk);
      ptx::cp_async_commit();
    }
  }

  const Call& call_;
  uint32_t base_;
  Floats* floats_;
  int slot_ = 0;
  uint32_t parity_ = 0;
};

}  // namespace deltatune::cuda::gdn_backward
