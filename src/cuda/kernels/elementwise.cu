// SwiGLU, fill, fill_normal, cast and add: one pass over the elements, arithmetic in fp32, one rounding.
// Compiled without contraction to FMA.
#include <algorithm>
#include <bit>

#include "cuda/cuda_ops.h"
#include "cuda/math.cuh"
#include "cuda/pack.cuh"

namespace deltatune::cuda {
namespace {

struct Tile {
  static constexpr int threads = 256;
  static constexpr int packs = 4;  ///< per thread
};

/// Calls body(j) for this thread's packs of row blockIdx.x: blockIdx.y-th part of `packs` packs.
template <class F>
__device__ inline void for_row(int64_t packs, F&& body) {
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * Tile::threads * Tile::packs;
#pragma unroll
  for (int i = 0; i < Tile::packs; ++i) {
    const int64_t j = begin + i * Tile::threads + threadIdx.x;
    if (j < packs) body(j);
  }
}

template <class T, int N>
__global__ __launch_bounds__(Tile::threads) void swiglu_forward_kernel(T* __restrict__ y,
                                                                       const T* __restrict__ gate_up,
                                                                       int64_t width) {
  const int64_t t = blockIdx.x;
  const T* gate = gate_up + t * 2 * width;
  for_row(width / N, [&](int64_t pack) {
    const auto g = load_pack<N>(gate + pack * N);
    const auto u = load_pack<N>(gate + width + pack * N);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float x = load(g.v[j]);
      out.v[j] = store<T>(x * sigmoid_for<T>(x) * load(u.v[j]));
    }
    store_pack(y + t * width + pack * N, out);
  });
}

/// dgate_up may be gate_up's own memory (no restrict): a thread reads its elements before it writes them.
template <class T, int N>
__global__ __launch_bounds__(Tile::threads) void swiglu_backward_kernel(T* dgate_up, const T* __restrict__ dy,
                                                                        const T* gate_up, int64_t width) {
  const int64_t t = blockIdx.x;
  const T* gate = gate_up + t * 2 * width;
  T* dgate = dgate_up + t * 2 * width;
  for_row(width / N, [&](int64_t pack) {
    const auto gates = load_pack<N>(gate + pack * N);
    const auto ups = load_pack<N>(gate + width + pack * N);
    const auto ds = load_pack<N>(dy + t * width + pack * N);
    Pack<T, N> to_gate;
    Pack<T, N> to_up;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float g = load(gates.v[j]);
      const float u = load(ups.v[j]);
      const float d = load(ds.v[j]);
      const float s = sigmoid_for<T>(g);
      to_gate.v[j] = store<T>(d * u * s * (1.0f + g * (1.0f - s)));
      to_up.v[j] = store<T>(d * g * s);
    }
    store_pack(dgate + pack * N, to_gate);
    store_pack(dgate + width + pack * N, to_up);
  });
}

/// Calls body(first, std::integral_constant<int, n>) for all of [0, count): packs of N, then single elements.
template <int N, class F>
__device__ inline void for_all(int64_t count, F&& body) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * Tile::threads;
  const int64_t me = static_cast<int64_t>(blockIdx.x) * Tile::threads + threadIdx.x;
  for (int64_t pack = me; pack < count / N; pack += step) body(pack * N, std::integral_constant<int, N>{});
  if (N > 1 && me < count % N) body(count / N * N + me, std::integral_constant<int, 1>{});
}

template <class T, int N>
__global__ __launch_bounds__(Tile::threads) void fill_kernel(T* __restrict__ y, int64_t count, T value) {
  for_all<N>(count, [&](int64_t i, auto size) {
    constexpr int n = decltype(size)::value;
    Pack<T, n> out;
#pragma unroll
    for (int j = 0; j < n; ++j) out.v[j] = value;
    store_pack(y + i, out);
  });
}

template <class T>
__global__ __launch_bounds__(Tile::threads) void fill_normal_kernel(T* __restrict__ y, int64_t count,
                                                                    double deviation, NormalStream which) {
  for_all<1>(count, [&](int64_t i, auto) {
    const double x =
        deviation * normal_value(which.seed, which.stream, which.first + static_cast<uint64_t>(i));
    if constexpr (std::is_same_v<T, double>) {
      y[i] = x;
    } else {
      y[i] = store<T>(static_cast<float>(x));
    }
  });
}

/// Through float, as the host's conversion does, unless both sides are f64.
template <class To, class From>
__device__ inline To converted(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<From, __half>) {
    return converted<To>(__half2float(x));
  } else if constexpr (std::is_same_v<From, device_bf16>) {
    return converted<To>(__bfloat162float(x));
  } else if constexpr (std::is_same_v<To, __half>) {
    return __float2half_rn(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, device_bf16>) {
    return __float2bfloat16_rn(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

template <class To, class From, int N>
__global__ __launch_bounds__(Tile::threads) void cast_kernel(To* __restrict__ y, const From* __restrict__ x,
                                                             int64_t count) {
  for_all<N>(count, [&](int64_t i, auto size) {
    constexpr int n = decltype(size)::value;
    const auto in = load_pack<n>(x + i);
    Pack<To, n> out;
#pragma unroll
    for (int j = 0; j < n; ++j) out.v[j] = converted<To>(in.v[j]);
    store_pack(y + i, out);
  });
}

template <class To, class From, int N>
__global__ __launch_bounds__(Tile::threads) void add_kernel(To* __restrict__ y, const From* __restrict__ x,
                                                            int64_t count) {
  using C = std::conditional_t<std::is_same_v<To, double>, double, float>;
  for_all<N>(count, [&](int64_t i, auto size) {
    constexpr int n = decltype(size)::value;
    const auto in = load_pack<n>(x + i);
    auto out = load_pack<n>(static_cast<const To*>(y + i));
#pragma unroll
    for (int j = 0; j < n; ++j) out.v[j] = converted<To>(converted<C>(out.v[j]) + converted<C>(in.v[j]));
    store_pack(y + i, out);
  });
}

/// Elements whose wider side is 16 bytes: a wider pack would leave gaps between the lanes' accesses.
template <class A, class B>
inline constexpr int common_pack = full_pack<A> < full_pack<B> ? full_pack<A> : full_pack<B>;

/// Blocks of a grid-stride loop over n packs.
unsigned stride_blocks(int64_t packs) {
  return std::min(blocks_for(packs, Tile::threads), 8192u);
}

/// Grid of for_row.
dim3 row_grid(int64_t rows, int64_t packs) {
  return {static_cast<unsigned>(rows), blocks_for(packs, Tile::threads * Tile::packs)};
}

/// f32, bf16 and f64.
template <class F>
void by_wide(DType dtype, F&& f) {
  if (dtype == DType::f64) return f(double{});
  by_storage(dtype, f);
}
/// f32, bf16, f64 and f16.
template <class F>
void by_any_float(DType dtype, F&& f) {
  if (dtype == DType::f16) return f(__half{});
  by_wide(dtype, f);
}

template <class T>
void fill_as(Stream& stream, Tensor y, T value) {
  by_pack<full_pack<T>>(aligned16(y.data), [&](auto pack) {
    launch(stream, {"fill", y}, fill_kernel<T, pack()>, stride_blocks(y.count() / pack()), Tile::threads, 0,
           pointer<T>(y), y.count(), value);
  });
}

}  // namespace

void swiglu_forward(Stream& stream, Tensor y_TF, CTensor gate_up_T2F) {
  const int64_t rows = y_TF.dim(0);
  const int64_t width = y_TF.dim(1);
  if (rows == 0 || width == 0) return;
  by_storage(y_TF.dtype, [&](auto zero) {
    using T = decltype(zero);
    by_pack<full_pack<T>>(width % full_pack<T> == 0 && aligned16(y_TF.data, gate_up_T2F.data), [&](auto n) {
      launch(stream, {"swiglu_forward", y_TF}, swiglu_forward_kernel<T, n()>, row_grid(rows, width / n()),
             Tile::threads, 0, pointer<T>(y_TF), pointer<T>(gate_up_T2F), width);
    });
  });
}

void swiglu_backward(Stream& stream, Tensor dgate_up_T2F, CTensor dy_TF, CTensor gate_up_T2F) {
  const int64_t rows = dy_TF.dim(0);
  const int64_t width = dy_TF.dim(1);
  if (rows == 0 || width == 0) return;
  by_storage(dy_TF.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned = aligned16(dgate_up_T2F.data, dy_TF.data, gate_up_T2F.data);
    by_pack<full_pack<T>>(width % full_pack<T> == 0 && aligned, [&](auto n) {
      launch(stream, {"swiglu_backward", dy_TF}, swiglu_backward_kernel<T, n()>, row_grid(rows, width / n()),
             Tile::threads, 0, pointer<T>(dgate_up_T2F), pointer<T>(dy_TF), pointer<T>(gate_up_T2F), width);
    });
  });
}

void fill(Stream& stream, Tensor y, double value) {
  if (y.count() == 0) return;
  switch (y.dtype) {
    case DType::f32:
      return fill_as(stream, y, std::bit_cast<uint32_t>(static_cast<float>(value)));
    case DType::bf16:
      return fill_as(stream, y, narrow<bf16>(static_cast<float>(value)).bits);
    case DType::f16:
      return fill_as(stream, y, narrow<f16>(static_cast<float>(value)).bits);
    case DType::f64:
      return fill_as(stream, y, std::bit_cast<uint64_t>(value));
    case DType::i32:
      return fill_as(stream, y, static_cast<uint32_t>(static_cast<int32_t>(value)));
    case DType::i64:
      return fill_as(stream, y, static_cast<uint64_t>(static_cast<int64_t>(value)));
    case DType::u8:
      return fill_as(stream, y, static_cast<uint8_t>(value));
  }
}

void fill_normal(Stream& stream, Tensor y, double deviation, NormalStream which) {
  if (y.count() == 0) return;
  by_wide(y.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, {"fill_normal", y}, fill_normal_kernel<T>, stride_blocks(y.count()), Tile::threads, 0,
           pointer<T>(y), y.count(), deviation, which);
  });
}

void cast(Stream& stream, Tensor y, CTensor x) {
  if (y.count() == 0) return;
  by_any_float(y.dtype, [&](auto y_zero) {
    by_any_float(x.dtype, [&](auto x_zero) {
      by_pack<common_pack<decltype(y_zero), decltype(x_zero)>>(aligned16(y.data, x.data), [&](auto n) {
        using To = decltype(y_zero);
        using From = decltype(x_zero);
        launch(stream, {"cast", y}, cast_kernel<To, From, n()>, stride_blocks(y.count() / n()), Tile::threads,
               0, pointer<To>(y), pointer<From>(x), y.count());
      });
    });
  });
}

void add(Stream& stream, Tensor y, CTensor x) {
  if (y.count() == 0) return;
  by_wide(y.dtype, [&](auto y_zero) {
    by_wide(x.dtype, [&](auto x_zero) {
      by_pack<common_pack<decltype(y_zero), decltype(x_zero)>>(aligned16(y.data, x.data), [&](auto n) {
        using To = decltype(y_zero);
        using From = decltype(x_zero);
        launch(stream, {"add", y}, add_kernel<To, From, n()>, stride_blocks(y.count() / n()), Tile::threads,
               0, pointer<To>(y), pointer<From>(x), y.count());
      });
    });
  });
}

}  // namespace deltatune::cuda
