// What the kernels of the fast gated_delta backward share: the call, tiles in shared memory, fragments.
//
// Chunk form, one chunk of n <= 64 tokens of one value head (rows of tokens; C, i, j: tokens of the chunk; S:
// state entering, R: gradient of the state leaving; s = 128^-1/2):
//     G_i = g_0 + .. + g_i,  gam_i = e^G_i,  Gam_ij = e^(G_i - G_j) for i >= j, else 0,  end_i = gam_C /
//     gam_i T = (I + L)^-1,  L_ij = beta_i k_i . k_j for i > j;  T' = Gam o T U = K S,  W = V - gam o U,  D =
//     T' (beta o W):  D_i is the d of token i P = s Gam o Q K^T,  dD = P^T dO + end o (K R),  Z = T'^T dD, dV
//     = beta o Z,  dU = -gam o dV gradient of the state entering:  gam_C R + s Q^T (gam o dO) + K^T dU
// As D solves (I + Gam o L) D = beta o W, the gradient of Gam o L is -Z D^T below the diagonal: no product
// with T^T is needed. With  w = s Gam o dO D^T (i >= j)  and  N = Gam o Z D^T (i > j):
//     dQ = s gam o (dO S^T) + w K
//     dK = end o (D R^T) + dU S^T + w^T Q + (M + M^T) K,  M = -beta_i N_ij
//     dbeta_i = Z_i . W_i - sum_j N_ij (k_i . k_j)
//     dg_t = sum_{i >= t} [q_i . s gam_i (S dO_i) + dU_i . U_i] + sum_{i < t} k_i . end_i (R D_i)
//            + sum_{i >= t > j} [w_ij (q_i . k_j) + M_ij (k_i . k_j)] + gam_C <R, S>
// The pair sums leave out the diagonal, which does not depend on g: with closed gates nothing cancels.
// Every exponent is <= 0. Operands of the products are bf16, sums, G and everything of dg and dbeta fp32.
#pragma once

#include <cuda.h>
#include <cuda_fp16.h>

#include "cuda/kernels/shared.cuh"
#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"
#include "ops/delta_net_cuda_scratch.h"

namespace deltatune::cuda::gdn_backward {

using bf16 = device_bf16;

inline constexpr int chunk = static_cast<int>(gdn_chunk);
inline constexpr int dim = 128;  ///< dk and dv

/// Device memory of one call. An output that is not wanted is null. The maps (tensor_map.h) are set for
/// kernels that copy in bulk.
struct Call {
  CUtensorMap q_map, k_map, v_map, d_o_map, z_map;  ///< [T, heads, 128]
  CUtensorMap states_map;                           ///< rows of 128: [C Hv 128, 1, 128]
  CUtensorMap inverse_map;                          ///< rows of 64: [C Hv 64, 1, 64]
  const bf16 *q, *k, *v, *d_o, *states;
  const int4* chunks;  ///< document, first token, length, number inside the document
  bf16 *dq, *dk, *dv;
  float *dg, *dbeta;
  int num_chunks;  ///< entries of the table, used or not
  int max_documents;
  int key_heads, value_heads, ratio;

  // Scratch: what gdn_prepare leaves (gdn_inverse.cuh), Z, R.
  const bf16* inverse;
  const __half* scores;  ///< q_i . k_j
  const float* gates;
  int32_t* order;
  bf16* z;        ///< Z, [T, Hv, 128]
  bf16* leaving;  ///< R^T of full chunks, [T / 64, Hv], 16 x 16 blocks of 8 values x 8 keys each

  __device__ int64_t key_row(int64_t t, int head) const { return (t * key_heads + head) * dim; }
  __device__ int64_t value_row(int64_t t, int head) const { return (t * value_heads + head) * dim; }
  /// R leaving a full chunk: full chunks that start in the same 64 tokens of the row are the same one.
  __device__ bf16* leaving_of(int first_token, int head) const {
    return leaving + (static_cast<int64_t>(first_token / chunk) * value_heads + head) * dim * dim;
  }
};

/// A tile of bf16 in shared memory: Rows rows of 64 columns (128 bytes), 128 columns being two such tiles
/// behind each other; piece p (16 bytes) of row r lies at p ^ (r % 8), so that eight rows of one column of
/// pieces lie in different banks (and as the bulk copy engine writes it). Starts at a multiple of 1024. Rows
/// and pieces of the functions: the first of a 16 x 16 block (two tiles of B side by side), multiples of 16
/// and 2.
template <int Rows>
class Panel {
 public:
  __device__ explicit Panel(uint32_t base) : base_(base) {
    const uint32_t lane = threadIdx.x % 32, row = lane % 8, low = lane / 8 % 2, high = lane / 16;
    by_low_ = base + (row + low * 8) * 128 + ((high ^ row) << 4);
    by_high_ = base + (row + high * 8) * 128 + ((low ^ row) << 4);
  }
  /// Address of a 16-byte piece.
  __device__ uint32_t piece(int row, int at) const {
    return base_ + static_cast<uint32_t>((at >> 3) * Rows * 128 + row * 128 + (((at ^ row) & 7) << 4));
  }
  /// A fragment whose rows are rows of the tile; also C fragments: (g, 2t) of the two row halves of the left
  /// 8 columns, then of the right.
  __device__ void a(uint32_t (&r)[4], int row, int at) const {
    ptx::ldmatrix_x4(r, address(by_low_, row, at));
  }
  /// A fragment whose rows are columns of the tile: `row` counts k, `at` m.
  __device__ void a_transposed(uint32_t (&r)[4], int row, int at) const {
    ptx::ldmatrix_x4_trans(r, address(by_high_, row, at));
  }
  /// Two B fragments, n = rows of the tile.
  __device__ void b(uint32_t (&r)[4], int row, int at) const {
    ptx::ldmatrix_x4(r, address(by_high_, row, at));
  }
  /// Two B fragments, n = columns of the tile, k = rows.
  __device__ void b_transposed(uint32_t (&r)[4], int row, int at) const {
    ptx::ldmatrix_x4_trans(r, address(by_low_, row, at));
  }
  /// Address of the pair of columns 2 (lane % 4) of piece `at` in row `row` + lane / 4 (row a multiple of 8).
  __device__ uint32_t pair(int row, int at) const {
    const uint32_t lane = threadIdx.x % 32;
    return address(base_ + lane / 4 * 128 + (lane / 4 << 4) + (lane % 4) * 4, row, at);
  }

 private:
  __device__ static uint32_t address(uint32_t lanes, int row, int at) {
    return (lanes ^ static_cast<uint32_t>((at & 7) << 4)) +
           static_cast<uint32_t>((at >> 3) * Rows * 128 + row * 128);
  }
  uint32_t base_, by_low_, by_high_;
};

/// c += a b for 16 x 16 of c: two B tiles.
__device__ inline void multiply(float (&left)[4], float (&right)[4], const uint32_t (&a)[4],
                                const uint32_t (&b)[4]) {
  ptx::mma_bf16(left, a, b[0], b[1]);
  ptx::mma_bf16(right, a, b[2], b[3]);
}

__device__ inline float low(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ inline float high(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
/// Of a pair of fp16.
__device__ inline float2 widen_f16(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

/// Copies rows of 128 values (or of 64 with Pieces = 8) into a panel; rows from n to `end` (a multiple of 16)
/// are set to zero, later rows are left alone.
template <int Threads, int Pieces>
__device__ inline void copy_rows(const Panel<chunk>& to, const bf16* from, int64_t stride, int n, int end) {
  const int row0 = static_cast<int>(threadIdx.x) / Pieces, at = static_cast<int>(threadIdx.x) % Pieces;
#pragma unroll
  for (int i = 0; i < chunk * Pieces / Threads; ++i) {
    const int row = row0 + i * (Threads / Pieces);
    if (row >= end) continue;
    const bool valid = row < n;
    ptx::cp_async_16(to.piece(row, at), from + (valid ? row * stride : 0) + at * 8, valid);
  }
}

/// The same by the bulk copy engine, by one thread: rows beyond the chunk come along, see clear_rows.
template <int Boxes>
__device__ inline void copy_boxes(uint32_t to, const CUtensorMap& map, int head, int row, uint32_t barrier) {
#pragma unroll
  for (int i = 0; i < Boxes; ++i) ptx::copy_box(to + i * chunk * 128, &map, 64 * i, head, row, barrier);
}
/// Zeroes rows n .. 63 of a panel that was filled by the bulk copy engine and will be again. The block needs
/// a barrier after it.
template <int Threads, int Pieces>
__device__ inline void clear_rows(const Panel<chunk>& panel, int n) {
  const uint32_t zeros[4] = {};
  for (int i = n * Pieces + static_cast<int>(threadIdx.x); i < chunk * Pieces; i += Threads) {
    ptx::store_shared_16(panel.piece(i / Pieces, i % Pieces), zeros);
  }
  ptx::fence_bulk_copies();
}

/// Products of two pairs of bf16, rounded once more.
__device__ inline uint32_t multiply_pairs(uint32_t x, uint32_t y) {
  const __nv_bfloat162 product =
      __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&x), *reinterpret_cast<const __nv_bfloat162*>(&y));
  return *reinterpret_cast<const uint32_t*>(&product);
}

/// 4 x 4 transpose among the four lanes of a row: x[i] of lane t becomes x[t] of lane i. Pairs of columns of
/// four C tiles become the eight neighbouring columns of tile t.
__device__ inline void transpose_quad(uint32_t (&x)[4]) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? x[i] : x[i + 1], 1);
    x[i] = odd ? other : x[i];
    x[i + 1] = odd ? x[i + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[i + 2], 2);
    x[i] = upper ? other : x[i];
    x[i + 2] = upper ? x[i + 2] : other;
  }
}

/// 2^(Gi - Gj) where `below` (i >= j), else 0.
__device__ inline float decay(float Gi, float Gj, bool below) {
  return below ? ptx::exp2(Gi - Gj) : 0.0f;
}

}  // namespace deltatune::cuda::gdn_backward
