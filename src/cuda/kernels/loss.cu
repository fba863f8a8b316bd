// Cross-entropy of rows of logits, with the gradient in place if wanted.
//
// Per row, one block: m = max, Z = sum e^(x - m), loss = log Z + m - x[target], d = e^(x - m) / Z - onehot.
// Exponentials in fp32; each thread adds them in double (so a quarter of a million columns cost no accuracy).
// Row losses go to scratch and are added by one block in a fixed order.
#include "cuda/cuda_ops.h"
#include "cuda/pack.cuh"
#include "cuda/reduce.cuh"
#include "ops/scratch.h"

namespace deltatune::cuda {
namespace {

struct Tile {
  static constexpr int threads = 512;
};

/// dlogits may be the memory of logits (no restrict): everything another thread needs is read before the
/// barriers of the sums. Null: evaluation.
template <class T, int N>
__global__ __launch_bounds__(Tile::threads) void row_loss(double* __restrict__ losses, T* dlogits,
                                                          const T* logits,
                                                          const int32_t* __restrict__ targets,
                                                          int64_t width) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  const int64_t packs = width / N;
  const int32_t target = targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    if (!dlogits) return;
    Pack<T, N> zeros;
#pragma unroll
    for (int j = 0; j < N; ++j) zeros.v[j] = store<T>(0.0f);
    for (int64_t p = threadIdx.x; p < packs; p += Tile::threads) store_pack(dlogits + row + p * N, zeros);
    return;
  }
  float top = -INFINITY;
  for (int64_t p = threadIdx.x; p < packs; p += Tile::threads) {
    const auto in = load_pack<N>(logits + row + p * N);
#pragma unroll
    for (int j = 0; j < N; ++j) top = fmaxf(top, load(in.v[j]));
  }
  top = block_reduce(top, Max{}, -INFINITY);
  double total = 0;
  for (int64_t p = threadIdx.x; p < packs; p += Tile::threads) {
    const auto in = load_pack<N>(logits + row + p * N);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) sum += expf(load(in.v[j]) - top);
    total += static_cast<double>(sum);
  }
  const float at_target = load(logits[row + target]);
  total = block_sum(total);
  if (threadIdx.x == 0)
    losses[blockIdx.x] = log(total) + static_cast<double>(top) - static_cast<double>(at_target);
  if (!dlogits) return;
  const float scale = static_cast<float>(1.0 / total);
  for (int64_t p = threadIdx.x; p < packs; p += Tile::threads) {
    const auto in = load_pack<N>(logits + row + p * N);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float probability = expf(load(in.v[j]) - top) * scale;
      out.v[j] = store<T>(p * N + j == target ? probability - 1.0f : probability);
    }
    store_pack(dlogits + row + p * N, out);
  }
}

/// sum[0] += the losses, one block.
__global__ __launch_bounds__(Tile::threads) void add_losses(double* __restrict__ sum,
                                                            const double* __restrict__ losses, int64_t rows) {
  double mine = 0;
  for (int64_t n = threadIdx.x; n < rows; n += Tile::threads) mine += losses[n];
  mine = block_sum(mine);
  if (threadIdx.x == 0) sum[0] += mine;
}

}  // namespace

void cross_entropy(Stream& stream, Tensor loss_sum_1, Tensor dlogits_NV, CTensor logits_NV,
                   CTensor targets_N) {
  const int64_t rows = logits_NV.dim(0);
  const int64_t width = logits_NV.dim(1);
  if (rows == 0) return;
  auto* losses = reinterpret_cast<double*>(stream.scratch(scratch::cross_entropy(Target::cuda, rows)));
  by_storage(logits_NV.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool whole = width % full_pack<T> == 0 && aligned16(dlogits_NV.data, logits_NV.data);
    by_pack<full_pack<T>>(whole, [&](auto n) {
      launch(stream, {"cross_entropy", logits_NV}, row_loss<T, n()>, static_cast<unsigned>(rows),
             Tile::threads, 0, losses, pointer<T>(dlogits_NV), pointer<T>(logits_NV),
             pointer<int32_t>(targets_N), width);
    });
  });
  launch(stream, {"cross_entropy", logits_NV}, add_losses, 1, Tile::threads, 0, pointer<double>(loss_sum_1),
         losses, rows);
}

}  // namespace deltatune::cuda
