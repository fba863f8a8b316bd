// matmul by 32 x 32 tiles in shared memory, fp32 multiply-add in order of k: any shape, f32 or bf16 operands.
// Right and slow: what cuBLASLt refuses, and what it is compared with. No tensor cores.
#include "cuda/launch.cuh"
#include "cuda/matmul.h"

namespace deltatune::cuda {
namespace {

struct Tile {
  static constexpr int size = 32;                      ///< rows, columns and depth
  static constexpr int threads_y = 8;                  ///< of 32 threads each
  static constexpr int per_thread = size / threads_y;  ///< results, one below the other
};

/// Elements of an operand: (outer, depth) lies at outer * stride + depth, or depth * stride + outer.
template <class T, bool depth_inner>
struct Operand {
  const T* data;
  int64_t stride;

  /// One tile into shared memory as tile[depth][outer], zeros outside; neighbouring threads read neighbouring
  /// addresses.
  __device__ void load_tile(float (*tile)[Tile::size + 1], int64_t outer0, int64_t outers, int64_t k0,
                            int64_t depth) const {
    const int x = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < Tile::per_thread; ++i) {
      const int y = static_cast<int>(threadIdx.y) + i * Tile::threads_y;
      const int64_t outer = outer0 + (depth_inner ? y : x);
      const int64_t k = k0 + (depth_inner ? x : y);
      const bool inside = outer < outers && k < depth;
      const float value = inside ? load(data[depth_inner ? outer * stride + k : k * stride + outer]) : 0.0f;
      tile[depth_inner ? x : y][depth_inner ? y : x] = value;
    }
  }
};

template <class T, class R, MatmulLayout layout>
__global__ __launch_bounds__(Tile::size* Tile::threads_y) void matmul_kernel(R* __restrict__ c,
                                                                             const T* __restrict__ a,
                                                                             const T* __restrict__ b,
                                                                             int64_t m, int64_t n, int64_t k,
                                                                             bool accumulate) {
  constexpr bool a_inner = layout != MatmulLayout::tn;
  constexpr bool b_inner = layout == MatmulLayout::nt;
  __shared__ float a_tile[Tile::size][Tile::size + 1];
  __shared__ float b_tile[Tile::size][Tile::size + 1];
  const Operand<T, a_inner> left{a, a_inner ? k : m};
  const Operand<T, b_inner> right{b, b_inner ? k : n};
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * Tile::size;
  const int64_t column0 = static_cast<int64_t>(blockIdx.x) * Tile::size;
  float sum[Tile::per_thread] = {};
  for (int64_t k0 = 0; k0 < k; k0 += Tile::size) {
    left.load_tile(a_tile, row0, m, k0, k);
    right.load_tile(b_tile, column0, n, k0, k);
    __syncthreads();
#pragma unroll 8
    for (int depth = 0; depth < Tile::size; ++depth) {
      const float of_b = b_tile[depth][threadIdx.x];
#pragma unroll
      for (int i = 0; i < Tile::per_thread; ++i)
        sum[i] += a_tile[depth][threadIdx.y + i * Tile::threads_y] * of_b;
    }
    __syncthreads();
  }
  const int64_t column = column0 + threadIdx.x;
  if (column >= n) return;
#pragma unroll
  for (int i = 0; i < Tile::per_thread; ++i) {
    const int64_t row = row0 + threadIdx.y + i * Tile::threads_y;
    if (row >= m) return;
    R& out = c[row * n + column];
    out = store<R>(accumulate ? load(out) + sum[i] : sum[i]);
  }
}

template <class T, class R>
void run(Stream& stream, Tensor c, CTensor a, CTensor b, MatmulSpec spec) {
  const int64_t m = c.dim(0);
  const int64_t n = c.dim(1);
  const int64_t k = spec.layout == MatmulLayout::tn ? a.dim(0) : a.dim(1);
  const dim3 grid(blocks_for(n, Tile::size), blocks_for(m, Tile::size));
  const auto queue = [&](auto kernel) {
    launch(stream, {"matmul_plain", Shape{m, n, k}}, kernel, grid, dim3(Tile::size, Tile::threads_y), 0,
           pointer<R>(c), pointer<T>(a), pointer<T>(b), m, n, k, spec.accumulate);
  };
  switch (spec.layout) {
    case MatmulLayout::nt:
      return queue(matmul_kernel<T, R, MatmulLayout::nt>);
    case MatmulLayout::nn:
      return queue(matmul_kernel<T, R, MatmulLayout::nn>);
    case MatmulLayout::tn:
      return queue(matmul_kernel<T, R, MatmulLayout::tn>);
  }
}

}  // namespace

void matmul_plain(Stream& stream, Tensor c, CTensor a, CTensor b, MatmulSpec spec) {
  if (c.count() == 0) return;
  by_storage(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (c.dtype == DType::f32) return run<T, float>(stream, c, a, b, spec);
    run<T, T>(stream, c, a, b, spec);
  });
}

}  // namespace deltatune::cuda
