// What the attention kernels of sm_90a share: tiles of rows of 256 bf16 as wgmma wants them, and its
// products.
//
// A tile is cut into four panels of 64 columns. A panel has one row of 128 bytes for each row of the tile,
// whose 16-byte pieces are permuted by piece ^ (row % 8); the panel starts at a multiple of 1024 bytes. That
// is wgmma's 128-byte swizzle, read along the rows (an operand whose summed index is the column) or across
// them (the summed index is the row).
#pragma once

#include "cuda/kernels/attention_mma.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/wgmma_wide.cuh"

namespace deltatune::cuda::attention_wgmma {

using namespace attention_mma;

inline constexpr int head_dim = 256;
inline constexpr int group_rows = 64;  ///< rows of a warpgroup's product
inline constexpr int panel_row = 128;  ///< bytes
inline constexpr int panels = head_dim * 2 / panel_row;

template <int Rows>
inline constexpr int tile_bytes = Rows* head_dim * 2;
template <int Rows>
inline constexpr uint32_t panel_bytes = Rows* panel_row;

/// The start of a tile inside dynamic shared memory of `bytes` + 1024 bytes.
__device__ inline char* aligned_shared() {
  char* const shared = dynamic_shared<char>();
  const uint32_t address = ptx::shared_address(shared);
  return shared + ((1024 - address % 1024) % 1024);
}

/// Copies `Rows` rows into a tile without waiting; rows from `valid` on become 0.
template <int Rows, int Threads>
__device__ inline void load_panels(uint32_t tile, const device_bf16* __restrict__ from, int64_t stride,
                                   int valid) {
  constexpr int pieces = head_dim / 8;
  constexpr int step = Threads / pieces;
  static_assert(Rows % step == 0 && step % 8 == 0);
  const int piece = static_cast<int>(threadIdx.x) % pieces;
  const int first = static_cast<int>(threadIdx.x) / pieces;
  const uint32_t to = tile + static_cast<uint32_t>(piece / 8) * panel_bytes<Rows> +
                      static_cast<uint32_t>(first * panel_row + ((piece % 8 ^ first % 8) * 16));
  const device_bf16* source = from + first * stride + piece * 8;
#pragma unroll
  for (int i = 0; i < Rows / step; ++i) {
    const bool there = first + i * step < valid;
    ptx::cp_async_16(to + static_cast<uint32_t>(i * step * panel_row), there ? source : from, there);
    source += step * stride;
  }
}

/// s = a b^T over the 256 columns: 64 rows of a tile of RowsA rows from row `row_a`, and b's 64 rows. Not
/// waited for.
template <int RowsA>
__device__ inline void start_nt(float (&s)[8][4], uint32_t a, int row_a, uint32_t b) {
  const uint32_t a_rows = a + static_cast<uint32_t>(row_a * panel_row);
#pragma unroll
  for (int k = 0; k < head_dim / 16; ++k) {
    const uint32_t inside = static_cast<uint32_t>(k % 4 * 32);
    ptx::wgmma_shared_n64(
        s, ptx::wgmma_rows(a_rows + static_cast<uint32_t>(k / 4) * panel_bytes<RowsA> + inside),
        ptx::wgmma_rows(b + static_cast<uint32_t>(k / 4) * panel_bytes<64> + inside), k > 0);
  }
}

/// out += p b: p [64 x 64] in fragments, b's 64 rows of 256. Not waited for.
__device__ inline void start_nn(float (&out)[32][4], const uint32_t (&p)[4][1][4], uint32_t b) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    ptx::wgmma_n256_t(out, p[k][0],
                      ptx::wgmma_columns(b + static_cast<uint32_t>(k * 16 * panel_row), panel_bytes<64>),
                      true);
  }
}

/// Stores the C fragments of a warpgroup's 64 rows, times `factor` of each half of a warp's 16 rows, by way
/// of a tile of RowsA rows that the group is done with: in rows of 512 bytes rather than pairs of elements.
/// Rows from `valid` on are left out; `row0` is the warp's first row, in the tile and of `valid`.
template <int RowsA>
__device__ inline void store_tile(device_bf16* to, int64_t stride, int valid, uint32_t tile, int row0,
                                  const float (&x)[32][4], float factor_low, float factor_high) {
  // Computed here each time: addresses kept from entry to entry would cost registers in the main loop.
  const int thread = ptx::computed_here(static_cast<int>(threadIdx.x)), lane = thread % 32;
  // Every warp of the group is done with its products.
  ptx::barrier_sync(2 + thread / 128, 128);
  // Pieces of a row are permuted by its number, which is that of the lane's group of four, modulo 8.
  const uint32_t own = tile + static_cast<uint32_t>((row0 + lane / 4) * panel_row + lane % 4 * 4);
  const auto permuted = static_cast<uint32_t>(lane / 4 * 16);
#pragma unroll
  for (int n = 0; n < 32; ++n) {
    const uint32_t at = own + static_cast<uint32_t>(n / 8) * panel_bytes<RowsA> +
                        (permuted ^ static_cast<uint32_t>(n % 8 * 16));
    ptx::store_shared(at, ptx::pack_bf16(x[n][0] * factor_low, x[n][1] * factor_low));
    ptx::store_shared(at + 8 * panel_row, ptx::pack_bf16(x[n][2] * factor_high, x[n][3] * factor_high));
  }
  __syncwarp();
  const uint32_t piece = tile + static_cast<uint32_t>(lane / 8) * panel_bytes<RowsA>;
  to += lane * 8;
#pragma unroll 4
  for (int row = row0; row < min(row0 + 16, valid); ++row) {
    *reinterpret_cast<uint4*>(to + row * stride) =
        ptx::load_shared_16(piece + static_cast<uint32_t>(row * panel_row + (lane % 8 ^ row % 8) * 16));
  }
}

/// Copies of this thread have arrived, and wgmma sees them after the next barrier.
__device__ inline void copies_arrived() {
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::fence_async_proxy();
}

}  // namespace deltatune::cuda::attention_wgmma
