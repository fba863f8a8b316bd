// Gradient of the embedding: one sum per distinct token id, without atomics.
//
// order_T sorts the positions by token id, so equal ids are a run. One block per (possible start of a run,
// block of columns): a position that starts no run returns at once, so the grid is an upper bound that does
// not depend on the ids. The sum goes over the run in order of position, in fp32, and is added once to
// dweight.
#include "cuda/cuda_ops.h"
#include "cuda/pack.cuh"

namespace deltatune::cuda {
namespace {

struct Tile {
  static constexpr int threads = 64;
  static constexpr int in_flight = 4;  ///< rows loaded before the first is added
};

/// First place behind `first` whose id differs: the ids are sorted, so a binary search finds it.
__device__ int64_t end_of_run(const int32_t* tokens, const int32_t* order, int64_t first, int64_t count) {
  const int32_t id = tokens[order[first]];
  int64_t low = first + 1;
  int64_t high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (tokens[order[middle]] == id) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

template <class T, int N>
__global__ __launch_bounds__(Tile::threads) void embedding_gradient(float* __restrict__ dweight,
                                                                    const T* __restrict__ dy,
                                                                    const int32_t* __restrict__ tokens,
                                                                    const int32_t* __restrict__ order,
                                                                    int64_t count, int64_t width) {
  const int64_t first = blockIdx.x;
  const int32_t id = tokens[order[first]];
  if (first > 0 && tokens[order[first - 1]] == id) return;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * Tile::threads + threadIdx.x) * N;
  if (column >= width) return;
  const int64_t end = end_of_run(tokens, order, first, count);
  float sum[N] = {};
  int64_t i = first;
  for (; i + Tile::in_flight <= end; i += Tile::in_flight) {
    Pack<T, N> rows[Tile::in_flight];
#pragma unroll
    for (int r = 0; r < Tile::in_flight; ++r) rows[r] = load_pack<N>(dy + order[i + r] * width + column);
#pragma unroll
    for (int r = 0; r < Tile::in_flight; ++r) {
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += load(rows[r].v[j]);
    }
  }
  for (; i < end; ++i) {
    const auto row = load_pack<N>(dy + order[i] * width + column);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += load(row.v[j]);
  }
  float* out = dweight + id * width + column;
#pragma unroll
  for (int j = 0; j < N; ++j) out[j] += sum[j];
}

}  // namespace

void embedding_backward(Stream& stream, Tensor dweight_VD, CTensor dy_TD, CTensor tokens_T, CTensor order_T) {
  const int64_t count = dy_TD.dim(0);
  const int64_t width = dy_TD.dim(1);
  if (count == 0 || width == 0) return;
  by_storage(dy_TD.dtype, [&](auto zero) {
    using T = decltype(zero);
    by_pack<full_pack<T>>(width % full_pack<T> == 0 && aligned16(dy_TD.data), [&](auto pack) {
      const dim3 grid(static_cast<unsigned>(count), blocks_for(width, Tile::threads * pack()));
      launch(stream, {"embedding_backward", dy_TD}, embedding_gradient<T, pack()>, grid, Tile::threads, 0,
             pointer<float>(dweight_VD), pointer<T>(dy_TD), pointer<int32_t>(tokens_T),
             pointer<int32_t>(order_T), count, width);
    });
  });
}

}  // namespace deltatune::cuda
