// Sums and maxima over lanes and thread blocks in a fixed order: a butterfly inside each warp, then the first
// warp over the warps' results. The order depends on the block size alone.
#pragma once

#include <cuda_runtime.h>

namespace deltatune::cuda {

inline constexpr int warp_size = 32;
inline constexpr unsigned full_warp = 0xffffffffu;

struct Add {
  template <class C>
  __device__ C operator()(C a, C b) const {
    return a + b;
  }
};
/// NaN is passed over.
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// `x` of the `Lanes` lanes (a power of two) that differ in the low bits of the lane index combined; every
/// lane of the warp takes part and gets the result of its group.
template <int Lanes = warp_size, class C, class F>
__device__ inline C warp_reduce(C x, F f) {
#pragma unroll
  for (int step = 1; step < Lanes; step *= 2) x = f(x, __shfl_xor_sync(full_warp, x, step));
  return x;
}
template <int Lanes = warp_size>
__device__ inline float lanes_sum(float x) {
  return warp_reduce<Lanes>(x, Add{});
}
template <int Lanes = warp_size>
__device__ inline float lanes_max(float x) {
  return warp_reduce<Lanes>(x, Max{});
}

/// `x` of all threads of the block combined; every thread gets the result. The block is a whole number of
/// warps; `neutral` changes nothing under f. May be called again at once.
template <class C, class F>
__device__ inline C block_reduce(C x, F f, C neutral) {
  __shared__ C of_warp[32];
  __shared__ C of_block;
  const int lane = static_cast<int>(threadIdx.x % warp_size);
  const int warp = static_cast<int>(threadIdx.x / warp_size);
  const int warps = static_cast<int>(blockDim.x / warp_size);
  x = warp_reduce(x, f);
  if (lane == 0) of_warp[warp] = x;
  __syncthreads();
  if (warp == 0) {
    x = warp_reduce(lane < warps ? of_warp[lane] : neutral, f);
    if (lane == 0) of_block = x;
  }
  __syncthreads();
  return of_block;
}

template <class C>
__device__ inline C block_sum(C x) {
  return block_reduce(x, Add{}, C{0});
}

}  // namespace deltatune::cuda
