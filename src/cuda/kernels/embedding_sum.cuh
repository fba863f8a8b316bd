// What both gradients of the embedding do with a run of equal token ids: a warp looks at 32 places of the
// order, then adds the rows of those that belong to the run, one by one in order of position, in fp32.
#pragma once

#include "cuda/pack.cuh"
#include "cuda/reduce.cuh"

namespace deltatune::cuda {

struct EmbeddingSum {
  static constexpr int threads = 128;
  static constexpr int in_flight = 4;  ///< rows loaded before the first is added
};

template <class T, int N>
__device__ inline void add_row(float (&sum)[N], const Pack<T, N>& row) {
#pragma unroll
  for (int j = 0; j < N; ++j) sum[j] += load(row.v[j]);
}

/// Adds N elements of each of the rows [position of lane i] of `from`, begin <= i < end, in order. All lanes.
template <class T, int N>
__device__ inline void add_rows_of_lanes(float (&sum)[N], const T* from, int64_t width, int32_t position,
                                         int begin, int end) {
  int i = begin;
  for (; i + EmbeddingSum::in_flight <= end; i += EmbeddingSum::in_flight) {
    Pack<T, N> rows[EmbeddingSum::in_flight];
#pragma unroll
    for (int r = 0; r < EmbeddingSum::in_flight; ++r)
      rows[r] = load_pack<N>(from + static_cast<int64_t>(__shfl_sync(full_warp, position, i + r)) * width);
#pragma unroll
    for (int r = 0; r < EmbeddingSum::in_flight; ++r) add_row(sum, rows[r]);
  }
  for (; i < end; ++i)
    add_row(sum, load_pack<N>(from + static_cast<int64_t>(__shfl_sync(full_warp, position, i)) * width));
}

}  // namespace deltatune::cuda
