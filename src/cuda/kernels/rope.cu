// qk_norm_rope, plain: per-head RMSNorm and rotary embedding of the q and k columns of the fused projection;
// formulas in ops/attention.h. A warp per (token, head), heads up to 256 wide.
//
// Cosines and sines are those of the fp32 angle (not the fast intrinsics), rounded to storage before use;
// norm and rotation are one expression in fp32 with one rounding at the store. Gradients of the norm weights
// are summed over blocks of 16 tokens into scratch, then the blocks in order.
#include <string>

#include "cuda/cuda_ops.h"
#include "cuda/kernels/sums.cuh"
#include "ops/scratch.h"

namespace deltatune::cuda {
namespace {

struct Rope {
  static constexpr int threads = 256;
  static constexpr int warps = threads / warp_size;
  static constexpr int max_dim = 256;
  static constexpr int registers = max_dim / warp_size;  ///< elements of a head per lane
};

/// What forward and backward share; q heads lie 2 dim apart in proj, k heads dim.
template <class T>
struct Call {
  const T *proj, *q_norm, *k_norm;
  const int32_t* positions;
  const float* inv_freq;
  int64_t tokens, columns, k_column;
  int query_heads, kv_heads, dim, rotary;

  __device__ int heads() const { return query_heads + kv_heads; }
  /// Column in proj of head `head`; k heads come after the query heads.
  __device__ int64_t column(int head) const {
    return head < query_heads ? static_cast<int64_t>(2 * head) * dim
                              : k_column + static_cast<int64_t>(head - query_heads) * dim;
  }
  __device__ const T* norm(int head) const { return head < query_heads ? q_norm : k_norm; }
  /// Row of `head` in a [T, heads of its kind] array.
  __device__ int64_t row(int64_t t, int head) const {
    return head < query_heads ? t * query_heads + head : t * kv_heads + head - query_heads;
  }
};

struct Angle {
  float cosine, sine;
};
/// Of pair j at a position, as stored in T.
template <class T>
__device__ Angle angle_of(const Call<T>& call, int32_t position, int j) {
  const float angle = static_cast<float>(position) * call.inv_freq[j];
  return {load(store<T>(cosf(angle))), load(store<T>(sinf(angle)))};
}

/// Grid: (token, head) pairs, a warp each.
template <class T>
__global__ void __launch_bounds__(Rope::threads)
    forward_kernel(Call<T> call, T* __restrict__ q, T* __restrict__ k, float* __restrict__ q_rstd,
                   float* __restrict__ k_rstd, float eps) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * Rope::threads + threadIdx.x) / warp_size;
  if (i >= call.tokens * call.heads()) return;
  const int64_t t = i / call.heads();
  const int head = static_cast<int>(i % call.heads());
  const bool is_q = head < call.query_heads;
  const T* const x = call.proj + t * call.columns + call.column(head);
  const T* const w = call.norm(head);
  float squares = 0;
  for (int j = lane; j < call.dim; j += warp_size) squares += load(x[j]) * load(x[j]);
  const float rstd = 1.0f / sqrtf(lanes_sum(squares) / static_cast<float>(call.dim) + eps);
  const auto normed = [&](int j) { return load(x[j]) * rstd * (1.0f + load(w[j])); };
  T* const out = (is_q ? q : k) + call.row(t, head) * call.dim;
  const int half = call.rotary / 2;
  for (int j = lane; j < half; j += warp_size) {
    const Angle a = angle_of(call, call.positions[t], j);
    const float low = normed(j), high = normed(j + half);
    out[j] = store<T>(low * a.cosine - high * a.sine);
    out[j + half] = store<T>(high * a.cosine + low * a.sine);
  }
  for (int j = call.rotary + lane; j < call.dim; j += warp_size) out[j] = store<T>(normed(j));
  float* const rstd_out = is_q ? q_rstd : k_rstd;
  if (rstd_out && lane == 0) rstd_out[call.row(t, head)] = rstd;
}

/// Gradient with respect to the normed head at element j: dout rotated by the negative angle.
template <class T>
__device__ float rotated_back(const Call<T>& call, const T* dout, int32_t position, int j) {
  const int half = call.rotary / 2;
  if (j >= call.rotary) return load(dout[j]);
  const Angle a = angle_of(call, position, j < half ? j : j - half);
  return j < half ? load(dout[j]) * a.cosine + load(dout[j + half]) * a.sine
                  : load(dout[j]) * a.cosine - load(dout[j - half]) * a.sine;
}

/// A head per warp and turn: the q heads of the block's tokens for blockIdx.y = 0, the k heads for 1. Partial
/// sums [blocks, 2, dim]: dq_norm, dk_norm.
template <class T>
__global__ void __launch_bounds__(Rope::threads)
    backward_kernel(Call<T> call, T* __restrict__ dproj, const T* __restrict__ dq, const T* __restrict__ dk,
                    const float* __restrict__ q_rstd, const float* __restrict__ k_rstd,
                    float* __restrict__ partial) {
  float* const sums = dynamic_shared<float>();  // [warps, dim]
  const int lane = static_cast<int>(threadIdx.x) % warp_size,
            warp = static_cast<int>(threadIdx.x) / warp_size;
  const bool is_q = blockIdx.y == 0;
  const int heads = is_q ? call.query_heads : call.kv_heads;
  const int64_t t0 = static_cast<int64_t>(blockIdx.x) * scratch::cuda_norm_block;
  const int64_t tokens = min(static_cast<int64_t>(scratch::cuda_norm_block), call.tokens - t0);
  float dw[Rope::registers] = {};
  for (int64_t i = warp; i < tokens * heads; i += Rope::warps) {
    const int64_t t = t0 + i / heads;
    const int head = static_cast<int>(i % heads) + (is_q ? 0 : call.query_heads);
    const int64_t at = t * call.columns + call.column(head), row = call.row(t, head);
    const T* const x = call.proj + at;
    const T* const w = call.norm(head);
    const T* const dout = (is_q ? dq : dk) + row * call.dim;
    const float rstd = (is_q ? q_rstd : k_rstd)[row];
    const int32_t position = call.positions[t];
    float gradient[Rope::registers];
    float mean = 0;
#pragma unroll
    for (int m = 0; m < Rope::registers; ++m) {
      const int j = lane + m * warp_size;
      if (j >= call.dim) continue;
      const float rotated = rotated_back(call, dout, position, j);
      const float n = load(x[j]) * rstd;
      dw[m] += rotated * n;
      gradient[m] = rotated * (1.0f + load(w[j]));
      mean += gradient[m] * n;
    }
    mean = lanes_sum(mean) / static_cast<float>(call.dim);
#pragma unroll
    for (int m = 0; m < Rope::registers; ++m) {
      const int j = lane + m * warp_size;
      if (dproj && j < call.dim) dproj[at + j] = store<T>(rstd * (gradient[m] - load(x[j]) * rstd * mean));
    }
  }
#pragma unroll
  for (int m = 0; m < Rope::registers; ++m) {
    const int j = lane + m * warp_size;
    if (j < call.dim) sums[warp * call.dim + j] = dw[m];
  }
  __syncthreads();
  for (int j = static_cast<int>(threadIdx.x); j < call.dim; j += Rope::threads) {
    float sum = 0;
    for (int i = 0; i < Rope::warps; ++i) sum += sums[i * call.dim + j];
    partial[(static_cast<int64_t>(blockIdx.x) * 2 + blockIdx.y) * call.dim + j] = sum;
  }
}

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
          shape.k_column(),
          static_cast<int>(shape.query_heads),
          static_cast<int>(shape.kv_heads),
          static_cast<int>(shape.head_dim),
          static_cast<int>(shape.rotary_dim)};
}

}  // namespace

void qk_norm_rope_forward(Stream& stream, Tensor q_THK, Tensor k_TGK, Tensor q_rstd_TH, Tensor k_rstd_TG,
                          CTensor proj_TN, CTensor q_norm_K, CTensor k_norm_K, CTensor positions_T,
                          CTensor inv_freq, AttentionShape shape, float eps) {
  by_storage(proj_TN.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t rows = proj_TN.dim(0) * (shape.query_heads + shape.kv_heads);
    launch(stream, {"qk_norm_rope_forward", proj_TN}, forward_kernel<T>, dim3(blocks_for(rows, Rope::warps)),
           dim3(Rope::threads), 0, make_call<T>(proj_TN, q_norm_K, k_norm_K, positions_T, inv_freq, shape),
           pointer<T>(q_THK), pointer<T>(k_TGK), wanted<float>(q_rstd_TH), wanted<float>(k_rstd_TG), eps);
  });
}

void qk_norm_rope_backward(Stream& stream, Tensor dproj_TN, Tensor dq_norm_K, Tensor dk_norm_K,
                           CTensor dq_THK, CTensor dk_TGK, CTensor proj_TN, CTensor q_norm_K,
                           CTensor k_norm_K, CTensor q_rstd_TH, CTensor k_rstd_TG, CTensor positions_T,
                           CTensor inv_freq, AttentionShape shape) {
  by_storage(proj_TN.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t tokens = proj_TN.dim(0), dim = shape.head_dim;
    const unsigned blocks = blocks_for(tokens, scratch::cuda_norm_block);
    float* const partial = reinterpret_cast<float*>(
        stream.scratch(scratch::qk_norm_rope_backward(Target::cuda, proj_TN.dtype, tokens, shape)));
    launch(stream, {"qk_norm_rope_backward", proj_TN}, backward_kernel<T>, dim3(blocks, 2),
           dim3(Rope::threads), static_cast<size_t>(Rope::warps * dim) * sizeof(float),
           make_call<T>(proj_TN, q_norm_K, k_norm_K, positions_T, inv_freq, shape), wanted<T>(dproj_TN),
           pointer<T>(dq_THK), pointer<T>(dk_TGK), pointer<float>(q_rstd_TH), pointer<float>(k_rstd_TG),
           partial);
    if (!dq_norm_K.empty()) {
      add_partials(stream, {"qk_norm_rope_backward: dq_norm", proj_TN}, pointer<float>(dq_norm_K), partial,
                   dim, 2 * dim, blocks);
    }
    if (!dk_norm_K.empty()) {
      add_partials(stream, {"qk_norm_rope_backward: dk_norm", proj_TN}, pointer<float>(dk_norm_K),
                   partial + dim, dim, 2 * dim, blocks);
    }
  });
}

}  // namespace deltatune::cuda
