// Sums in a fixed order: over lanes by shuffles, over blocks of tokens through partial sums in scratch. No
// atomics, so two runs give the same bits.
#pragma once

#include "cuda/kernels/shared.cuh"

namespace deltatune::cuda {

inline constexpr int warp_size = 32;
inline constexpr unsigned full_warp = 0xffffffffu;

/// Sum over the `Lanes` lanes (a power of two) that differ in the low bits of the lane index; every lane of
/// the warp takes part and gets the sum of its group.
template <int Lanes = warp_size>
__device__ inline float lanes_sum(float x) {
#pragma unroll
  for (int step = 1; step < Lanes; step *= 2) x += __shfl_xor_sync(full_warp, x, step);
  return x;
}

template <int Lanes = warp_size>
__device__ inline float lanes_max(float x) {
#pragma unroll
  for (int step = 1; step < Lanes; step *= 2) x = fmaxf(x, __shfl_xor_sync(full_warp, x, step));
  return x;
}

/// 1 / (1 + e^-x).
__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

struct PartialSums {
  static constexpr int columns = 32;
  static constexpr int rows = 8;
};

/// out[j] += sum over b of partial[b * stride + j], j < n. Row y of the block sums b = y, y + 8, ...; then
/// the rows in order.
static __global__ void __launch_bounds__(PartialSums::columns* PartialSums::rows)
    add_partials_kernel(float* __restrict__ out, const float* __restrict__ partial, int64_t n, int64_t stride,
                        int64_t blocks) {
  float* const sums = dynamic_shared<float>();
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int64_t j = static_cast<int64_t>(blockIdx.x) * PartialSums::columns + x;
  float sum = 0;
  if (j < n) {
    for (int64_t b = y; b < blocks; b += PartialSums::rows) sum += partial[b * stride + j];
  }
  sums[y * PartialSums::columns + x] = sum;
  __syncthreads();
  if (y != 0 || j >= n) return;
  float total = 0;
  for (int i = 0; i < PartialSums::rows; ++i) total += sums[i * PartialSums::columns + x];
  out[j] += total;
}

/// Adds partial sums [blocks, stride] of n <= stride columns to out[n].
inline void add_partials(const Stream& stream, const Launched& what, float* out, const float* partial,
                         int64_t n, int64_t stride, int64_t blocks) {
  launch(stream, what, add_partials_kernel, dim3(blocks_for(n, PartialSums::columns)),
         dim3(PartialSums::columns, PartialSums::rows),
         PartialSums::columns * PartialSums::rows * sizeof(float), out, partial, n, stride, blocks);
}

/// An output as a pointer; null: not wanted.
template <class T>
T* wanted(Tensor x) {
  return x.empty() ? nullptr : pointer<T>(x);
}

}  // namespace deltatune::cuda
