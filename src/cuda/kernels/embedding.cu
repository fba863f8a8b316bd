// Gradient of the embedding: one sum per distinct token id, without atomics.
//
// order_T sorts the positions by token id, so equal ids are a run. One block per (possible start of a run,
// block of columns): a position that starts no run returns at once, so the grid is an upper bound that does
// not depend on the ids. The lanes of a warp look at 32 positions together to find a run's end. The sum goes
// over the run in order of position, in fp32, and is added once to dweight.
#include "cuda/cuda_ops.h"
#include "cuda/kernels/embedding_sum.cuh"

namespace deltatune::cuda {
namespace {

template <class T, int N>
__global__ __launch_bounds__(EmbeddingSum::threads) void embedding_gradient(
    float* __restrict__ dweight, const T* __restrict__ dy, const int32_t* __restrict__ tokens,
    const int32_t* __restrict__ order, int64_t count, int64_t width) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  // Lane l looks at place begin + l; lane 0 at first at the one before the run.
  const int64_t first = blockIdx.x;
  int64_t begin = first - 1;
  const auto position_at = [&](int64_t place) { return place >= 0 && place < count ? order[place] : -1; };
  const auto id_at = [&](int32_t position) { return position >= 0 ? tokens[position] : -1; };
  int32_t position = position_at(begin + lane);
  int32_t mine = id_at(position);
  const int32_t id = __shfl_sync(full_warp, mine, 1);
  if (__shfl_sync(full_warp, mine, 0) == id) return;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * EmbeddingSum::threads + threadIdx.x) * N;
  const bool inside = column < width;  // all lanes stay for the shuffles
  const T* const from = dy + (inside ? column : 0);
  Pack<float, N> out{};
  float* const to = dweight + id * width + column;
  if (inside) out = load_pack<N>(static_cast<const float*>(to));
  float sum[N] = {};
  for (int skipped = 1;; skipped = 0) {
    const unsigned others = ~__ballot_sync(full_warp, mine == id) & (skipped ? ~1u : ~0u);
    const int end = others ? __ffs(static_cast<int>(others)) - 1 : warp_size;
    add_rows_of_lanes(sum, from, width, position, skipped, end);
    if (end < warp_size) break;
    begin += warp_size;
    position = position_at(begin + lane);
    mine = id_at(position);
  }
  if (!inside) return;
#pragma unroll
  for (int j = 0; j < N; ++j) out.v[j] += sum[j];
  store_pack(to, out);
}

}  // namespace

void embedding_backward(Stream& stream, Tensor dweight_VD, CTensor dy_TD, CTensor tokens_T, CTensor order_T) {
  const int64_t count = dy_TD.dim(0);
  const int64_t width = dy_TD.dim(1);
  if (count == 0 || width == 0) return;
  by_storage(dy_TD.dtype, [&](auto zero) {
    using T = decltype(zero);
    by_pack<full_pack<T>>(
        width % full_pack<T> == 0 && aligned16(dy_TD.data, dweight_VD.data), [&](auto pack) {
          const dim3 grid(static_cast<unsigned>(count), blocks_for(width, EmbeddingSum::threads * pack()));
          launch(stream, {"embedding_backward", dy_TD}, embedding_gradient<T, pack()>, grid,
                 EmbeddingSum::threads, 0, pointer<float>(dweight_VD), pointer<T>(dy_TD),
                 pointer<int32_t>(tokens_T), pointer<int32_t>(order_T), count, width);
        });
  });
}

}  // namespace deltatune::cuda
