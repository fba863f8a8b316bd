// SwiGLU, fill, fill_normal, cast and add: one pass over the elements, arithmetic in compute type, one
// rounding.
#include <algorithm>

#include "base/thread_pool.h"
#include "cpu/cpu_ops.h"
#include "cpu/vector.h"

namespace deltatune::cpu {
namespace {

constexpr int64_t grain = 16384;

template <class T>
void swiglu_forward_as(Tensor y_TF, CTensor gate_up_T2F) {
  using C = compute_t<T>;
  const int64_t width = y_TF.dim(1);
  parallel_for(y_TF.dim(0), std::max<int64_t>(1, grain / std::max<int64_t>(width, 1)),
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t t = begin; t < end; ++t) {
                   const T* gate = gate_up_T2F.as<T>() + t * 2 * width;
                   const T* up = gate + width;
                   T* y = y_TF.as<T>() + t * width;
                   for (int64_t j = 0; j < width; ++j) {
                     const C g = widen(gate[j]);
                     y[j] = narrow<T>(g * sigmoid(g) * widen(up[j]));
                   }
                 }
               });
}

/// With s = sigmoid(gate): dup = dy gate s, dgate = dy up s (1 + gate (1 - s)).
template <class T>
void swiglu_backward_as(Tensor dgate_up_T2F, CTensor dy_TF, CTensor gate_up_T2F) {
  using C = compute_t<T>;
  const int64_t width = dy_TF.dim(1);
  parallel_for(dy_TF.dim(0), std::max<int64_t>(1, grain / std::max<int64_t>(width, 1)),
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t t = begin; t < end; ++t) {
                   const T* gate = gate_up_T2F.as<T>() + t * 2 * width;
                   T* dgate = dgate_up_T2F.as<T>() + t * 2 * width;
                   const T* dy = dy_TF.as<T>() + t * width;
                   for (int64_t j = 0; j < width; ++j) {
                     const C g = widen(gate[j]);
                     const C u = widen(gate[width + j]);
                     const C d = widen(dy[j]);
                     const C s = sigmoid(g);
                     dgate[j] = narrow<T>(d * u * s * (C{1} + g * (C{1} - s)));
                     dgate[width + j] = narrow<T>(d * g * s);
                   }
                 }
               });
}

template <class T>
void fill_as(Tensor y, T value) {
  T* out = reinterpret_cast<T*>(y.data);
  parallel_for(y.count(), grain,
               [&](int64_t begin, int64_t end, int) { std::fill(out + begin, out + end, value); });
}

template <class T>
void fill_normal_as(Tensor y, double deviation, const NormalStream& which) {
  using C = compute_t<T>;
  auto* out = y.as<T>();
  parallel_for(y.count(), grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const double value = normal_value(which.seed, which.stream, which.first + static_cast<uint64_t>(i));
      out[i] = narrow<T>(static_cast<C>(deviation * value));
    }
  });
}

template <class T, class S>
void add_as(Tensor y, CTensor x) {
  using C = compute_t<T>;
  auto* out = y.as<T>();
  const auto* in = x.as<S>();
  parallel_for(y.count(), grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) out[i] = narrow<T>(widen(out[i]) + static_cast<C>(widen(in[i])));
  });
}

}  // namespace

void swiglu_forward(Stream&, Tensor y_TF, CTensor gate_up_T2F) {
  by_float(y_TF.dtype, [&](auto zero) { swiglu_forward_as<decltype(zero)>(y_TF, gate_up_T2F); });
}

void swiglu_backward(Stream&, Tensor dgate_up_T2F, CTensor dy_TF, CTensor gate_up_T2F) {
  by_float(dy_TF.dtype,
           [&](auto zero) { swiglu_backward_as<decltype(zero)>(dgate_up_T2F, dy_TF, gate_up_T2F); });
}

void fill(Stream&, Tensor y, double value) {
  switch (y.dtype) {
    case DType::f32:
      return fill_as(y, static_cast<float>(value));
    case DType::bf16:
      return fill_as(y, narrow<bf16>(static_cast<float>(value)));
    case DType::f16:
      return fill_as(y, narrow<f16>(static_cast<float>(value)));
    case DType::f64:
      return fill_as(y, value);
    case DType::i32:
      return fill_as(y, static_cast<int32_t>(value));
    case DType::i64:
      return fill_as(y, static_cast<int64_t>(value));
    case DType::u8:
      return fill_as(y, static_cast<uint8_t>(value));
  }
}

void fill_normal(Stream&, Tensor y, double deviation, NormalStream which) {
  by_float(y.dtype, [&](auto zero) { fill_normal_as<decltype(zero)>(y, deviation, which); });
}

void cast(Stream&, Tensor y, CTensor x) {
  const size_t to = size_of(y.dtype);
  const size_t from = size_of(x.dtype);
  parallel_for(y.count(), grain, [&](int64_t begin, int64_t end, int) {
    const auto first = static_cast<size_t>(begin);
    if (y.dtype == DType::bf16 && x.dtype == DType::f32) {
      store_row(y.as<bf16>() + begin, x.as<float>() + begin, end - begin);
    } else if (y.dtype == DType::f32 && x.dtype == DType::bf16) {
      load_row(y.as<float>() + begin, x.as<bf16>() + begin, end - begin);
    } else {
      convert(y.data + first * to, y.dtype, x.data + first * from, x.dtype, end - begin);
    }
  });
}

void add(Stream&, Tensor y, CTensor x) {
  by_float(y.dtype, [&](auto y_zero) {
    by_float(x.dtype, [&](auto x_zero) { add_as<decltype(y_zero), decltype(x_zero)>(y, x); });
  });
}

}  // namespace deltatune::cpu
