// gdn_prologue, plain: short convolution + SiLU, l2norm of q and k, gates; formulas in ops/delta_net.h. Heads
// up to 256 wide; everything between proj and the stored q, k, v stays in fp32.
//
// Forward: a warp per (token, head of channels), a thread per (token, gate). Backward: a block per (64
// tokens, head of channels) keeps dc of its tokens and of the W - 1 behind them in shared memory, from which
// dx and the block's sum for dconv follow; sums over tokens go to scratch per block, then over the blocks in
// order.
#include <string>

#include "cuda/cuda_ops.h"
#include "cuda/kernels/sums.cuh"
#include "ops/delta_net_cuda_scratch.h"

namespace deltatune::cuda {
namespace {

struct Prologue {
  static constexpr int threads = 256;
  static constexpr int warps = threads / warp_size;
  static constexpr int max_dim = 256;
  static constexpr int registers = max_dim / warp_size;  ///< channels of a head per lane
  static constexpr int tokens = GdnCudaTile::prologue_tokens;
};

/// PyTorch's softplus: the identity above its threshold of 20, and the derivative that goes with it.
__device__ float softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}
__device__ float softplus_derivative(float x) {
  return x > 20.0f ? 1.0f : sigmoid(x);
}

/// What forward and backward share.
template <class T>
struct Call {
  const T *proj, *conv;
  const float *A_log, *dt_bias;
  const int32_t* positions;
  int64_t tokens, columns, key_heads, value_heads, key_dim, value_dim;
  int width;

  __device__ int64_t keys() const { return key_heads * key_dim; }
  __device__ int64_t values() const { return value_heads * value_dim; }
  __device__ int64_t b_column() const { return 2 * keys() + 2 * values(); }
  __device__ int64_t a_column() const { return b_column() + value_heads; }
  /// Channel c of token t before SiLU; taps before the document start are 0.
  __device__ float convolve(int64_t t, int64_t c) const {
    float sum = 0;
    for (int back = min(positions[t], width - 1); back >= 0; --back) {
      sum += load(conv[c * width + width - 1 - back]) * load(proj[(t - back) * columns + c]);
    }
    return sum;
  }
};

/// A head of channels: q heads, k heads, value heads, in the order of the columns.
enum class Kind { q, k, v };
struct Head {
  Kind kind;
  int64_t index;   ///< among the heads of its kind
  int64_t column;  ///< first channel
  int dim;

  template <class T>
  __device__ Head(const Call<T>& call, int64_t head) {
    kind = head < call.key_heads ? Kind::q : head < 2 * call.key_heads ? Kind::k : Kind::v;
    index = kind == Kind::q ? head : kind == Kind::k ? head - call.key_heads : head - 2 * call.key_heads;
    column = kind == Kind::v ? 2 * call.keys() + index * call.value_dim : head * call.key_dim;
    dim = static_cast<int>(kind == Kind::v ? call.value_dim : call.key_dim);
  }
};

/// Outputs of forward's channels; null: not wanted.
template <class T>
struct Outputs {
  T *q, *k, *v;
  float *q_rstd, *k_rstd;
};

/// Grid: (token, head of channels) pairs, a warp each.
template <class T>
__global__ void __launch_bounds__(Prologue::threads) channels_kernel(Call<T> call, Outputs<T> out) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * Prologue::threads + threadIdx.x) / warp_size;
  const int64_t heads = 2 * call.key_heads + call.value_heads;
  if (i >= call.tokens * heads) return;
  const int64_t t = i / heads;
  const Head head(call, i % heads);
  float u[Prologue::registers];
  float squares = 0;
#pragma unroll
  for (int m = 0; m < Prologue::registers; ++m) {
    const int j = lane + m * warp_size;
    u[m] = 0;
    if (j >= head.dim) continue;
    const float c = call.convolve(t, head.column + j);
    u[m] = c * sigmoid(c);
    squares += u[m] * u[m];
  }
  float rstd = 1;
  int64_t row = t * call.values() + head.index * call.value_dim;
  if (head.kind != Kind::v) {
    rstd = 1.0f / sqrtf(lanes_sum(squares) + static_cast<float>(gdn_l2norm_eps));
    row = t * call.keys() + head.index * call.key_dim;
    float* const rstd_out = head.kind == Kind::q ? out.q_rstd : out.k_rstd;
    if (rstd_out && lane == 0) rstd_out[t * call.key_heads + head.index] = rstd;
  }
  T* const to = head.kind == Kind::q ? out.q : head.kind == Kind::k ? out.k : out.v;
  if (!to) return;
#pragma unroll
  for (int m = 0; m < Prologue::registers; ++m) {
    const int j = lane + m * warp_size;
    if (j < head.dim) to[row + j] = store<T>(u[m] * rstd);
  }
}

/// Grid: (token, value head) pairs, a thread each.
template <class T>
__global__ void __launch_bounds__(Prologue::threads)
    gates_kernel(Call<T> call, float* __restrict__ g, float* __restrict__ beta) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * Prologue::threads + threadIdx.x;
  if (i >= call.tokens * call.value_heads) return;
  const int64_t t = i / call.value_heads, h = i % call.value_heads;
  const T* const row = call.proj + t * call.columns;
  if (beta) beta[i] = sigmoid(load(row[call.b_column() + h]));
  if (g) g[i] = -expf(call.A_log[h]) * softplus(load(row[call.a_column() + h]) + call.dt_bias[h]);
}

/// What backward reads besides; q, k and their rstd are the outputs of forward.
template <class T>
struct Gradients {
  const T *dq, *dk, *dv, *q, *k;
  const float *q_rstd, *k_rstd, *dg, *dbeta;
};

/// dc of one token of one head into dc[dim]; by one warp.
template <class T>
__device__ void preactivation_gradient(float* dc, const Call<T>& call, const Gradients<T>& x,
                                       const Head& head, int64_t t) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const bool normed = head.kind != Kind::v;
  const int64_t row =
      normed ? t * call.keys() + head.index * call.key_dim : t * call.values() + head.index * call.value_dim;
  const T* const dy = (head.kind == Kind::q ? x.dq : head.kind == Kind::k ? x.dk : x.dv) + row;
  float du[Prologue::registers];
  float along = 0;
#pragma unroll
  for (int m = 0; m < Prologue::registers; ++m) {
    const int j = lane + m * warp_size;
    du[m] = j < head.dim ? load(dy[j]) : 0.0f;
  }
  if (normed) {
    const T* const y = (head.kind == Kind::q ? x.q : x.k) + row;
    const float rstd = (head.kind == Kind::q ? x.q_rstd : x.k_rstd)[t * call.key_heads + head.index];
#pragma unroll
    for (int m = 0; m < Prologue::registers; ++m) {
      const int j = lane + m * warp_size;
      if (j < head.dim) along += load(y[j]) * du[m];
    }
    along = lanes_sum(along);
#pragma unroll
    for (int m = 0; m < Prologue::registers; ++m) {
      const int j = lane + m * warp_size;
      if (j < head.dim) du[m] = rstd * (du[m] - load(y[j]) * along);
    }
  }
#pragma unroll
  for (int m = 0; m < Prologue::registers; ++m) {
    const int j = lane + m * warp_size;
    if (j >= head.dim) continue;
    const float c = call.convolve(t, head.column + j), sig = sigmoid(c);
    dc[j] = du[m] * (sig * (1.0f + c * (1.0f - sig)));
  }
}

/// Grid: blocks of 64 tokens, heads of channels. partial: [blocks, sums], of which dconv [channels, W] is the
/// first part.
template <class T>
__global__ void __launch_bounds__(Prologue::threads)
    channels_backward_kernel(Call<T> call, Gradients<T> x, T* __restrict__ dproj, float* __restrict__ partial,
                             int64_t sums) {
  const Head head(call, blockIdx.y);
  const int dim = head.dim, W = call.width;
  float* const dc = dynamic_shared<float>();  // [tokens + W - 1, dim]
  const int64_t t0 = static_cast<int64_t>(blockIdx.x) * Prologue::tokens;
  const int n = static_cast<int>(min(static_cast<int64_t>(Prologue::tokens), call.tokens - t0));
  const int behind = static_cast<int>(min(static_cast<int64_t>(n + W - 1), call.tokens - t0));
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread / warp_size; i < behind; i += Prologue::warps) {
    preactivation_gradient(dc + i * dim, call, x, head, t0 + i);
  }
  __syncthreads();
  // dx_t from dc of t and of the tokens after it whose position is not smaller than their distance from t.
  for (int i = thread; dproj && i < n * dim; i += Prologue::threads) {
    const int at = i / dim, j = i % dim;
    const T* const w = call.conv + (head.column + j) * W;
    float sum = 0;
    for (int s = 0; s < W && at + s < behind && call.positions[t0 + at + s] >= s; ++s) {
      sum += load(w[W - 1 - s]) * dc[(at + s) * dim + j];
    }
    dproj[(t0 + at) * call.columns + head.column + j] = store<T>(sum);
  }
  for (int i = thread; i < dim * W; i += Prologue::threads) {
    const int back = W - 1 - i / dim, j = i % dim;
    float sum = 0;
    for (int at = 0; at < n; ++at) {
      if (call.positions[t0 + at] < back) continue;
      sum += dc[at * dim + j] * load(call.proj[(t0 + at - back) * call.columns + head.column + j]);
    }
    partial[blockIdx.x * sums + (head.column + j) * W + i / dim] = sum;
  }
}

/// Grid: blocks of 64 tokens, groups of value heads; a thread per value head. Sums for dA_log and ddt_bias
/// lie behind those of dconv.
template <class T>
__global__ void __launch_bounds__(warp_size)
    gates_backward_kernel(Call<T> call, Gradients<T> x, T* __restrict__ dproj, float* __restrict__ partial,
                          int64_t sums) {
  const int64_t h = static_cast<int64_t>(blockIdx.y) * warp_size + threadIdx.x, Hv = call.value_heads;
  if (h >= Hv) return;
  const int64_t t0 = static_cast<int64_t>(blockIdx.x) * Prologue::tokens;
  const float rate = -expf(call.A_log[h]);
  float A_log_sum = 0, bias_sum = 0;
  for (int64_t t = t0; t < min(t0 + Prologue::tokens, call.tokens); ++t) {
    const T* const row = call.proj + t * call.columns;
    const float a = load(row[call.a_column() + h]) + call.dt_bias[h];
    const float beta = sigmoid(load(row[call.b_column() + h]));
    const float dg = x.dg[t * Hv + h];
    const float da = dg * rate * softplus_derivative(a);
    A_log_sum += dg * (rate * softplus(a));
    bias_sum += da;
    if (!dproj) continue;
    dproj[t * call.columns + call.a_column() + h] = store<T>(da);
    dproj[t * call.columns + call.b_column() + h] = store<T>(x.dbeta[t * Hv + h] * beta * (1.0f - beta));
  }
  float* const out = partial + blockIdx.x * sums + sums - 2 * Hv;
  out[h] = A_log_sum;
  out[Hv + h] = bias_sum;
}

template <class T>
Call<T> make_call(CTensor proj_TN, CTensor conv_CW, CTensor A_log_H, CTensor dt_bias_H,
                  const Segments& segments, const GdnShape& shape) {
  const int64_t dim = shape.key_dim > shape.value_dim ? shape.key_dim : shape.value_dim;
  if (dim > Prologue::max_dim) {
    throw Error(ErrorKind::internal, "no CUDA kernel for heads of " + std::to_string(dim), "gdn_prologue",
                "please report it with the command line");
  }
  return {pointer<T>(proj_TN),
          pointer<T>(conv_CW),
          pointer<float>(A_log_H),
          pointer<float>(dt_bias_H),
          pointer<int32_t>(segments.positions_T),
          proj_TN.dim(0),
          shape.columns(),
          shape.key_heads,
          shape.value_heads,
          shape.key_dim,
          shape.value_dim,
          static_cast<int>(shape.conv_width)};
}

}  // namespace

void gdn_prologue_forward(Stream& stream, Tensor q_THK, Tensor k_THK, Tensor v_THV, Tensor g_TH,
                          Tensor beta_TH, Tensor q_rstd_TH, Tensor k_rstd_TH, CTensor proj_TN,
                          CTensor conv_CW, CTensor A_log_H, CTensor dt_bias_H, const Segments& segments,
                          GdnShape shape) {
  by_storage(proj_TN.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto call = make_call<T>(proj_TN, conv_CW, A_log_H, dt_bias_H, segments, shape);
    const Outputs<T> out{wanted<T>(q_THK), wanted<T>(k_THK), wanted<T>(v_THV), wanted<float>(q_rstd_TH),
                         wanted<float>(k_rstd_TH)};
    const int64_t heads = 2 * shape.key_heads + shape.value_heads;
    launch(stream, {"gdn_prologue_forward: channels", proj_TN}, channels_kernel<T>,
           dim3(blocks_for(call.tokens * heads, Prologue::warps)), dim3(Prologue::threads), 0, call, out);
    launch(stream, {"gdn_prologue_forward: gates", proj_TN}, gates_kernel<T>,
           dim3(blocks_for(call.tokens * shape.value_heads, Prologue::threads)), dim3(Prologue::threads), 0,
           call, wanted<float>(g_TH), wanted<float>(beta_TH));
  });
}

void gdn_prologue_backward(Stream& stream, Tensor dproj_TN, Tensor dconv_CW, Tensor dA_log_H,
                           Tensor ddt_bias_H, CTensor dq_THK, CTensor dk_THK, CTensor dv_THV, CTensor dg_TH,
                           CTensor dbeta_TH, CTensor proj_TN, CTensor conv_CW, CTensor A_log_H,
                           CTensor dt_bias_H, CTensor q_THK, CTensor k_THK, CTensor q_rstd_TH,
                           CTensor k_rstd_TH, const Segments& segments, GdnShape shape) {
  by_storage(proj_TN.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto call = make_call<T>(proj_TN, conv_CW, A_log_H, dt_bias_H, segments, shape);
    const Gradients<T> x{pointer<T>(dq_THK),        pointer<T>(dk_THK),    pointer<T>(dv_THV),
                         pointer<T>(q_THK),         pointer<T>(k_THK),     pointer<float>(q_rstd_TH),
                         pointer<float>(k_rstd_TH), pointer<float>(dg_TH), pointer<float>(dbeta_TH)};
    const unsigned blocks = blocks_for(call.tokens, Prologue::tokens);
    const int64_t heads = 2 * shape.key_heads + shape.value_heads, sums = gdn_prologue_cuda_sums(shape);
    const int64_t dim = shape.key_dim > shape.value_dim ? shape.key_dim : shape.value_dim;
    float* const partial =
        reinterpret_cast<float*>(stream.scratch(gdn_prologue_backward_cuda_scratch(shape, call.tokens)));
    launch_shared(stream, {"gdn_prologue_backward: channels", proj_TN}, channels_backward_kernel<T>,
                  dim3(blocks, static_cast<unsigned>(heads)), dim3(Prologue::threads),
                  static_cast<size_t>((Prologue::tokens + shape.conv_width - 1) * dim) * sizeof(float), call,
                  x, wanted<T>(dproj_TN), partial, sums);
    launch(stream, {"gdn_prologue_backward: gates", proj_TN}, gates_backward_kernel<T>,
           dim3(blocks, blocks_for(shape.value_heads, warp_size)), dim3(warp_size), 0, call, x,
           wanted<T>(dproj_TN), partial, sums);
    const auto add = [&](Tensor to, int64_t first) {
      if (to.empty()) return;
      add_partials(stream, {"gdn_prologue_backward: sums", proj_TN}, pointer<float>(to), partial + first,
                   to.count(), sums, blocks);
    };
    add(dconv_CW, 0);
    add(dA_log_H, sums - 2 * shape.value_heads);
    add(ddt_bias_H, sums - shape.value_heads);
  });
}

}  // namespace deltatune::cuda
