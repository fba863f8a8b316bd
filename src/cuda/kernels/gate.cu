// sigmoid_gate: y = o sigmoid(gate), formulas in ops/attention.h. A thread per pack of elements; y may be o's
// memory and do dy's, since a thread reads its elements before it writes.
#include "cuda/cuda_ops.h"
#include "cuda/math.cuh"
#include "cuda/pack.cuh"

namespace deltatune::cuda {
namespace {

struct Tile {
  static constexpr int threads = 256;
  static constexpr int packs = 3;  ///< per thread: 6144 elements of a token are 768 packs of 8
};

/// Where the packs of one token lie: T rows of q (H heads of K), their gates at (2 h + 1) K in rows of proj.
struct Place {
  int packs;  ///< of N elements in a token
  int head_packs;
  int64_t columns;

  explicit Place(const AttentionShape& shape, int n)
      : packs(static_cast<int>(shape.query_heads * shape.head_dim / n)),
        head_packs(static_cast<int>(shape.head_dim / n)),
        columns(shape.columns()) {}
};

/// Calls body(element of the [T, H, K] tensor, element of proj) for this thread's packs.
template <int N, class F>
__device__ inline void for_packs(const Place& place, F&& body) {
  const int64_t t = blockIdx.x;
#pragma unroll
  for (int a = 0; a < Tile::packs; ++a) {
    const int p =
        (static_cast<int>(blockIdx.y) * Tile::packs + a) * Tile::threads + static_cast<int>(threadIdx.x);
    if (p >= place.packs) return;
    const int gate = p + (p / place.head_packs + 1) * place.head_packs;
    body((t * place.packs + p) * N, t * place.columns + static_cast<int64_t>(gate) * N);
  }
}

template <class T, int N>
__global__ void __launch_bounds__(Tile::threads)
    forward_kernel(T* y, const T* o, const T* __restrict__ proj, Place place) {
  for_packs<N>(place, [&](int64_t i, int64_t gate) {
    const auto x = load_pack<N>(o + i);
    const auto g = load_pack<N>(proj + gate);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.v[j] = store<T>(load(x.v[j]) * sigmoid_for<T>(load(g.v[j])));
    store_pack(y + i, out);
  });
}

template <class T, int N>
__global__ void __launch_bounds__(Tile::threads)
    backward_kernel(T* d_o, T* __restrict__ dproj, const T* dy, const T* __restrict__ o,
                    const T* __restrict__ proj, Place place) {
  for_packs<N>(place, [&](int64_t i, int64_t gate) {
    const auto d = load_pack<N>(dy + i);
    const auto x = load_pack<N>(o + i);
    const auto g = load_pack<N>(proj + gate);
    Pack<T, N> to_o, to_gate;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float s = sigmoid_for<T>(load(g.v[j])), gradient = load(d.v[j]);
      to_o.v[j] = store<T>(gradient * s);
      to_gate.v[j] = store<T>(gradient * load(x.v[j]) * s * (1.0f - s));
    }
    store_pack(d_o + i, to_o);
    store_pack(dproj + gate, to_gate);
  });
}

/// Calls f(N, place, grid).
template <class T, class F>
void by_place(const AttentionShape& shape, int64_t tokens, bool aligned, F&& f) {
  by_pack<full_pack<T>>(aligned && shape.head_dim % full_pack<T> == 0, [&](auto n) {
    const Place place(shape, n());
    f(n, place, dim3(static_cast<unsigned>(tokens), blocks_for(place.packs, Tile::threads * Tile::packs)));
  });
}

}  // namespace

void sigmoid_gate_forward(Stream& stream, Tensor y_THK, CTensor o_THK, CTensor proj_TN,
                          AttentionShape shape) {
  if (o_THK.count() == 0) return;
  by_storage(o_THK.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned = aligned16(y_THK.data, o_THK.data, proj_TN.data);
    by_place<T>(shape, o_THK.dim(0), aligned, [&](auto n, const Place& place, dim3 grid) {
      launch(stream, {"sigmoid_gate_forward", o_THK}, forward_kernel<T, n()>, grid, dim3(Tile::threads), 0,
             pointer<T>(y_THK), pointer<T>(o_THK), pointer<T>(proj_TN), place);
    });
  });
}

void sigmoid_gate_backward(Stream& stream, Tensor do_THK, Tensor dproj_TN, CTensor dy_THK, CTensor o_THK,
                           CTensor proj_TN, AttentionShape shape) {
  if (o_THK.count() == 0) return;
  by_storage(o_THK.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned = aligned16(do_THK.data, dproj_TN.data, dy_THK.data, o_THK.data, proj_TN.data);
    by_place<T>(shape, o_THK.dim(0), aligned, [&](auto n, const Place& place, dim3 grid) {
      launch(stream, {"sigmoid_gate_backward", o_THK}, backward_kernel<T, n()>, grid, dim3(Tile::threads), 0,
             pointer<T>(do_THK), pointer<T>(dproj_TN), pointer<T>(dy_THK), pointer<T>(o_THK),
             pointer<T>(proj_TN), place);
    });
  });
}

}  // namespace deltatune::cuda
