// Tiles of 64 rows in shared memory, and the fragments of mma.m16n8k16 (ptx/mma.cuh) read from them.
//
// A tile has rows of 64 16-bit elements, 128 bytes; piece p (16 bytes) of row r lies at p ^ (r % 8), so that
// ldmatrix meets no bank conflict. 128 columns are two such tiles behind each other.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/ptx/mma.cuh"

namespace deltatune::cuda::gdn {

inline constexpr int chunk = 64;            ///< rows of a tile
inline constexpr int head_dim = 128;        ///< dk and dv of the tensor-core kernels
inline constexpr int tile_bytes = 8192;     ///< 64 columns
inline constexpr int64_t square = 64 * 64;  ///< elements of T or of the scores of a chunk and head

/// Bytes from the start of the tile to 8 columns from 8 * piece on.
__device__ inline uint32_t piece_offset(int row, int piece) {
  return static_cast<uint32_t>((piece >> 3) * tile_bytes + row * 128 + (((piece ^ row) & 7) << 4));
}

/// Lane l's place in the four 8 x 8 matrices of an ldmatrix_x4: matrix l / 8, row l % 8.
struct Lane {
  int matrix, row;
  __device__ Lane()
      : matrix(static_cast<int>(threadIdx.x) % 32 / 8), row(static_cast<int>(threadIdx.x) % 8) {}
};

/// Rows row.. row+15, columns 16 k.. of the tile as fragment A, or (transposed) as two neighbouring fragments
/// B of 8 columns with the rows as the summed index: r[0], r[1] the first, r[2], r[3] the second.
__device__ inline uint32_t down_address(uint32_t tile, int row, int k) {
  const Lane lane;
  return tile + piece_offset(row + (lane.matrix & 1) * 8 + lane.row, 2 * k + (lane.matrix >> 1));
}
/// Rows row.. row+15 as two neighbouring fragments B of 8 columns each, columns 16 k.. as the summed index;
/// or (transposed) rows as columns of two neighbouring fragments C: r[0], r[1] are {c0 c1}, {c2 c3} of the
/// first.
__device__ inline uint32_t across_address(uint32_t tile, int row, int k) {
  const Lane lane;
  return tile + piece_offset(row + (lane.matrix >> 1) * 8 + lane.row, 2 * k + (lane.matrix & 1));
}

/// Starts copying 64 rows of 8 * pieces elements, `stride` elements apart, to the tile; rows from n on become
/// 0. Thread tid of `threads`.
template <int threads, int pieces>
__device__ inline void load_rows(uint32_t tile, const device_bf16* from, int64_t stride, int n, int tid) {
  constexpr int step = threads / pieces;
  static_assert(step % 8 == 0);  // so that the place of a thread's piece in its row stays the same
  const int row = tid / pieces, piece = tid % pieces;
  const uint32_t to = tile + piece_offset(row, piece);
  from += row * stride + piece * 8;
#pragma unroll
  for (int i = 0; i < chunk / step; ++i) {
    ptx::cp_async_16(to + static_cast<uint32_t>(i * step * 128), from, row + i * step < n);
    from += step * stride;
  }
}
/// The same of a whole [64, 64] matrix, without the 16 x 16 blocks above the diagonal, which stay as they
/// are.
template <int threads, class T>
__device__ inline void load_lower(uint32_t tile, const T* from, int tid) {
  constexpr int step = threads / 8;
  static_assert(step == 16 && sizeof(T) == 2);
  const int row = tid / 8, piece = tid % 8;
  const uint32_t to = tile + piece_offset(row, piece);
  from += row * chunk + piece * 8;
#pragma unroll
  for (int i = 0; i < chunk / step; ++i) {
    if (piece <= 2 * i + 1)
      ptx::cp_async_16(to + static_cast<uint32_t>(i * step * 128), from + i * step * chunk);
  }
}

/// From two 8 x 8 matrices side by side, 2t, 2t+1 of row g per lane, to 4 neighbouring elements per lane.
__device__ inline uint2 join_quads(uint32_t left, uint32_t right) {
  const bool odd = threadIdx.x & 1;
  const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? left : right, 1);
  return odd ? make_uint2(other, right) : make_uint2(left, other);
}
/// The first of the 16 columns that this lane has after join_quads.
__device__ inline int joined_column() {
  const int t = static_cast<int>(threadIdx.x) % 4;
  return t & 1 ? 6 + 2 * t : 2 * t;
}

}  // namespace deltatune::cuda::gdn
