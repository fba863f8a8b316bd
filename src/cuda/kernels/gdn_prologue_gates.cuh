// The gates of gdn_prologue, forward and backward, as blocks at the front of the grids of its kernels;
// formulas in ops/delta_net.h. Sums for dA_log and ddt_bias over blocks of tokens in a fixed order.
#pragma once

#include "cuda/kernels/gdn_prologue.cuh"

namespace deltatune::cuda::prologue {

struct GateTile {
  static constexpr int each = 4;  ///< gates of a thread, forward
};

/// Outputs; null: not wanted.
template <class T>
struct Outputs {
  T *q, *k, *v;
  float *q_rstd, *k_rstd, *g, *beta;
};

/// Gates i, i + threads, ... of all (token, value head) pairs, `GateTile::each` of them.
template <int threads, class T>
__device__ void forward_gates(const Call<T>& call, const Outputs<T>& out, int64_t first) {
  const int64_t count = static_cast<int64_t>(call.tokens) * call.value_heads;
#pragma unroll
  for (int m = 0; m < GateTile::each; ++m) {
    const int64_t i = first + m * threads;
    if (i >= count) return;
    const int64_t t = i / call.value_heads;
    const int h = static_cast<int>(i - t * call.value_heads);
    const T* const row = call.proj + t * call.columns;
    if (out.beta) out.beta[i] = sigmoid(load(row[call.b_column() + h]));
    if (out.g) out.g[i] = -expf(call.A_log[h]) * softplus(load(row[call.a_column() + h]) + call.dt_bias[h]);
  }
}

/// What backward reads besides; rstd of q and k are outputs of forward.
template <class T>
struct Gradients {
  const T *dq, *dk, *dv, *q, *k;
  const float *q_rstd, *k_rstd, *dg, *dbeta;
};

/// Gates of 64 tokens and 32 value heads: a lane per head, a warp per token and turn; sums [2, Hv] of the
/// block of tokens for dA_log and ddt_bias.
template <int warps, class T>
__device__ void backward_gates(const Call<T>& call, const Gradients<T>& x, T* __restrict__ dproj,
                               float* __restrict__ partial, int block, int groups) {
  __shared__ float sums[2][warps][warp_size];
  const int lane = static_cast<int>(threadIdx.x) % warp_size,
            warp = static_cast<int>(threadIdx.x) / warp_size;
  const int h = block % groups * warp_size + lane;
  const int64_t Hv = call.value_heads;
  const int tokens = block / groups;
  constexpr int size = GdnCudaTile::gate_tokens;
  const int t0 = tokens * size, end = min(t0 + size, call.tokens);
  float A_log_sum = 0, bias_sum = 0;
  if (h < Hv) {
    const float rate = -expf(call.A_log[h]), bias = call.dt_bias[h];
#pragma unroll 4
    for (int64_t t = t0 + warp; t < end; t += warps) {
      const T* const row = call.proj + t * call.columns;
      const float a = load(row[call.a_column() + h]) + bias;
      const float beta = sigmoid(load(row[call.b_column() + h]));
      const float dg = x.dg[t * Hv + h];
      // Not to be contracted with the sum: its bits would depend on whether dproj is wanted.
      const float da = __fmul_rn(dg * rate, softplus_derivative(a));
      A_log_sum += dg * (rate * softplus(a));
      bias_sum += da;
      if (!dproj) continue;
      dproj[t * call.columns + call.a_column() + h] = store<T>(da);
      dproj[t * call.columns + call.b_column() + h] = store<T>(x.dbeta[t * Hv + h] * beta * (1.0f - beta));
    }
  }
  sums[0][warp][lane] = A_log_sum;
  sums[1][warp][lane] = bias_sum;
  __syncthreads();
  if (warp >= 2 || h >= Hv) return;
  float sum = 0;
  for (int i = 0; i < warps; ++i) sum += sums[warp][i][lane];
  partial[(tokens * 2 + warp) * Hv + h] = sum;
}

}  // namespace deltatune::cuda::prologue
