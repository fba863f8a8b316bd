// Zero-centred RMSNorm, forward, alone and behind a residual addition: y = x rstd (1 + w), rstd = (mean x^2 +
// eps)^-1/2.
#include "cuda/kernels/norm_rows.cuh"

namespace deltatune::cuda {
namespace {

using namespace norm;

/// One row per block. sum may be the memory of x or delta (no restrict). delta null: sum is not written and x
/// is normalised.
template <class T, int N, int R>
__global__ __launch_bounds__(Tile::threads, min_blocks<N, R>) void norm_forward(T* sum, T* y, float* rstd,
                                                                                const T* x, const T* delta,
                                                                                const T* __restrict__ w,
                                                                                int width, float eps) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  RowPart<T, N, R> in, change, weight;
  in.read(x + row, width);
  if (delta) change.read(delta + row, width);
  weight.read(w, width);
  float squares = 0;
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (delta) in.pack[r].v[i] = store<T>(in(r, i) + change(r, i));
      squares += in(r, i) * in(r, i);
    }
  }
  if (delta) in.write(sum + row, width);
  const float scale = 1.0f / sqrtf(block_sum(squares) / static_cast<float>(width) + eps);
  if (rstd && threadIdx.x == 0) rstd[blockIdx.x] = scale;
  if (!y) return;
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int i = 0; i < N; ++i) in.pack[r].v[i] = store<T>(in(r, i) * scale * (1.0f + weight(r, i)));
  }
  in.write(y + row, width);
}

void forward(Stream& stream, const char* op, Tensor sum_TD, Tensor y_TD, Tensor rstd_T, CTensor x_TD,
             CTensor delta_TD, CTensor w_D, float eps) {
  const int64_t width = x_TD.dim(1);
  if (x_TD.count() == 0) return;
  by_storage(x_TD.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned = aligned16(sum_TD.data, y_TD.data, x_TD.data, delta_TD.data, w_D.data);
    by_width<T>(width, aligned, [&](auto n, auto r, dim3 threads) {
      launch(stream, {op, x_TD}, norm_forward<T, n(), r()>, static_cast<unsigned>(x_TD.dim(0)), threads, 0,
             pointer<T>(sum_TD), pointer<T>(y_TD), pointer<float>(rstd_T), pointer<T>(x_TD),
             pointer<T>(delta_TD), pointer<T>(w_D), static_cast<int>(width), eps);
    });
  });
}

}  // namespace

void rmsnorm_forward(Stream& stream, Tensor y_TD, Tensor rstd_T, CTensor x_TD, CTensor w_D, float eps) {
  forward(stream, "rmsnorm_forward", {}, y_TD, rstd_T, x_TD, {}, w_D, eps);
}

void add_rmsnorm_forward(Stream& stream, Tensor sum_TD, Tensor y_TD, Tensor rstd_T, CTensor x_TD,
                         CTensor delta_TD, CTensor w_D, float eps) {
  forward(stream, "add_rmsnorm_forward", sum_TD, y_TD, rstd_T, x_TD, delta_TD, w_D, eps);
}

}  // namespace deltatune::cuda
