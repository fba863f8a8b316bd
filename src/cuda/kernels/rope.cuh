// What the kernels of qk_norm_rope share: the call and the angles; formulas in ops/attention.h.
//
// Cosines and sines are those of the fp32 angle (not the fast intrinsics), rounded to storage before use.
#pragma once

#include <string>

#include "cuda/cuda_ops.h"
#include "cuda/kernels/sums.cuh"
#include "ops/scratch.h"

namespace deltatune::cuda::rope {

struct Rope {
  static constexpr int threads = 256;
  static constexpr int warps = threads / warp_size;
  static constexpr int max_dim = 256;
  static constexpr int forward_tokens = 8;
  static constexpr int forward_heads = 2;   ///< of a warp, loaded together
  static constexpr int backward_heads = 2;  ///< the same
  static constexpr int tokens = scratch::cuda_norm_block;
};

/// What forward and backward share; q heads lie 2 dim apart in proj, k heads dim.
template <class T>
struct Call {
  const T *proj, *q_norm, *k_norm;
  const int32_t* positions;
  const float* inv_freq;
  int64_t tokens, columns;
  int k_column, query_heads, kv_heads, dim, rotary;

  __device__ int heads() const { return query_heads + kv_heads; }
  __device__ int half() const { return rotary / 2; }
  /// Column in proj of head `head`; k heads come after the query heads.
  __device__ int column(int head) const {
    return head < query_heads ? 2 * head * dim : k_column + (head - query_heads) * dim;
  }
  /// Row of `head` in a [T, heads of its kind] array.
  __device__ int64_t row(int64_t t, int head) const {
    return head < query_heads ? t * query_heads + head : t * kv_heads + head - query_heads;
  }
  /// First element of the pack that holds the other half of the pairs of the pack at j < rotary.
  __device__ int partner(int j) const { return j < half() ? j + half() : j - half(); }
  /// Index of the pair of element j < rotary.
  __device__ int pair(int j) const { return j < half() ? j : j - half(); }
};

/// Cosine and sine of each pair of `n` tokens from t0 on, as stored in T, by the whole block.
template <class T>
__device__ void make_angles(float2* angles, const Call<T>& call, int64_t t0, int n) {
  const int half = call.half();
  for (int i = static_cast<int>(threadIdx.x); i < n * half; i += Rope::threads) {
    const int t = i / half;
    const float angle = static_cast<float>(call.positions[t0 + t]) * call.inv_freq[i - t * half];
    angles[i] = {load(store<T>(cosf(angle))), load(store<T>(sinf(angle)))};
  }
  __syncthreads();
}

/// What backward reads besides.
template <class T>
struct Gradients {
  const T *dq, *dk;
  const float *q_rstd, *k_rstd;
};

template <class T>
Call<T> make_call(CTensor proj_TN, CTensor q_norm_K, CTensor k_norm_K, CTensor positions_T, CTensor inv_freq,
                  const AttentionShape& shape) {
  if (shape.head_dim > Rope::max_dim) {
    throw Error(ErrorKind::internal, "no CUDA kernel for heads of " + std::to_string(shape.head_dim),
                "qk_norm_rope", "please report it with the command line");
  }
  return {pointer<T>(proj_TN),
          pointer<T>(q_norm_K),
          pointer<T>(k_norm_K),
          pointer<int32_t>(positions_T),
          pointer<float>(inv_freq),
          proj_TN.dim(0),
          shape.columns(),
          static_cast<int>(shape.k_column()),
          static_cast<int>(shape.query_heads),
          static_cast<int>(shape.kv_heads),
          static_cast<int>(shape.head_dim),
          static_cast<int>(shape.rotary_dim)};
}

}  // namespace deltatune::cuda::rope
