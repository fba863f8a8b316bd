// Cross-entropy of rows of logits, with the gradient in place if wanted.
//
// Per row, one block: m = max, Z = sum e^(x - m), loss = log Z + m - x[target], d = e^(x - m) / Z - onehot.
// Exponentials in fp32; each thread adds them in double (so a quarter of a million columns cost no accuracy).
// Row losses go to scratch and are added by one block in a fixed order.
//
// A thread keeps its maximum and its sum under that maximum as it goes, so a row is read twice: once for the
// loss and once, from its end to its beginning, for the gradient. The end is what the second-level cache
// still holds.
#include "cuda/cuda_ops.h"
#include "cuda/math.cuh"
#include "cuda/pack.cuh"
#include "cuda/reduce.cuh"
#include "ops/scratch.h"

namespace deltatune::cuda {
namespace {

struct Tile {
  static constexpr int threads = 512;
  static constexpr int in_flight = 4;  ///< packs loaded before the first is used
};

/// e^x of an op on storage T.
template <class T>
__device__ inline float exp_for(float x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return expf(x);
  } else {
    return fast_exp(x);
  }
}

/// A maximum, and a sum of e^(x - maximum).
struct Softmax {
  float top;
  double sum;
};
/// Instead of -inf, which would give inf - inf.
inline constexpr float lowest = -3.402823466e38f;

/// All threads' parts of the block, in a fixed order.
__device__ inline Softmax block_softmax(float top, float sum) {
  const float most = block_reduce(top, Max{}, lowest);
  return {most, block_sum(static_cast<double>(sum * expf(top - most)))};
}

/// One row per block. dlogits may be the memory of logits (no restrict): what another thread needs is read
/// before the barriers of the sums. Null: evaluation.
template <class T, int N>
__global__ void __launch_bounds__(Tile::threads, 2)
    row_loss(double* __restrict__ losses, T* dlogits, const T* logits, const int32_t* __restrict__ targets,
             int64_t width) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  const int first = static_cast<int>(threadIdx.x), packs = static_cast<int>(width / N);
  const int32_t target = targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    if (!dlogits) return;
    Pack<T, N> zeros;
#pragma unroll
    for (int j = 0; j < N; ++j) zeros.v[j] = store<T>(0.0f);
    for (int p = first; p < packs; p += Tile::threads) store_pack(dlogits + row + int64_t{p} * N, zeros);
    return;
  }
  const float at_target = load(logits[row + target]);
  float top = lowest, sum = 0;
  for (int p = first; p < packs; p += Tile::threads * Tile::in_flight) {
    Pack<T, N> in[Tile::in_flight];
#pragma unroll
    for (int i = 0; i < Tile::in_flight; ++i) {
      const int at = p + i * Tile::threads;
      if (at < packs) in[i] = load_pack<N>(logits + row + int64_t{at} * N);
    }
#pragma unroll
    for (int i = 0; i < Tile::in_flight; ++i) {
      if (p + i * Tile::threads >= packs) break;
      float most = top;
#pragma unroll
      for (int j = 0; j < N; ++j) most = fmaxf(most, load(in[i].v[j]));
      sum *= exp_for<T>(top - most);
      top = most;
#pragma unroll
      for (int j = 0; j < N; ++j) sum += exp_for<T>(load(in[i].v[j]) - top);
    }
  }
  const Softmax all = block_softmax(top, sum);
  if (threadIdx.x == 0)
    losses[blockIdx.x] = log(all.sum) + static_cast<double>(all.top) - static_cast<double>(at_target);
  if (!dlogits || first >= packs) return;
  const float scale = static_cast<float>(1.0 / all.sum);
#pragma unroll 4
  for (int p = first + (packs - 1 - first) / Tile::threads * Tile::threads; p >= 0; p -= Tile::threads) {
    const auto in = load_pack<N>(logits + row + int64_t{p} * N);
    float probability[N];
#pragma unroll
    for (int j = 0; j < N; ++j) probability[j] = exp_for<T>(load(in.v[j]) - all.top) * scale;
    if (target / N == p) {
#pragma unroll
      for (int j = 0; j < N; ++j) probability[j] -= target % N == j ? 1.0f : 0.0f;
    }
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.v[j] = store<T>(probability[j]);
    store_pack(dlogits + row + int64_t{p} * N, out);
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
