// What gdn_prologue's forward and backward share; formulas in ops/delta_net.h. Heads up to 256 wide,
// convolutions up to 4 wide; everything between proj and the stored q, k, v stays in fp32.
//
// A warp owns one head of channels over a run of tokens: lane l holds channels (32 r + l) N .. + N of the
// head for r < R, and walks the tokens in order with the inputs of the last three in registers, so proj is
// read once (and three rows more per run). A document's first token empties that window, which is what makes
// the taps stop at its start. Narrower convolutions have taps of 0.
#pragma once

#include <string>

#include "cuda/cuda_ops.h"
#include "cuda/kernels/sums.cuh"
#include "cuda/lanes.cuh"
#include "ops/delta_net_cuda_scratch.h"

namespace deltatune::cuda::prologue {

inline constexpr int max_dim = 256;
inline constexpr int max_taps = 4;

/// PyTorch's softplus: the identity above its threshold of 20, and the derivative that goes with it.
__device__ inline float softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}
__device__ inline float softplus_derivative(float x) {
  return x > 20.0f ? 1.0f : sigmoid(x);
}

template <class T>
struct Call {
  const T *proj, *conv;
  const float *A_log, *dt_bias;
  const int32_t* positions;
  int64_t columns;
  int tokens, key_heads, value_heads, key_dim, value_dim, width;

  __host__ __device__ int heads() const { return 2 * key_heads + value_heads; }
  __device__ int keys() const { return key_heads * key_dim; }
  __device__ int values() const { return value_heads * value_dim; }
  __device__ int b_column() const { return 2 * keys() + 2 * values(); }
  __device__ int a_column() const { return b_column() + value_heads; }
};

/// A head of channels: q heads, k heads, value heads, in the order of the columns.
enum class Kind { q, k, v };
struct Head {
  Kind kind;
  int index;   ///< among the heads of its kind
  int column;  ///< first channel
  int dim;
  int64_t row;  ///< elements of a token in the arrays of its kind

  template <class T>
  __device__ Head(const Call<T>& call, int head) {
    kind = head < call.key_heads ? Kind::q : head < 2 * call.key_heads ? Kind::k : Kind::v;
    index = kind == Kind::q ? head : kind == Kind::k ? head - call.key_heads : head - 2 * call.key_heads;
    column = kind == Kind::v ? 2 * call.keys() + index * call.value_dim : head * call.key_dim;
    dim = kind == Kind::v ? call.value_dim : call.key_dim;
    row = kind == Kind::v ? call.values() : call.keys();
  }
};

/// Filter taps of a lane's channels: tap[back] belongs to the input `back` tokens ago.
template <int N, int R>
struct Taps {
  float tap[max_taps][R][N];

  template <class T>
  __device__ Taps(const Call<T>& call, const Head& head, int lane) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int j = lane_element<N>(r, lane);
      const T* const w = call.conv + static_cast<int64_t>(head.column + j) * call.width;
      if (N > 1 && call.width == max_taps && j < head.dim) {
        const auto all = load_pack<N * max_taps>(w);
#pragma unroll
        for (int i = 0; i < N * max_taps; ++i)
          tap[max_taps - 1 - i % max_taps][r][i / max_taps] = load(all.v[i]);
        continue;
      }
#pragma unroll
      for (int i = 0; i < N; ++i) {
#pragma unroll
        for (int back = 0; back < max_taps; ++back) {
          const bool there = back < call.width && j < head.dim;
          tap[back][r][i] = there ? load(w[i * call.width + call.width - 1 - back]) : 0.0f;
        }
      }
    }
  }
};

/// The inputs of the three tokens before.
template <int N, int R>
struct Window {
  Lane<N, R> x1, x2, x3;

  /// Of the tokens before t, as far as they are in its document.
  template <class T>
  __device__ Window(const Call<T>& call, const Head& head, int t, int lane) {
    // All loads go out together: what is not in the document is dropped afterwards.
    Stored<T, N, R> in[3];
#pragma unroll
    for (int back = 1; back <= 3; ++back) {
      in[back - 1].read(call.proj + max(t - back, 0) * call.columns + head.column, lane, head.dim);
    }
    const int position = call.positions[t];
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        x1[r][i] = position >= 1 ? in[0](r, i) : 0.0f;
        x2[r][i] = position >= 2 ? in[1](r, i) : 0.0f;
        x3[r][i] = position >= 3 ? in[2](r, i) : 0.0f;
      }
    }
  }
  __device__ void clear() {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int i = 0; i < N; ++i) x1[r][i] = x2[r][i] = x3[r][i] = 0;
    }
  }
  /// The convolution of channel (r, i) whose present input is x.
  __device__ float convolve(const Taps<N, R>& taps, int r, int i, float x) const {
    return taps.tap[3][r][i] * x3[r][i] + taps.tap[2][r][i] * x2[r][i] + taps.tap[1][r][i] * x1[r][i] +
           taps.tap[0][r][i] * x;
  }
  __device__ void move(int r, int i, float x) {
    x3[r][i] = x2[r][i];
    x2[r][i] = x1[r][i];
    x1[r][i] = x;
  }
};

/// Bit i: token t + i is the first of its document. For 32 tokens, by the whole warp.
template <class T>
__device__ inline unsigned document_starts(const Call<T>& call, int t, int lane) {
  const int mine = t + lane;
  return __ballot_sync(full_warp, mine < call.tokens && call.positions[mine] == 0);
}

template <class T>
Call<T> make_call(CTensor proj_TN, CTensor conv_CW, CTensor A_log_H, CTensor dt_bias_H,
                  const Segments& segments, const GdnShape& shape) {
  const int64_t dim = shape.key_dim > shape.value_dim ? shape.key_dim : shape.value_dim;
  if (dim > max_dim || shape.conv_width > max_taps) {
    throw Error(ErrorKind::internal,
                "no CUDA kernel for heads of " + std::to_string(dim) + " and a convolution of " +
                    std::to_string(shape.conv_width),
                "gdn_prologue", "please report it with the command line");
  }
  return {pointer<T>(proj_TN),
          pointer<T>(conv_CW),
          pointer<float>(A_log_H),
          pointer<float>(dt_bias_H),
          pointer<int32_t>(segments.positions_T),
          shape.columns(),
          static_cast<int>(proj_TN.dim(0)),
          static_cast<int>(shape.key_heads),
          static_cast<int>(shape.value_heads),
          static_cast<int>(shape.key_dim),
          static_cast<int>(shape.value_dim),
          static_cast<int>(shape.conv_width)};
}

/// Calls f(N, R) for the lanes of a head: 4 channels at a time where all rows and heads allow it.
template <class F>
void by_head(const GdnShape& shape, bool aligned, F&& f) {
  const int64_t dim = shape.key_dim > shape.value_dim ? shape.key_dim : shape.value_dim;
  by_lanes<4>(dim, aligned && (shape.key_dim | shape.value_dim | shape.columns()) % 4 == 0, f);
}

}  // namespace deltatune::cuda::prologue
