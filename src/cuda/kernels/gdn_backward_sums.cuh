// The (chunk, key head) tiles of the fast gated_delta backward, and how dg and dbeta come from the sums that
// the warps of a tile leave behind. Formulas: gdn_backward.cuh.
#pragma once

#include "cuda/kernels/gdn_backward.cuh"

namespace deltatune::cuda::gdn_backward {

/// A (chunk, key head) tile.
struct Place {
  int c, key_head, first_token, length;
  bool enters;  ///< false: first chunk of its document, S = 0
  bool leaves;  ///< false: last chunk, R = 0

  /// False where the table has no more chunks.
  __device__ bool find(const Call& call, int tile) {
    c = tile / call.key_heads;
    key_head = tile % call.key_heads;
    if (c >= call.num_chunks) return false;
    const int4 entry = call.chunks[c];
    first_token = entry.y;
    length = entry.z;
    enters = entry.w > 0;
    leaves = false;
    if (length == chunk && c + 1 < call.num_chunks) {
      const int4 next = call.chunks[c + 1];
      leaves = next.z > 0 && next.w > 0;
    }
    return length > 0;
  }
};

/// Sums over parts of a row that the warps leave for the end of a head.
struct ChunkSums {
  float later[4][chunk];    ///< by wn: terms of dg_t summed over i >= t
  float earlier[4][chunk];  ///< terms summed over i < t
  float beta[4][chunk];     ///< terms of dbeta
  float columns[2][chunk];  ///< by wm: what the pairs take from `later` of j
  float states[8];          ///< by warp: parts of <R, S>
};

/// dg and dbeta of one value head from the sums: one warp each, `warp` is this thread's.
__device__ inline void store_sums_of(const Call& call, const Place& at, const ChunkSums& sums, int head,
                                     int warp) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t out = static_cast<int64_t>(at.first_token) * call.value_heads + head;
  const int t = 2 * lane;
  if (warp == 0 && call.dg) {
    float later[2], earlier[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      later[i] = earlier[i] = 0;
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        later[i] += sums.later[p][t + i];
        earlier[i] += sums.earlier[p][t + i];
      }
      later[i] -= sums.columns[0][t + i] + sums.columns[1][t + i];
    }
    float states = 0;
#pragma unroll
    for (int p = 0; p < 8; ++p) states += sums.states[p];
    float behind = later[0] + later[1], before = earlier[0] + earlier[1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float x = __shfl_down_sync(0xffffffffu, behind, step);
      const float y = __shfl_up_sync(0xffffffffu, before, step);
      if (lane + step < 32) behind += x;
      if (lane >= step) before += y;
    }
    float next = __shfl_down_sync(0xffffffffu, behind, 1), previous = __shfl_up_sync(0xffffffffu, before, 1);
    if (lane == 31) next = 0;
    if (lane == 0) previous = 0;
    if (t < at.length) call.dg[out + static_cast<int64_t>(t) * call.value_heads] = behind + previous + states;
    if (t + 1 < at.length) {
      call.dg[out + static_cast<int64_t>(t + 1) * call.value_heads] =
          next + later[1] + previous + earlier[0] + states;
    }
  }
  if (warp == 1 && call.dbeta) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = sums.beta[0][t + i] + sums.beta[1][t + i] + sums.beta[2][t + i] + sums.beta[3][t + i];
      if (t + i < at.length) call.dbeta[out + static_cast<int64_t>(t + i) * call.value_heads] = sum;
    }
  }
}

}  // namespace deltatune::cuda::gdn_backward
