// gated_rmsnorm: y = o rstd w silu(z) per value head, formulas in ops/delta_net.h. One chain in compute dtype
// with one rounding at the store: the normalised value is not rounded in between.
//
// Parallel over blocks of 64 tokens; dw is summed inside a block (tokens, then heads, in order), then over
// the blocks in order, whatever the number of threads.
#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "cpu/cpu_ops.h"
#include "cpu/vector.h"
#include "ops/delta_net_scratch.h"

namespace deltatune::cpu {
namespace {

constexpr int64_t block = GdnTile::tokens_in_sum;

template <class T>
void forward(Tensor y_THV, Tensor rstd_TH, CTensor o_THV, CTensor proj_TN, CTensor w_V, const GdnShape& shape,
             float eps) {
  using C = compute_t<T>;
  const int64_t tokens = proj_TN.dim(0), heads = shape.value_heads, dv = shape.value_dim;
  const T *o = o_THV.as<T>(), *proj = proj_TN.as<T>();
  const C* w = w_V.as<C>();
  T* const y = y_THV.empty() ? nullptr : y_THV.as<T>();
  C* const rstd_out = rstd_TH.empty() ? nullptr : rstd_TH.as<C>();
  parallel_for(tokens, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t th = begin * heads; th < end * heads; ++th) {
      const T* const o_row = o + th * dv;
      const T* const z_row = proj + th / heads * shape.columns() + shape.z_column() + th % heads * dv;
      const C mean = dot(o_row, o_row, dv) / static_cast<C>(dv);
      const C rstd = C(1) / std::sqrt(mean + static_cast<C>(eps));
      if (rstd_out) rstd_out[th] = rstd;
      for (int64_t j = 0; y && j < dv; ++j) {
        const C z = widen(z_row[j]);
        y[th * dv + j] = narrow<T>(widen(o_row[j]) * rstd * w[j] * (z * sigmoid(z)));
      }
    }
  });
}

/// One (token, head): writes do and dz (null: not wanted) and adds to dw_V.
template <class T, class C = compute_t<T>>
void backward_row(T* do_row, T* dz_row, C* dw_V, const T* dy_row, const T* o_row, const T* z_row,
                  const C* w_V, C rstd, int64_t dv) {
  const auto silu = [&](int64_t j) {
    const C z = widen(z_row[j]);
    return z * sigmoid(z);
  };
  const auto n = [&](int64_t j) { return widen(o_row[j]) * rstd; };
  for (int64_t j = 0; j < dv; ++j) dw_V[j] += widen(dy_row[j]) * n(j) * silu(j);
  for (int64_t j = 0; dz_row && j < dv; ++j) {
    const C z = widen(z_row[j]);
    const C sig = sigmoid(z);
    dz_row[j] = narrow<T>(widen(dy_row[j]) * n(j) * w_V[j] * (sig * (C(1) + z * (C(1) - sig))));
  }
  if (!do_row) return;
  const auto dn = [&](int64_t j) { return widen(dy_row[j]) * w_V[j] * silu(j); };
  const C mean = sum_of<C>(dv, [&](int64_t j) { return n(j) * dn(j); }) / static_cast<C>(dv);
  for (int64_t j = 0; j < dv; ++j) do_row[j] = narrow<T>(rstd * (dn(j) - n(j) * mean));
}

template <class T>
void backward(Stream& stream, Tensor do_THV, Tensor dproj_TN, Tensor dw_V, CTensor dy_THV, CTensor o_THV,
              CTensor proj_TN, CTensor w_V, CTensor rstd_TH, const GdnShape& shape) {
  using C = compute_t<T>;
  const int64_t tokens = proj_TN.dim(0), heads = shape.value_heads, dv = shape.value_dim;
  const T *dy = dy_THV.as<T>(), *o = o_THV.as<T>(), *proj = proj_TN.as<T>();
  const C *w = w_V.as<C>(), *rstd = rstd_TH.as<C>();
  T* const dout = do_THV.empty() ? nullptr : do_THV.as<T>();
  T* const dproj = dproj_TN.empty() ? nullptr : dproj_TN.as<T>();
  C* const partial_BV =
      reinterpret_cast<C*>(stream.scratch(gated_rmsnorm_backward_scratch(shape, dtype_of<C>, tokens)));
  const int64_t blocks = (tokens + block - 1) / block;
  parallel_for(blocks, 1, [&](int64_t begin, int64_t end, int) {
    std::fill(partial_BV + begin * dv, partial_BV + end * dv, C(0));
    for (int64_t t = begin * block; t < std::min(end * block, tokens); ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t row = (t * heads + h) * dv;
        const int64_t z = t * shape.columns() + shape.z_column() + h * dv;
        backward_row<T>(dout ? dout + row : nullptr, dproj ? dproj + z : nullptr, partial_BV + t / block * dv,
                        dy + row, o + row, proj + z, w, rstd[t * heads + h], dv);
      }
    }
  });
  if (dw_V.empty()) return;
  C* const dw = dw_V.as<C>();
  for (int64_t j = 0; j < dv; ++j) {
    C sum = 0;
    for (int64_t b = 0; b < blocks; ++b) sum += partial_BV[b * dv + j];
    dw[j] += sum;
  }
}

}  // namespace

void gated_rmsnorm_forward(Stream&, Tensor y_THV, Tensor rstd_TH, CTensor o_THV, CTensor proj_TN, CTensor w_V,
                           GdnShape shape, float eps) {
  by_float(proj_TN.dtype,
           [&](auto zero) { forward<decltype(zero)>(y_THV, rstd_TH, o_THV, proj_TN, w_V, shape, eps); });
}

void gated_rmsnorm_backward(Stream& stream, Tensor do_THV, Tensor dproj_TN, Tensor dw_V, CTensor dy_THV,
                            CTensor o_THV, CTensor proj_TN, CTensor w_V, CTensor rstd_TH, GdnShape shape) {
  by_float(proj_TN.dtype, [&](auto zero) {
    backward<decltype(zero)>(stream, do_THV, dproj_TN, dw_V, dy_THV, o_THV, proj_TN, w_V, rstd_TH, shape);
  });
}

}  // namespace deltatune::cpu
