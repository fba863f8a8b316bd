// What the tensor-core kernels of attention backward share: their arguments, and the first of their three
// launches.
#pragma once

#include "cuda/kernels/attention_mma.cuh"
#include "cuda/kernels/sums.cuh"
#include "cuda/pack.cuh"

namespace deltatune::cuda::attention_mma {

/// What backward needs besides; lse and dots (do . o) are [H, T].
struct BackwardCall : Call {
  const device_bf16* d_o;
  const float *lse, *dots;
};

/// dots[h, t] = do . o: a warp per head and token.
template <int D>
__global__ void __launch_bounds__(256)
    dots_kernel(float* __restrict__ dots, const device_bf16* __restrict__ d_o,
                const device_bf16* __restrict__ o, int64_t tokens, int heads) {
  constexpr int width = D / warp_size;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x) / warp_size;
  if (i >= tokens * heads) return;
  const auto a = load_pack<width>(d_o + i * D + lane * width);
  const auto b = load_pack<width>(o + i * D + lane * width);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < width; ++j) sum += load(a.v[j]) * load(b.v[j]);
  sum = lanes_sum(sum);
  if (lane == 0) dots[i % heads * tokens + i / heads] = sum;
}

}  // namespace deltatune::cuda::attention_mma
