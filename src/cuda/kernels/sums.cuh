// Sums over blocks of tokens in a fixed order, through partial sums in scratch. No atomics, so two runs give
// the same bits. Sums over lanes: cuda/reduce.cuh.
#pragma once

#include "cuda/kernels/shared.cuh"
#include "cuda/math.cuh"
#include "cuda/ptx/grid.cuh"
#include "cuda/reduce.cuh"

namespace deltatune::cuda {

struct PartialSums {
  static constexpr int columns = warp_size;
  static constexpr int rows = warp_size;
  static constexpr int together = 16;  ///< partial sums that a thread asks for at once
  static constexpr int jobs = 3;
};

/// out[j] += sum over b < blocks of partial[b * stride + j], j < n. Not wanted where out is null.
struct PartialSum {
  float* out = nullptr;
  const float* partial = nullptr;
  int64_t n = 0, stride = 0, blocks = 0;
};
struct PartialSumList {
  PartialSum job[PartialSums::jobs];
};

/// Job blockIdx.y. Row y of the block sums b = y, y + 32, ...; then a warp for each column sums the rows.
static __global__ void __launch_bounds__(PartialSums::columns* PartialSums::rows)
    add_partials_kernel(const __grid_constant__ PartialSumList list) {
  __shared__ float sums[PartialSums::rows][PartialSums::columns + 1];
  const PartialSum job = list.job[blockIdx.y];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * PartialSums::columns, j = begin + x,
                own = begin + y;
  if (begin >= job.n) return;
  ptx::wait_for_kernel_before();
  const bool writes = x == 0 && own < job.n;
  const float before = writes ? job.out[own] : 0.0f;
  float sum = 0;
  for (int64_t b = y; b < job.blocks; b += PartialSums::rows * PartialSums::together) {
    float part[PartialSums::together];
#pragma unroll
    for (int i = 0; i < PartialSums::together; ++i) {
      const int64_t row = b + i * PartialSums::rows;
      part[i] = j < job.n && row < job.blocks ? job.partial[row * job.stride + j] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < PartialSums::together; ++i) sum += part[i];
  }
  sums[y][x] = sum;
  __syncthreads();
  const float total = lanes_sum(sums[x][y]);
  if (writes) job.out[own] = before + total;
}

/// Adds up to three arrays of partial sums to their outputs, in one launch, directly behind that of the
/// kernel that writes them. That may call ptx::let_next_kernel_start() when all that is left is to write
/// them: this one waits on the multiprocessors from then on, and its time in a profile begins there.
inline void add_partials(const Stream& stream, const Launched& what, PartialSum a, PartialSum b = {},
                         PartialSum c = {}) {
  PartialSumList list;
  unsigned jobs = 0;
  int64_t n = 0;
  for (const PartialSum& job : {a, b, c}) {
    if (!job.out || job.n == 0) continue;
    list.job[jobs++] = job;
    n = job.n > n ? job.n : n;
  }
  if (jobs == 0) return;
  launch_early<add_partials_kernel>(stream, what, dim3(blocks_for(n, PartialSums::columns), jobs),
                                    dim3(PartialSums::columns, PartialSums::rows), list);
}

/// An output as a pointer; null: not wanted.
template <class T>
T* wanted(Tensor x) {
  return x.empty() ? nullptr : pointer<T>(x);
}

}  // namespace deltatune::cuda
