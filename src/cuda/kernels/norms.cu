// Zero-centred RMSNorm, alone and behind a residual addition.
//
// y = x rstd (1 + w), rstd = (mean x^2 + eps)^-1/2: one block per row. The gradient of w is summed in two
// stages of fixed order: blocks of tokens into scratch, then the blocks; it runs before dx, which may lie in
// dy's or dsum's own memory. With u = x rstd and g = dy (1 + w): dx = rstd (g - u mean(g u)) + dsum.
#include "cuda/cuda_ops.h"
#include "cuda/pack.cuh"
#include "cuda/reduce.cuh"
#include "ops/scratch.h"

namespace deltatune::cuda {
namespace {

struct Tile {
  static constexpr int threads = 256;
  static constexpr int column_threads = 64;  ///< of the first stage of dw
};

/// sum may be the memory of x or delta (no restrict). delta null: sum is not written and x is normalised.
template <class T, int N>
__global__ __launch_bounds__(Tile::threads) void norm_forward(T* sum, T* y, float* rstd, const T* x,
                                                              const T* delta, const T* __restrict__ w,
                                                              int64_t width, float eps) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  const int64_t packs = width / N;
  float squares = 0;
  for (int64_t p = threadIdx.x; p < packs; p += Tile::threads) {
    auto in = load_pack<N>(x + row + p * N);
    if (delta) {
      const auto change = load_pack<N>(delta + row + p * N);
#pragma unroll
      for (int j = 0; j < N; ++j) in.v[j] = store<T>(load(in.v[j]) + load(change.v[j]));
      store_pack(sum + row + p * N, in);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) squares += load(in.v[j]) * load(in.v[j]);
  }
  const float scale = 1.0f / sqrtf(block_sum(squares) / static_cast<float>(width) + eps);
  if (rstd && threadIdx.x == 0) rstd[blockIdx.x] = scale;
  if (!y) return;
  const T* normed = delta ? sum : x;  // each thread reads back what it wrote itself
  for (int64_t p = threadIdx.x; p < packs; p += Tile::threads) {
    const auto in = load_pack<N>(normed + row + p * N);
    const auto weight = load_pack<N>(w + p * N);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.v[j] = store<T>(load(in.v[j]) * scale * (1.0f + load(weight.v[j])));
    store_pack(y + row + p * N, out);
  }
}

/// partial[blockIdx.y] = sum of dy x rstd over this block's tokens, in their order.
template <class T, int N>
__global__ __launch_bounds__(Tile::column_threads) void weight_partials(
    float* __restrict__ partial, const T* __restrict__ dy, const T* __restrict__ x,
    const float* __restrict__ rstd, int64_t tokens, int64_t width, int64_t tokens_per_block) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * Tile::column_threads + threadIdx.x) * N;
  if (column >= width) return;
  const int64_t begin = blockIdx.y * tokens_per_block;
  const int64_t end = begin + tokens_per_block < tokens ? begin + tokens_per_block : tokens;
  float sum[N] = {};
#pragma unroll 4
  for (int64_t t = begin; t < end; ++t) {
    const auto d = load_pack<N>(dy + t * width + column);
    const auto in = load_pack<N>(x + t * width + column);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += load(d.v[j]) * (load(in.v[j]) * rstd[t]);
  }
#pragma unroll
  for (int j = 0; j < N; ++j) partial[blockIdx.y * width + column + j] = sum[j];
}

/// dw += sum of the partial sums, in order.
__global__ __launch_bounds__(Tile::threads) void add_partials(float* __restrict__ dw,
                                                              const float* __restrict__ partial,
                                                              int64_t blocks, int64_t width) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * Tile::threads + threadIdx.x;
  if (column >= width) return;
  float sum = 0;
#pragma unroll 8
  for (int64_t b = 0; b < blocks; ++b) sum += partial[b * width + column];
  dw[column] += sum;
}

/// dx may be the memory of dy or of dsum (no restrict): a thread reads its elements before it writes them.
template <class T, int N>
__global__ __launch_bounds__(Tile::threads) void norm_backward(T* dx, const T* dy, const T* dsum,
                                                               const T* __restrict__ x,
                                                               const T* __restrict__ w,
                                                               const float* __restrict__ rstd,
                                                               int64_t width) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  const int64_t packs = width / N;
  const float scale = rstd[blockIdx.x];
  float inner = 0;
  for (int64_t p = threadIdx.x; p < packs; p += Tile::threads) {
    const auto d = load_pack<N>(dy + row + p * N);
    const auto in = load_pack<N>(x + row + p * N);
    const auto weight = load_pack<N>(w + p * N);
#pragma unroll
    for (int j = 0; j < N; ++j) inner += load(d.v[j]) * (1.0f + load(weight.v[j])) * (load(in.v[j]) * scale);
  }
  const float mean = block_sum(inner) / static_cast<float>(width);
  for (int64_t p = threadIdx.x; p < packs; p += Tile::threads) {
    const auto d = load_pack<N>(dy + row + p * N);
    const auto in = load_pack<N>(x + row + p * N);
    const auto weight = load_pack<N>(w + p * N);
    Pack<T, N> residual{};
    if (dsum) residual = load_pack<N>(dsum + row + p * N);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float g = load(d.v[j]) * (1.0f + load(weight.v[j]));
      const float gradient = scale * (g - load(in.v[j]) * scale * mean);
      out.v[j] = store<T>(dsum ? load(residual.v[j]) + gradient : gradient);
    }
    store_pack(dx + row + p * N, out);
  }
}

void forward(Stream& stream, const char* op, Tensor sum_TD, Tensor y_TD, Tensor rstd_T, CTensor x_TD,
             CTensor delta_TD, CTensor w_D, float eps) {
  const int64_t tokens = x_TD.dim(0);
  const int64_t width = x_TD.dim(1);
  if (x_TD.count() == 0) return;
  by_storage(x_TD.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned = aligned16(sum_TD.data, y_TD.data, x_TD.data, delta_TD.data, w_D.data);
    by_pack<full_pack<T>>(width % full_pack<T> == 0 && aligned, [&](auto n) {
      launch(stream, {op, x_TD}, norm_forward<T, n()>, static_cast<unsigned>(tokens), Tile::threads, 0,
             pointer<T>(sum_TD), pointer<T>(y_TD), pointer<float>(rstd_T), pointer<T>(x_TD),
             pointer<T>(delta_TD), pointer<T>(w_D), width, eps);
    });
  });
}

template <class T>
void weight_gradient(Stream& stream, const char* op, Tensor dw_D, CTensor dy_TD, CTensor x_TD,
                     CTensor rstd_T) {
  const int64_t tokens = x_TD.dim(0);
  const int64_t width = x_TD.dim(1);
  const int64_t blocks = scratch::cuda_blocks(tokens, scratch::norm_block, scratch::cuda_partials);
  const int64_t per_block = (tokens + blocks - 1) / blocks;
  auto* partial = reinterpret_cast<float*>(
      stream.scratch(scratch::rmsnorm_backward(Target::cuda, x_TD.dtype, tokens, width)));
  by_pack<full_pack<T>>(width % full_pack<T> == 0 && aligned16(dy_TD.data, x_TD.data), [&](auto n) {
    const dim3 grid(blocks_for(width, Tile::column_threads * n()), static_cast<unsigned>(blocks));
    launch(stream, {op, x_TD}, weight_partials<T, n()>, grid, Tile::column_threads, 0, partial,
           pointer<T>(dy_TD), pointer<T>(x_TD), pointer<float>(rstd_T), tokens, width, per_block);
  });
  launch(stream, {op, x_TD}, add_partials, blocks_for(width, Tile::threads), Tile::threads, 0,
         pointer<float>(dw_D), partial, blocks, width);
}

void backward(Stream& stream, const char* op, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor dsum_TD,
              CTensor x_TD, CTensor w_D, CTensor rstd_T) {
  const int64_t width = x_TD.dim(1);
  if (x_TD.count() == 0) return;
  by_storage(x_TD.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (!dw_D.empty()) weight_gradient<T>(stream, op, dw_D, dy_TD, x_TD, rstd_T);
    if (dx_TD.empty()) return;
    const bool aligned = aligned16(dx_TD.data, dy_TD.data, dsum_TD.data, x_TD.data, w_D.data);
    by_pack<full_pack<T>>(width % full_pack<T> == 0 && aligned, [&](auto n) {
      launch(stream, {op, x_TD}, norm_backward<T, n()>, static_cast<unsigned>(x_TD.dim(0)), Tile::threads, 0,
             pointer<T>(dx_TD), pointer<T>(dy_TD), pointer<T>(dsum_TD), pointer<T>(x_TD), pointer<T>(w_D),
             pointer<float>(rstd_T), width);
    });
  });
}

}  // namespace

void rmsnorm_forward(Stream& stream, Tensor y_TD, Tensor rstd_T, CTensor x_TD, CTensor w_D, float eps) {
  forward(stream, "rmsnorm_forward", {}, y_TD, rstd_T, x_TD, {}, w_D, eps);
}

void rmsnorm_backward(Stream& stream, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor x_TD, CTensor w_D,
                      CTensor rstd_T) {
  backward(stream, "rmsnorm_backward", dx_TD, dw_D, dy_TD, {}, x_TD, w_D, rstd_T);
}

void add_rmsnorm_forward(Stream& stream, Tensor sum_TD, Tensor y_TD, Tensor rstd_T, CTensor x_TD,
                         CTensor delta_TD, CTensor w_D, float eps) {
  forward(stream, "add_rmsnorm_forward", sum_TD, y_TD, rstd_T, x_TD, delta_TD, w_D, eps);
}

void add_rmsnorm_backward(Stream& stream, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor dsum_TD,
                          CTensor sum_TD, CTensor w_D, CTensor rstd_T) {
  backward(stream, "add_rmsnorm_backward", dx_TD, dw_D, dy_TD, dsum_TD, sum_TD, w_D, rstd_T);
}

}  // namespace deltatune::cuda
