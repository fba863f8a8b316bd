// A short row (a head) held by one warp: lane l has the elements (32 r + l) N .. + N for r < R. N is 1 or
// what is loaded at once; elements past the row's end are 0 and are not written.
#pragma once

#include "cuda/pack.cuh"
#include "cuda/reduce.cuh"

namespace deltatune::cuda {

/// A lane's elements in fp32.
template <int N, int R>
using Lane = float[R][N];

/// First element of part r.
template <int N>
__device__ inline int lane_element(int r, int lane) {
  return (r * warp_size + lane) * N;
}

/// A lane's elements as they are stored.
template <class T, int N, int R>
struct Stored {
  Pack<T, N> pack[R];

  __device__ void read(const T* row, int lane, int dim) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int j = lane_element<N>(r, lane);
      pack[r] = {};
      if (j < dim) pack[r] = load_pack<N>(row + j);
    }
  }
  __device__ float operator()(int r, int i) const {
    return load(pack[r].v[i]);
  }
};

template <int N, int R, class T>
__device__ inline void write_row(T* row, int lane, int dim, const Lane<N, R>& value) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int j = lane_element<N>(r, lane);
    if (j >= dim) continue;
    Pack<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = store<T>(value[r][i]);
    store_pack(row + j, out);
  }
}

/// Calls f(N, R) for rows of up to 256 elements: `wide` elements at once where `whole`, one otherwise.
template <int wide, class F>
void by_lanes(int64_t dim, bool whole, F&& f) {
  using std::integral_constant;
  constexpr int max_dim = 256;
  if (!whole) return f(integral_constant<int, 1>{}, integral_constant<int, max_dim / warp_size>{});
  if (dim <= wide * warp_size) return f(integral_constant<int, wide>{}, integral_constant<int, 1>{});
  if constexpr (wide * warp_size < max_dim) {
    return f(integral_constant<int, wide>{}, integral_constant<int, max_dim / warp_size / wide>{});
  }
}

}  // namespace deltatune::cuda
