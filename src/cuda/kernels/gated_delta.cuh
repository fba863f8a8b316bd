// What the plain kernels of gated_delta share: the call, and a block that holds 32 columns of the state S
// [dk, dv] of one value head in registers and walks tokens.
//
// 256 threads: warp w holds columns 4 w .. 4 w + 3 of the slice, lane l the rows of group l % 8 of column l /
// 8: register m is row (m / 4 * 8 + l % 8) * 4 + m % 4, so that a row of k is read as float4 without bank
// conflicts and sums over rows are three shuffles. Rows and columns beyond dk and dv are zero throughout.
#pragma once

#include <cmath>
#include <string>

#include "cuda/kernels/sums.cuh"
#include "ops/kernels.h"

namespace deltatune::cuda::gdn {

struct Walk {
  static constexpr int threads = 256;
  static constexpr int columns = 32;  ///< of S per block
  static constexpr int groups = 8;    ///< lanes that share a column
  static constexpr int tokens = 32;   ///< staged in shared memory at a time
  static constexpr int64_t max_rows = 256;
};

/// The inputs of forward and backward. An output that is not wanted is null.
template <class T>
struct Call {
  const T *q, *k, *v, *d_o, *states;
  const float *g, *beta;
  const int32_t* chunks;
  int64_t num_chunks;  ///< entries of the table, used or not
  int64_t key_heads, value_heads, key_dim, value_dim;
  float scale;

  __device__ int64_t document(int64_t c) const { return chunks[4 * c]; }
  __device__ int64_t first_token(int64_t c) const { return chunks[4 * c + 1]; }
  /// 0: not in use.
  __device__ int length(int64_t c) const { return chunks[4 * c + 2]; }
  __device__ int number(int64_t c) const { return chunks[4 * c + 3]; }
  /// True if chunk c + 1 exists and continues the document of c.
  __device__ bool continues(int64_t c) const {
    return c + 1 < num_chunks && length(c + 1) > 0 && document(c + 1) == document(c);
  }
  __device__ int64_t key_row(int64_t t, int64_t h) const {
    return (t * key_heads + h / (value_heads / key_heads)) * key_dim;
  }
  __device__ int64_t value_row(int64_t t, int64_t h) const { return (t * value_heads + h) * value_dim; }
  __device__ int64_t state(int64_t c, int64_t h) const { return (c * value_heads + h) * key_dim * value_dim; }
};

/// Staged rows of up to Walk::tokens tokens; k and q [tokens][8 Rows], the others [tokens][columns].
template <int Rows>
struct Stage {
  static constexpr int padded = Walk::groups * Rows;
  static constexpr int floats = Walk::tokens * (2 * padded + 2 * Walk::columns + 2);
  float *k, *q, *v, *out, *alpha, *beta;

  __device__ explicit Stage(float* memory) {
    k = memory;
    q = k + Walk::tokens * padded;
    v = q + Walk::tokens * padded;
    out = v + Walk::tokens * Walk::columns;
    alpha = out + Walk::tokens * Walk::columns;
    beta = alpha + Walk::tokens;
  }
};

/// This thread's place in the slice that starts at `column0`.
struct Place {
  int group;   ///< of rows
  int column;  ///< inside the slice
  int64_t column0;

  __device__ explicit Place(int64_t slice)
      : group(static_cast<int>(threadIdx.x) % Walk::groups),
        column(static_cast<int>(threadIdx.x) / Walk::groups),
        column0(slice * Walk::columns) {}
  __device__ int64_t row(int m) const { return (m / 4 * Walk::groups + group) * 4 + m % 4; }
};

/// s <- columns of a [dk, dv] matrix; null: zero.
template <class T, int Rows>
__device__ inline void load_state(float (&s)[Rows], const T* from, const Place& place, int64_t dk,
                                  int64_t dv) {
  const int64_t column = place.column0 + place.column;
#pragma unroll
  for (int m = 0; m < Rows; ++m) {
    const int64_t row = place.row(m);
    s[m] = from && row < dk && column < dv ? load(from[row * dv + column]) : 0.0f;
  }
}
template <class T, int Rows>
__device__ inline void store_state(T* to, const float (&s)[Rows], const Place& place, int64_t dk,
                                   int64_t dv) {
  const int64_t column = place.column0 + place.column;
#pragma unroll
  for (int m = 0; m < Rows; ++m) {
    const int64_t row = place.row(m);
    if (row < dk && column < dv) to[row * dv + column] = store<T>(s[m]);
  }
}

/// to[i][j] = from[i * stride + j] for i < n, j < width, and 0 for width <= j < padded.
template <class T>
__device__ inline void stage_rows(float* to, int padded, const T* from, int64_t stride, int n,
                                  int64_t width) {
  for (int i = static_cast<int>(threadIdx.x); i < n * padded; i += Walk::threads) {
    const int j = i % padded;
    to[i] = j < width ? load(from[i / padded * stride + j]) : 0.0f;
  }
}

/// e^g and beta of n tokens.
template <class T>
__device__ inline void stage_gates(float* alpha, float* beta, const Call<T>& call, int64_t t0, int n,
                                   int64_t h) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= n) return;
  alpha[i] = expf(call.g[(t0 + i) * call.value_heads + h]);
  beta[i] = call.beta[(t0 + i) * call.value_heads + h];
}

/// Row of k or q at this thread's registers.
template <int Rows>
__device__ inline void read_row(float (&to)[Rows], const float* row, const Place& place) {
#pragma unroll
  for (int m = 0; m < Rows; m += 4) {
    const float4 x = *reinterpret_cast<const float4*>(row + place.row(m));
    to[m] = x.x;
    to[m + 1] = x.y;
    to[m + 2] = x.z;
    to[m + 3] = x.w;
  }
}

/// S = alpha S; returns e = v - S^T k.
template <int Rows>
__device__ inline float decay_and_miss(float (&s)[Rows], const float (&k)[Rows], float alpha, float v) {
  float read = 0;
#pragma unroll
  for (int m = 0; m < Rows; ++m) {
    s[m] *= alpha;
    read += s[m] * k[m];
  }
  return v - lanes_sum<Walk::groups>(read);
}

/// Calls f.operator()<Rows>() for the fewest registers that hold key_dim rows.
template <class F>
void by_rows(int64_t key_dim, F&& f) {
  if (key_dim <= 32) return f.template operator()<4>();
  if (key_dim <= 64) return f.template operator()<8>();
  if (key_dim <= 128) return f.template operator()<16>();
  if (key_dim <= Walk::max_rows) return f.template operator()<32>();
  throw Error(ErrorKind::internal, "no CUDA kernel for key heads of " + std::to_string(key_dim),
              "gated_delta", "please report it with the command line");
}

template <class T>
Call<T> make_call(CTensor q_THK, CTensor k_THK, CTensor v_THV, CTensor g_TH, CTensor beta_TH,
                  const Segments& segments, const GdnShape& shape) {
  return {pointer<T>(q_THK),
          pointer<T>(k_THK),
          pointer<T>(v_THV),
          nullptr,
          nullptr,
          pointer<float>(g_TH),
          pointer<float>(beta_TH),
          pointer<int32_t>(segments.chunks),
          segments.chunks.dim(0),
          shape.key_heads,
          shape.value_heads,
          shape.key_dim,
          shape.value_dim,
          1.0f / std::sqrt(static_cast<float>(shape.key_dim))};
}

inline unsigned slices_of(const GdnShape& shape) {
  return blocks_for(shape.value_dim, Walk::columns);
}

}  // namespace deltatune::cuda::gdn
