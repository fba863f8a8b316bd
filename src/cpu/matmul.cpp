// matmul: the result is cut into tiles of a fixed size, one gemm (f32) or one gemm per widened slice of K
// (bf16) each.
//
// bf16 operands are widened slice by slice into the thread's scratch slot and summed in fp32 over all of K;
// a bf16 result is rounded once, after an fp32 addition of the old value if it accumulates. The bits of a
// tile depend on the shape and on the rows and columns of this tile only. Few rows against a transposed
// matrix (decoding) are memory-bound: dot products straight from storage.
#include <algorithm>

#include "base/thread_pool.h"
#include "cpu/cpu_ops.h"
#include "cpu/gemm.h"
#include "ops/scratch.h"

namespace deltatune::cpu {
namespace {

using Tile = scratch::MatmulTile;

struct Sizes {
  int64_t m, n, k;
};

Sizes sizes_of(CTensor c, CTensor a, MatmulSpec spec) {
  return {c.dim(0), c.dim(1), spec.layout == MatmulLayout::tn ? a.dim(0) : a.dim(1)};
}

/// Calls body(m0, rows, n0, columns, worker) for the tiles of an m x n result.
template <class F>
void for_tiles(int64_t m, int64_t n, F&& body) {
  const int64_t across = (n + Tile::columns - 1) / Tile::columns;
  const int64_t down = (m + Tile::rows - 1) / Tile::rows;
  parallel_for(across * down, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t m0 = tile / across * Tile::rows;
      const int64_t n0 = tile % across * Tile::columns;
      body(m0, std::min(Tile::rows, m - m0), n0, std::min(Tile::columns, n - n0), worker);
    }
  });
}

/// First element of the operand's part that belongs to row (or column) `outer` and depth `k0`.
template <class T>
const T* part(const T* data, bool depth_is_inner, int64_t stride, int64_t outer, int64_t k0) {
  return depth_is_inner ? data + outer * stride + k0 : data + k0 * stride + outer;
}

/// f32 or f64 throughout, or (plain) any mix.
template <class T, class R, class Gemm>
void matmul_direct(Tensor c, CTensor a, CTensor b, MatmulSpec spec, Gemm&& multiply) {
  const Sizes s = sizes_of(c, a, spec);
  const bool a_inner = spec.layout != MatmulLayout::tn;
  const bool b_inner = spec.layout == MatmulLayout::nt;
  for_tiles(s.m, s.n, [&](int64_t m0, int64_t rows, int64_t n0, int64_t columns, int) {
    multiply(spec.layout, rows, columns, s.k, part(a.as<T>(), a_inner, a.dim(1), m0, 0), a.dim(1),
             part(b.as<T>(), b_inner, b.dim(1), n0, 0), b.dim(1), spec.accumulate, c.as<R>() + m0 * s.n + n0,
             s.n);
  });
}

template <class T, class R>
void matmul_plain(Tensor c, CTensor a, CTensor b, MatmulSpec spec) {
  matmul_direct<T, R>(c, a, b, spec, plain_gemm<T, R>);
}

/// bf16 operands; R is bf16 or float.
template <class R>
void matmul_widened(Stream& stream, Tensor c, CTensor a, CTensor b, MatmulSpec spec) {
  const Sizes s = sizes_of(c, a, spec);
  const bool a_inner = spec.layout != MatmulLayout::tn;
  const bool b_inner = spec.layout == MatmulLayout::nt;
  std::byte* slots = stream.scratch(scratch::matmul(Target::cpu, DType::bf16));
  for_tiles(s.m, s.n, [&](int64_t m0, int64_t rows, int64_t n0, int64_t columns, int worker) {
    auto* a_panel = reinterpret_cast<float*>(slots + static_cast<size_t>(worker) * scratch::matmul_slot());
    float* b_panel = a_panel + Tile::rows * Tile::depth;
    float* sums = b_panel + Tile::columns * Tile::depth;
    for (int64_t k0 = 0; k0 < s.k || k0 == 0; k0 += Tile::depth) {
      const int64_t depth = std::min(Tile::depth, s.k - k0);
      const auto a_part = panel_of(part(a.as<bf16>(), a_inner, a.dim(1), m0, k0), a_inner ? rows : depth,
                                   a_inner ? depth : rows, a.dim(1), a_panel);
      const auto b_part = panel_of(part(b.as<bf16>(), b_inner, b.dim(1), n0, k0), b_inner ? columns : depth,
                                   b_inner ? depth : columns, b.dim(1), b_panel);
      gemm(spec.layout, rows, columns, depth, a_part.data, a_part.stride, b_part.data, b_part.stride, k0 > 0,
           sums, columns);
    }
    for (int64_t i = 0; i < rows; ++i) {
      R* out = c.as<R>() + (m0 + i) * s.n + n0;
      const float* in = sums + i * columns;
      if (spec.accumulate) {
        for (int64_t j = 0; j < columns; ++j) out[j] = narrow<R>(widen(out[j]) + in[j]);
      } else {
        store_row(out, in, columns);
      }
    }
  });
}

/// At most this many rows go the way of dot products.
constexpr int64_t few_rows = 4;

}  // namespace

void matmul(Stream& stream, Tensor c, CTensor a, CTensor b, MatmulSpec spec) {
  const bool few = spec.layout == MatmulLayout::nt && c.dim(0) <= few_rows;
  if (a.dtype == DType::f64) {
    matmul_plain<double, double>(c, a, b, spec);
  } else if (a.dtype == DType::f32) {
    if (few) return matmul_plain<float, float>(c, a, b, spec);
    matmul_direct<float, float>(c, a, b, spec, [](auto... arguments) { gemm(arguments...); });
  } else if (c.dtype == DType::f32) {
    if (few) return matmul_plain<bf16, float>(c, a, b, spec);
    matmul_widened<float>(stream, c, a, b, spec);
  } else {
    if (few) return matmul_plain<bf16, bf16>(c, a, b, spec);
    matmul_widened<bf16>(stream, c, a, b, spec);
  }
}

}  // namespace deltatune::cpu
