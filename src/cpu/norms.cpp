// Zero-centred RMSNorm, alone and behind a residual addition.
//
// Rows are independent. The gradient of the weight is summed per column, 64 tokens at a time, in the order of
// tokens: no partial sums per thread. It is computed before dx, so dx may be dy's or dsum's own memory.
#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "cpu/cpu_ops.h"
#include "cpu/vector.h"
#include "ops/scratch.h"

namespace deltatune::cpu {
namespace {

constexpr int64_t row_grain = 8;
constexpr int64_t column_block = 64;

/// y = x rstd (1 + w) for one row; returns rstd.
template <class T>
compute_t<T> norm_row(T* y, const T* x, const T* w, int64_t width, compute_t<T> eps) {
  using C = compute_t<T>;
  const C mean = dot(x, x, width) / static_cast<C>(width);
  const C rstd = C{1} / std::sqrt(mean + eps);
  if (y) {
    for (int64_t j = 0; j < width; ++j) y[j] = narrow<T>(widen(x[j]) * rstd * (C{1} + widen(w[j])));
  }
  return rstd;
}

template <class T>
void forward(Tensor sum_TD, Tensor y_TD, Tensor rstd_T, CTensor x_TD, CTensor delta_TD, CTensor w_D,
             float eps) {
  using C = compute_t<T>;
  const int64_t width = x_TD.dim(1);
  const auto* w = w_D.as<T>();
  parallel_for(x_TD.dim(0), row_grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const T* x = x_TD.as<T>() + t * width;
      if (!delta_TD.empty()) {
        const T* delta = delta_TD.as<T>() + t * width;
        T* sum = sum_TD.as<T>() + t * width;
        for (int64_t j = 0; j < width; ++j) sum[j] = narrow<T>(widen(x[j]) + widen(delta[j]));
        x = sum;
      }
      const C rstd = norm_row(y_TD.empty() ? nullptr : y_TD.as<T>() + t * width, x, w, width, C{eps});
      if (!rstd_T.empty()) rstd_T.as<C>()[t] = rstd;
    }
  });
}

/// dw += sum over tokens of dy x rstd.
template <class T>
void weight_gradient(Tensor dw_D, CTensor dy_TD, CTensor x_TD, CTensor rstd_T) {
  using C = compute_t<T>;
  const int64_t tokens = x_TD.dim(0);
  const int64_t width = x_TD.dim(1);
  const auto* rstd = rstd_T.as<C>();
  parallel_for((width + column_block - 1) / column_block, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t column = block * column_block;
      const int64_t columns = std::min(column_block, width - column);
      C total[column_block] = {};
      for (int64_t t0 = 0; t0 < tokens; t0 += scratch::norm_block) {
        C sum[column_block] = {};
        for (int64_t t = t0; t < std::min(tokens, t0 + scratch::norm_block); ++t) {
          const T* x = x_TD.as<T>() + t * width + column;
          const T* dy = dy_TD.as<T>() + t * width + column;
          for (int64_t j = 0; j < columns; ++j) sum[j] += widen(dy[j]) * (widen(x[j]) * rstd[t]);
        }
        for (int64_t j = 0; j < columns; ++j) total[j] += sum[j];
      }
      C* dw = dw_D.as<C>() + column;
      for (int64_t j = 0; j < columns; ++j) dw[j] += total[j];
    }
  });
}

/// With u = x rstd and g = dy (1 + w): dx = rstd (g - u mean(g u)), plus dsum if there is one.
template <class T>
void backward(Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor dsum_TD, CTensor x_TD, CTensor w_D,
              CTensor rstd_T) {
  using C = compute_t<T>;
  if (!dw_D.empty()) weight_gradient<T>(dw_D, dy_TD, x_TD, rstd_T);
  if (dx_TD.empty()) return;
  const int64_t width = x_TD.dim(1);
  const auto* w = w_D.as<T>();
  parallel_for(x_TD.dim(0), row_grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const T* x = x_TD.as<T>() + t * width;
      const T* dy = dy_TD.as<T>() + t * width;
      T* dx = dx_TD.as<T>() + t * width;
      const C rstd = rstd_T.as<C>()[t];
      const C mean =
          sum_of<C>(width,
                    [&](int64_t j) { return widen(dy[j]) * (C{1} + widen(w[j])) * (widen(x[j]) * rstd); }) /
          static_cast<C>(width);
      const T* dsum = dsum_TD.empty() ? nullptr : dsum_TD.as<T>() + t * width;
      for (int64_t j = 0; j < width; ++j) {
        const C g = widen(dy[j]) * (C{1} + widen(w[j]));
        const C gradient = rstd * (g - widen(x[j]) * rstd * mean);
        dx[j] = narrow<T>(dsum ? widen(dsum[j]) + gradient : gradient);
      }
    }
  });
}

}  // namespace

void rmsnorm_forward(Stream&, Tensor y_TD, Tensor rstd_T, CTensor x_TD, CTensor w_D, float eps) {
  by_float(x_TD.dtype, [&](auto zero) { forward<decltype(zero)>({}, y_TD, rstd_T, x_TD, {}, w_D, eps); });
}

void rmsnorm_backward(Stream&, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor x_TD, CTensor w_D,
                      CTensor rstd_T) {
  by_float(x_TD.dtype,
           [&](auto zero) { backward<decltype(zero)>(dx_TD, dw_D, dy_TD, {}, x_TD, w_D, rstd_T); });
}

void add_rmsnorm_forward(Stream&, Tensor sum_TD, Tensor y_TD, Tensor rstd_T, CTensor x_TD, CTensor delta_TD,
                         CTensor w_D, float eps) {
  by_float(x_TD.dtype,
           [&](auto zero) { forward<decltype(zero)>(sum_TD, y_TD, rstd_T, x_TD, delta_TD, w_D, eps); });
}

void add_rmsnorm_backward(Stream&, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor dsum_TD, CTensor sum_TD,
                          CTensor w_D, CTensor rstd_T) {
  by_float(sum_TD.dtype,
           [&](auto zero) { backward<decltype(zero)>(dx_TD, dw_D, dy_TD, dsum_TD, sum_TD, w_D, rstd_T); });
}

}  // namespace deltatune::cpu
