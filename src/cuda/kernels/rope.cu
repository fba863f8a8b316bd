// qk_norm_rope: per-head RMSNorm and rotary embedding of the q and k columns of the fused projection;
// formulas in ops/attention.h. A block makes the angles of its tokens (8 forward, 16 backward) once; then a
// warp per head and turn, heads up to 256 wide.
//
// Cosines and sines are those of the fp32 angle (not the fast intrinsics), rounded to storage before use;
// norm and rotation are one expression in fp32 with one rounding at the store. A lane reads the other half of
// its pairs a second time, from the first-level cache. Gradients of the norm weights are summed over blocks
// of 16 tokens into scratch, then the blocks in order.
#include "cuda/kernels/rope.cuh"
#include "cuda/lanes.cuh"

namespace deltatune::cuda {
namespace {

using namespace rope;

/// One head: a lane's elements and the other halves of their pairs.
template <class T, int N, int R>
struct HeadRow {
  Stored<T, N, R> x, other;

  __device__ void read(const Call<T>& call, const T* row, int lane) {
    x.read(row, lane, call.dim);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int j = lane_element<N>(r, lane);
      other.pack[r] = {};
      if (j < call.rotary) other.pack[r] = load_pack<N>(row + call.partner(j));
    }
  }
};

/// Grid: blocks of tokens; the warps share their heads.
template <class T, int N, int R>
__global__ void __launch_bounds__(Rope::threads, N* R > 8 ? 1 : 3)
    forward_kernel(const __grid_constant__ Call<T> call, T* __restrict__ q, T* __restrict__ k,
                   float* __restrict__ q_rstd, float* __restrict__ k_rstd, float eps) {
  constexpr int group = Rope::forward_heads;
  __shared__ float2 angles[Rope::forward_tokens * Rope::max_dim / 2];
  const int lane = static_cast<int>(threadIdx.x) % warp_size,
            warp = static_cast<int>(threadIdx.x) / warp_size;
  const int64_t t0 = static_cast<int64_t>(blockIdx.x) * Rope::forward_tokens;
  const int tokens = static_cast<int>(min(static_cast<int64_t>(Rope::forward_tokens), call.tokens - t0));
  const int heads = call.heads(), count = tokens * heads;
  make_angles(angles, call, t0, tokens);
  for (int first = warp; first < count; first += group * Rope::warps) {
    HeadRow<T, N, R> in[group];
    int token[group], head[group];
#pragma unroll
    for (int a = 0; a < group; ++a) {
      const int i = min(first + a * Rope::warps, count - 1);
      token[a] = i / heads;
      head[a] = i - token[a] * heads;
      in[a].read(call, call.proj + (t0 + token[a]) * call.columns + call.column(head[a]), lane);
    }
#pragma unroll
    for (int a = 0; a < group; ++a) {
      if (first + a * Rope::warps >= count) break;
      const bool is_q = head[a] < call.query_heads;
      HeadRow<T, N, R> w;
      w.read(call, is_q ? call.q_norm : call.k_norm, lane);
      float squares = 0;
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int i = 0; i < N; ++i) squares += in[a].x(r, i) * in[a].x(r, i);
      }
      const float rstd = rsqrtf(lanes_sum(squares) / static_cast<float>(call.dim) + eps);
      Lane<N, R> out;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const int j = lane_element<N>(r, lane);
        const bool turned = j < call.rotary;
        const float2* const angle = angles + token[a] * call.half() + (turned ? call.pair(j) : 0);
        const float sign = j < call.half() ? -rstd : rstd;
#pragma unroll
        for (int i = 0; i < N; ++i) out[r][i] = in[a].x(r, i) * rstd * (1.0f + w.x(r, i));
        if (!turned) continue;
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float other = in[a].other(r, i) * sign * (1.0f + w.other(r, i));
          out[r][i] = out[r][i] * angle[i].x + other * angle[i].y;
        }
      }
      const int64_t row = call.row(t0 + token[a], head[a]);
      write_row<N, R>((is_q ? q : k) + row * call.dim, lane, call.dim, out);
      float* const rstd_out = is_q ? q_rstd : k_rstd;
      if (rstd_out && lane == 0) rstd_out[row] = rstd;
    }
  }
}

/// Heads [begin, begin + heads) of the block's tokens, a warp per head and turn; returns the sums for the
/// norm weight.
template <class T, int N, int R>
__device__ void backward_heads(Lane<N, R>& dw, const Call<T>& call, const Gradients<T>& x,
                               T* __restrict__ dproj, const float2* angles, int64_t t0, int tokens, int begin,
                               int heads, int warp, int lane) {
  constexpr int group = R > 1 ? 1 : Rope::backward_heads;
  const bool is_q = begin == 0;
  Stored<T, N, R> w;
  w.read(is_q ? call.q_norm : call.k_norm, lane, call.dim);
  for (int first = warp; first < tokens * heads; first += group * Rope::warps) {
    Stored<T, N, R> in[group];
    HeadRow<T, N, R> dout[group];
    float rstds[group];
    int64_t at[group];
    int token[group];
#pragma unroll
    for (int a = 0; a < group; ++a) {
      const int i = min(first + a * Rope::warps, tokens * heads - 1);
      token[a] = i / heads;
      const int head = begin + i - token[a] * heads;
      const int64_t row = call.row(t0 + token[a], head);
      at[a] = (t0 + token[a]) * call.columns + call.column(head);
      in[a].read(call.proj + at[a], lane, call.dim);
      dout[a].read(call, (is_q ? x.dq : x.dk) + row * call.dim, lane);
      rstds[a] = (is_q ? x.q_rstd : x.k_rstd)[row];
    }
#pragma unroll
    for (int a = 0; a < group; ++a) {
      if (first + a * Rope::warps >= tokens * heads) break;
      Lane<N, R> gradient;
      float along = 0;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const int j = lane_element<N>(r, lane);
        const bool turned = j < call.rotary;
        const float2* const angle = angles + token[a] * call.half() + (turned ? call.pair(j) : 0);
        const float sign = j < call.half() ? 1.0f : -1.0f;
        float back[N];  // dout turned back by the angle
#pragma unroll
        for (int i = 0; i < N; ++i) back[i] = dout[a].x(r, i);
        if (turned) {
#pragma unroll
          for (int i = 0; i < N; ++i) {
            back[i] = back[i] * angle[i].x + sign * (dout[a].other(r, i) * angle[i].y);
          }
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float d = back[i];
          const float n = in[a](r, i) * rstds[a];
          dw[r][i] += d * n;
          gradient[r][i] = d * (1.0f + w(r, i));
          along += gradient[r][i] * n;
        }
      }
      if (!dproj) continue;
      const float mean = lanes_sum(along) / static_cast<float>(call.dim);
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          gradient[r][i] = rstds[a] * (gradient[r][i] - in[a](r, i) * rstds[a] * mean);
        }
      }
      write_row<N, R>(dproj + at[a], lane, call.dim, gradient);
    }
  }
}

/// Grid: blocks of tokens. partial: [blocks, 2, dim], dq_norm and dk_norm.
template <class T, int N, int R>
__global__ void __launch_bounds__(Rope::threads)
    backward_kernel(const __grid_constant__ Call<T> call, const __grid_constant__ Gradients<T> x,
                    T* __restrict__ dproj, float* __restrict__ partial) {
  __shared__ float2 angles[Rope::tokens * Rope::max_dim / 2];
  __shared__ float sums[Rope::warps][Rope::max_dim];
  const int lane = static_cast<int>(threadIdx.x) % warp_size,
            warp = static_cast<int>(threadIdx.x) / warp_size;
  const int64_t t0 = static_cast<int64_t>(blockIdx.x) * Rope::tokens;
  const int tokens = static_cast<int>(min(static_cast<int64_t>(Rope::tokens), call.tokens - t0));
  make_angles(angles, call, t0, tokens);
#pragma unroll 1
  for (int kind = 0; kind < 2; ++kind) {
    Lane<N, R> dw = {};
    backward_heads<T, N, R>(dw, call, x, dproj, angles, t0, tokens, kind ? call.query_heads : 0,
                            kind ? call.kv_heads : call.query_heads, warp, lane);
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const int j = lane_element<N>(r, lane) + i;
        if (j < call.dim) sums[warp][j] = dw[r][i];
      }
    }
    __syncthreads();
    for (int j = static_cast<int>(threadIdx.x); j < call.dim; j += Rope::threads) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < Rope::warps; ++i) sum += sums[i][j];
      partial[(static_cast<int64_t>(blockIdx.x) * 2 + kind) * call.dim + j] = sum;
    }
    __syncthreads();
  }
}

/// Calls f(N, R): whole packs where every head, and both halves of its rotary part, start at a multiple of
/// one.
template <class T, class F>
void by_head(const AttentionShape& shape, bool aligned, F&& f) {
  constexpr int n = full_pack<T>;
  by_lanes<n>(shape.head_dim, aligned && shape.head_dim % n == 0 && shape.rotary_dim / 2 % n == 0, f);
}

}  // namespace

void qk_norm_rope_forward(Stream& stream, Tensor q_THK, Tensor k_TGK, Tensor q_rstd_TH, Tensor k_rstd_TG,
                          CTensor proj_TN, CTensor q_norm_K, CTensor k_norm_K, CTensor positions_T,
                          CTensor inv_freq, AttentionShape shape, float eps) {
  if (proj_TN.dim(0) == 0) return;
  by_storage(proj_TN.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned = aligned16(q_THK.data, k_TGK.data, proj_TN.data, q_norm_K.data, k_norm_K.data);
    by_head<T>(shape, aligned, [&](auto n, auto r) {
      launch(stream, {"qk_norm_rope_forward", proj_TN}, forward_kernel<T, n(), r()>,
             dim3(blocks_for(proj_TN.dim(0), Rope::forward_tokens)), dim3(Rope::threads), 0,
             make_call<T>(proj_TN, q_norm_K, k_norm_K, positions_T, inv_freq, shape), pointer<T>(q_THK),
             pointer<T>(k_TGK), wanted<float>(q_rstd_TH), wanted<float>(k_rstd_TG), eps);
    });
  });
}

void qk_norm_rope_backward(Stream& stream, Tensor dproj_TN, Tensor dq_norm_K, Tensor dk_norm_K,
                           CTensor dq_THK, CTensor dk_TGK, CTensor proj_TN, CTensor q_norm_K,
                           CTensor k_norm_K, CTensor q_rstd_TH, CTensor k_rstd_TG, CTensor positions_T,
                           CTensor inv_freq, AttentionShape shape) {
  if (proj_TN.dim(0) == 0) return;
  by_storage(proj_TN.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t tokens = proj_TN.dim(0), dim = shape.head_dim;
    const unsigned blocks = blocks_for(tokens, Rope::tokens);
    float* const partial = reinterpret_cast<float*>(
        stream.scratch(scratch::qk_norm_rope_backward(Target::cuda, proj_TN.dtype, tokens, shape)));
    const Gradients<T> x{pointer<T>(dq_THK), pointer<T>(dk_TGK), pointer<float>(q_rstd_TH),
                         pointer<float>(k_rstd_TG)};
    const bool aligned =
        aligned16(dproj_TN.data, dq_THK.data, dk_TGK.data, proj_TN.data, q_norm_K.data, k_norm_K.data);
    by_head<T>(shape, aligned, [&](auto n, auto r) {
      launch(stream, {"qk_norm_rope_backward", proj_TN}, backward_kernel<T, n(), r()>, dim3(blocks),
             dim3(Rope::threads), 0, make_call<T>(proj_TN, q_norm_K, k_norm_K, positions_T, inv_freq, shape),
             x, wanted<T>(dproj_TN), partial);
    });
    const int64_t rows = blocks;
    add_partials(stream, {"qk_norm_rope_backward: weights", proj_TN},
                 {wanted<float>(dq_norm_K), partial, dim, 2 * dim, rows},
                 {wanted<float>(dk_norm_K), partial + dim, dim, 2 * dim, rows});
  });
}

}  // namespace deltatune::cuda
