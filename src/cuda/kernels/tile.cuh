// A block of 256 threads multiplies two matrices: 64 rows x 16 NC columns of the result in registers, 4 x NC
// per thread, operands in panels of depth 16 in shared memory, plain fp32 FMA.
//
// Thread x holds rows x / 16 * 4 + (0..3) and columns c / 4 * 64 + x % 16 * 4 + c % 4 for c < NC, so that the
// 16 threads of half a warp hold one group of rows: sums over a row are shuffles.
#pragma once

#include "cuda/kernels/sums.cuh"

namespace deltatune::cuda {

struct Tile {
  static constexpr int threads = 256;
  static constexpr int rows = 64;
  static constexpr int depth = 16;
  static constexpr int lanes = 16;  ///< threads that share a group of rows
  static constexpr int stride =
      rows + 4;  ///< of an operand's panel [depth][rows], and of [..][rows] in general
  /// Of the other operand's panel [depth][16 NC].
  template <int NC>
  static constexpr int wide_stride = 16 * NC + 4;
  template <int NC>
  static constexpr int panel_floats = depth*(stride + wide_stride<NC>);

  static __device__ int row() { return static_cast<int>(threadIdx.x) / lanes * 4; }
  static __device__ int column(int c) {
    return c / 4 * 64 + static_cast<int>(threadIdx.x) % lanes * 4 + c % 4;
  }
};

/// acc += a^T b with a: [depth][Tile::stride], b: [depth][wide_stride<NC>] in shared memory.
template <int NC>
__device__ inline void multiply(float (&acc)[4][NC], const float* a, const float* b, int depth) {
  a += Tile::row();
  b += Tile::column(0);
#pragma unroll 4
  for (int k = 0; k < depth; ++k) {
    const float4 left = *reinterpret_cast<const float4*>(a + k * Tile::stride);
#pragma unroll
    for (int c = 0; c < NC; c += 4) {
      const float4 right = *reinterpret_cast<const float4*>(b + k * Tile::wide_stride<NC> + c * 16);
      const float l[4] = {left.x, left.y, left.z, left.w};
      const float r[4] = {right.x, right.y, right.z, right.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[i][c + j] += l[i] * r[j];
      }
    }
  }
}

/// In which direction the elements of an operand lie next to each other in memory.
enum class Along { depth, rows };

/// panel[k][row] = element(row, k).
template <int Rows, Along along, class F>
__device__ inline void load_panel(float* panel, int stride, F&& element) {
  for (int i = static_cast<int>(threadIdx.x); i < Rows * Tile::depth; i += Tile::threads) {
    const int k = along == Along::depth ? i % Tile::depth : i / Rows;
    const int row = along == Along::depth ? i / Tile::depth : i % Rows;
    panel[k * stride + row] = element(row, k);
  }
}

/// acc += A B over `depth`; a(row, k) and b(column, k) give the elements, asked for k < depth only. The block
/// is in step before and after; `panels` has panel_floats<NC>.
template <Along along_a, Along along_b, int NC, class A, class B>
__device__ inline void multiply(float (&acc)[4][NC], int depth, float* panels, A&& a, B&& b) {
  float* const wide = panels + Tile::depth * Tile::stride;
#pragma unroll 1
  for (int k0 = 0; k0 < depth; k0 += Tile::depth) {
    load_panel<Tile::rows, along_a>(panels, Tile::stride,
                                    [&](int row, int k) { return k0 + k < depth ? a(row, k0 + k) : 0.0f; });
    load_panel<16 * NC, along_b>(wide, Tile::wide_stride<NC>, [&](int column, int k) {
      return k0 + k < depth ? b(column, k0 + k) : 0.0f;
    });
    __syncthreads();
    multiply(acc, panels, wide, Tile::depth);
    __syncthreads();
  }
}

/// The same with A already in shared memory as a[k][row], rows of Tile::stride, zero up to a depth of 64.
template <Along along_b, int NC, class B>
__device__ inline void multiply_shared(float (&acc)[4][NC], int depth, float* panels, const float* a, B&& b) {
  float* const wide = panels + Tile::depth * Tile::stride;
#pragma unroll 1
  for (int k0 = 0; k0 < depth; k0 += Tile::depth) {
    load_panel<16 * NC, along_b>(wide, Tile::wide_stride<NC>, [&](int column, int k) {
      return k0 + k < depth ? b(column, k0 + k) : 0.0f;
    });
    __syncthreads();
    multiply(acc, a + k0 * Tile::stride, wide, Tile::depth);
    __syncthreads();
  }
}

}  // namespace deltatune::cuda
