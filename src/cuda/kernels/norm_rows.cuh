// What forward and backward of RMSNorm share: a block holds a row in registers, so every array is read once.
// Rows up to 10240 elements.
#pragma once

#include <string>

#include "cuda/cuda_ops.h"
#include "cuda/launch.cuh"
#include "cuda/pack.cuh"
#include "cuda/reduce.cuh"

namespace deltatune::cuda::norm {

struct Tile {
  static constexpr int threads = 320;  ///< at most: as many warps as the row fills, here 5120 elements by 16
  static constexpr int elements = 32;  ///< of a thread, at most
  static constexpr int in_pairs = 16;  ///< up to this many, two blocks share a multiprocessor
};
template <int N, int R>
inline constexpr int min_blocks = N* R <= Tile::in_pairs ? 2 : 1;

/// This thread's packs of a row: N elements from (r * threads + thread) N on, r < R.
template <int N>
__device__ inline int element(int r) {
  return (r * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * N;
}

template <class T, int N, int R>
struct RowPart {
  Pack<T, N> pack[R];

  __device__ void read(const T* row, int width) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      pack[r] = {};
      if (element<N>(r) < width) pack[r] = load_pack<N>(row + element<N>(r));
    }
  }
  __device__ void write(T* row, int width) const {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (element<N>(r) < width) store_pack(row + element<N>(r), pack[r]);
    }
  }
  __device__ float operator()(int r, int i) const {
    return load(pack[r].v[i]);
  }
};

/// Calls f(N, R, threads) with the fewest packs per thread that hold a row.
template <class T, class F>
void by_width(int64_t width, bool aligned, F&& f) {
  by_pack<full_pack<T>>(aligned && width % full_pack<T> == 0, [&](auto n) {
    const int64_t packs = width / n();
    const auto with = [&](auto r) {
      if constexpr (r() * n() <= Tile::elements) {
        const int64_t threads = (packs + r() * warp_size - 1) / (r() * warp_size) * warp_size;
        if (threads > Tile::threads) return false;
        f(n, r, dim3(static_cast<unsigned>(threads)));
        return true;
      }
      return false;
    };
    using std::integral_constant;
    if (with(integral_constant<int, 1>{}) || with(integral_constant<int, 2>{}) ||
        with(integral_constant<int, 4>{}) || with(integral_constant<int, 8>{}) ||
        with(integral_constant<int, Tile::elements>{}))
      return;
    throw Error(ErrorKind::internal, "no CUDA kernel for rows of " + std::to_string(width) + " elements",
                "rmsnorm", "please report it with the command line");
  });
}

}  // namespace deltatune::cuda::norm
