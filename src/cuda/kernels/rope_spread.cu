// qk_norm_rope for the heads of the models: the formulas of rope.cu for bf16, heads of 256, rotary part
// of 64.
//
// A block makes the angles of its tokens once; each of its warps takes whole tokens (forward: one). The
// rotary part is spread over all lanes: lane l has elements 2 l and 2 l + 1 of it, whose partners lie in lane
// l ^ 16, and six elements of the rest. So a head costs few instructions, which make the difference between
// the speed of memory and two thirds of it. Sums for the norm weights go over a warp's heads, its block's
// warps and the blocks, in order.
#include "cuda/kernels/rope.cuh"
#include "cuda/kernels/shared.cuh"
#include "cuda/pack.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/reduce.cuh"

namespace deltatune::cuda {
namespace {

using namespace rope;

struct Tile {
  static constexpr int dim = 256;
  static constexpr int rotary = 64, half = rotary / 2;
  static constexpr int end = dim - rotary;      ///< where the last pairs begin
  static constexpr int each = dim / warp_size;  ///< of a lane
  static constexpr int warps = 8;
  static constexpr int threads = warps * warp_size;
  static constexpr int blocks = 4;    ///< of a multiprocessor
  static constexpr int together = 2;  ///< heads of a warp in forward that are asked for at once
  static constexpr int forward_tokens = 8;
  static constexpr int tokens = scratch::cuda_norm_block;
};
static_assert(Tile::threads == Rope::threads);
using T = device_bf16;
using Eight = float[Tile::each];

__device__ inline void widen(float& low, float& high, uint32_t pair) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000u);
}

/// A lane's elements of a head as they are stored: 2 l and 2 l + 1, then rotary + 4 l and the three behind
/// it, then end + 2 l and the next.
struct Words {
  uint32_t turned;
  uint2 middle;
  uint32_t last;

  __device__ void read(const T* head, int lane) {
    turned = reinterpret_cast<const uint32_t*>(head)[lane];
    middle = reinterpret_cast<const uint2*>(head + Tile::rotary)[lane];
    last = reinterpret_cast<const uint32_t*>(head + Tile::end)[lane];
  }
  __device__ void widen(Eight& x) const {
    cuda::widen(x[0], x[1], turned);
    cuda::widen(x[2], x[3], middle.x);
    cuda::widen(x[4], x[5], middle.y);
    cuda::widen(x[6], x[7], last);
  }
  /// The lane's two elements' partners.
  __device__ void partners(float& first, float& second) const {
    cuda::widen(first, second, __shfl_xor_sync(full_warp, turned, warp_size / 2));
  }
  static __device__ void write(T* head, int lane, const Eight& x) {
    reinterpret_cast<uint32_t*>(head)[lane] = ptx::pack_bf16(x[0], x[1]);
    reinterpret_cast<uint2*>(head + Tile::rotary)[lane] =
        make_uint2(ptx::pack_bf16(x[2], x[3]), ptx::pack_bf16(x[4], x[5]));
    reinterpret_cast<uint32_t*>(head + Tile::end)[lane] = ptx::pack_bf16(x[6], x[7]);
  }
};

/// Cosines and sines of a lane's two elements; the sine with the sign of the partner's share in forward.
struct Turn {
  float cos[2], sin[2];

  __device__ Turn(const float2* angles, int token, int lane) {
    const float4 both = reinterpret_cast<const float4*>(angles + token * Tile::half)[lane % (warp_size / 2)];
    const float sign = lane < warp_size / 2 ? -1.0f : 1.0f;
    cos[0] = both.x;
    cos[1] = both.z;
    sin[0] = sign * both.y;
    sin[1] = sign * both.w;
  }
};

/// Of a token's q or k heads: where they are.
struct Heads {
  int count, stride;  ///< stride in proj, elements
  int64_t proj;       ///< offset of the first
  int64_t own;        ///< in the tensor of its kind, rows

  __device__ Heads(const Call<T>& call, int kind, int64_t t)
      : count(kind == 0 ? call.query_heads : call.kv_heads),
        stride(kind == 0 ? 2 * Tile::dim : Tile::dim),
        proj(t * call.columns + (kind == 0 ? 0 : call.k_column)),
        own(t * count) {}
};

/// Grid: blocks of tokens, a token for each warp. Of a token and a norm weight everything but x and rstd is
/// the same for all heads: y_i = rstd (x_i own_i + x_partner(i) other_i), own = (1 + w) cos, other = -+(1 + w
/// of the partner) sin; own = 1 + w, other = 0 outside the rotary part.
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    spread_forward_kernel(const __grid_constant__ Call<T> call, T* __restrict__ q, T* __restrict__ k,
                          float* __restrict__ q_rstd, float* __restrict__ k_rstd, float eps) {
  static_assert(Tile::forward_tokens == Tile::warps);
  constexpr int together = Tile::together;
  __shared__ alignas(16) float2 angles[Tile::forward_tokens * Tile::half];
  const int lane = static_cast<int>(threadIdx.x) % warp_size,
            warp = static_cast<int>(threadIdx.x) / warp_size;
  const int64_t t0 = static_cast<int64_t>(blockIdx.x) * Tile::forward_tokens, t = t0 + warp;
  const int tokens = static_cast<int>(min(static_cast<int64_t>(Tile::forward_tokens), call.tokens - t0));
  make_angles(angles, call, t0, tokens);
  if (warp >= tokens) return;
  const Turn turn(angles, warp, lane);
#pragma unroll 1
  for (int kind = 0; kind < 2; ++kind) {
    const Heads heads(call, kind, t);
    const T* from = call.proj + heads.proj;
    T* to = (kind == 0 ? q : k) + heads.own * Tile::dim;
    float* const rstd_out = kind == 0 ? q_rstd : k_rstd;
    Words now[together], then[together];
    const auto read = [&](Words(&words)[together], int head) {
#pragma unroll
      for (int i = 0; i < together; ++i) {
        words[i] = {};
        if (head + i < heads.count) words[i].read(from + i * heads.stride, lane);
      }
      from += together * heads.stride;
    };
    read(now, 0);
    Eight own;
    float other[2];
    {
      Words weight;
      weight.read(kind == 0 ? call.q_norm : call.k_norm, lane);
      weight.widen(own);
      weight.partners(other[0], other[1]);
#pragma unroll
      for (int i = 0; i < Tile::each; ++i) own[i] += 1.0f;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        own[i] *= turn.cos[i];
        other[i] = (other[i] + 1.0f) * turn.sin[i];
      }
    }
#pragma unroll 1
    for (int head = 0; head < heads.count; head += together, to += together * Tile::dim) {
      read(then, head + together);
#pragma unroll
      for (int i = 0; i < together; ++i) {
        if (head + i >= heads.count) break;
        Eight x;
        float partner[2], squares = 0;
        now[i].widen(x);
        now[i].partners(partner[0], partner[1]);
#pragma unroll
        for (int j = 0; j < Tile::each; ++j) squares += x[j] * x[j];
        const float rstd = rsqrtf(lanes_sum(squares) / static_cast<float>(Tile::dim) + eps);
#pragma unroll
        for (int j = 0; j < Tile::each; ++j) {
          float y = x[j] * own[j];
          if (j < 2) y += partner[j] * other[j];
          x[j] = y * rstd;
        }
        Words::write(to + i * Tile::dim, lane, x);
        if (rstd_out && lane == 0) rstd_out[heads.own + head + i] = rstd;
      }
#pragma unroll
      for (int i = 0; i < together; ++i) now[i] = then[i];
    }
  }
}

/// Grid: blocks of tokens. partial: [blocks, 2, dim], dq_norm and dk_norm.
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    spread_backward_kernel(const __grid_constant__ Call<T> call, const __grid_constant__ Gradients<T> x,
                           T* __restrict__ dproj, float* __restrict__ partial) {
  __shared__ alignas(16) float2 angles[Tile::tokens * Tile::half];
  __shared__ alignas(16) Eight sums[2][Tile::warps][warp_size];
  const int lane = static_cast<int>(threadIdx.x) % warp_size,
            warp = static_cast<int>(threadIdx.x) / warp_size;
  const int64_t t0 = static_cast<int64_t>(blockIdx.x) * Tile::tokens;
  const int tokens = static_cast<int>(min(static_cast<int64_t>(Tile::tokens), call.tokens - t0));
  make_angles(angles, call, t0, tokens);
#pragma unroll 1
  for (int kind = 0; kind < 2; ++kind) {
    Eight w, dw = {};
    {
      Words weight;
      weight.read(kind == 0 ? call.q_norm : call.k_norm, lane);
      weight.widen(w);
#pragma unroll
      for (int i = 0; i < Tile::each; ++i) w[i] += 1.0f;
    }
#pragma unroll 1
    for (int token = warp; token < tokens; token += Tile::warps) {
      const Heads heads(call, kind, t0 + token);
      const T *from = call.proj + heads.proj, *gradient = (kind == 0 ? x.dq : x.dk) + heads.own * Tile::dim;
      T* to = dproj + heads.proj;
      const float* const rstd_in = (kind == 0 ? x.q_rstd : x.k_rstd) + heads.own;
      const Turn turn(angles, token, lane);
      float rstds = 0;  // lane l: of head l of the 32
#pragma unroll 1
      for (int head = 0; head < heads.count; ++head) {
        if (head % warp_size == 0 && head + lane < heads.count) rstds = rstd_in[head + lane];
        Words words, d_words;
        words.read(from, lane);
        d_words.read(gradient, lane);
        const float rstd = __shfl_sync(full_warp, rstds, head % warp_size);
        Eight d, n;
        float partner[2], along = 0;
        words.widen(n);
        d_words.widen(d);
        d_words.partners(partner[0], partner[1]);
#pragma unroll
        for (int i = 0; i < 2; ++i)
          d[i] = d[i] * turn.cos[i] - partner[i] * turn.sin[i];  // back by the angle
#pragma unroll
        for (int i = 0; i < Tile::each; ++i) {
          n[i] *= rstd;
          dw[i] += d[i] * n[i];
          d[i] *= w[i];
          along += d[i] * n[i];
        }
        if (dproj) {
          const float mean = lanes_sum(along) / static_cast<float>(Tile::dim);
#pragma unroll
          for (int i = 0; i < Tile::each; ++i) d[i] = rstd * (d[i] - n[i] * mean);
          Words::write(to, lane, d);
        }
        from += heads.stride;
        to += heads.stride;
        gradient += Tile::dim;
      }
    }
#pragma unroll
    for (int i = 0; i < Tile::each; ++i) sums[kind][warp][lane][i] = dw[i];
  }
  ptx::let_next_kernel_start();
  __syncthreads();
  for (int j = static_cast<int>(threadIdx.x); j < 2 * Tile::dim; j += Tile::threads) {
    const int kind = j / Tile::dim, of = j % Tile::dim;
    // who has element `of`
    const int holder = of < Tile::rotary ? of / 2
                       : of < Tile::end  ? (of - Tile::rotary) / 4
                                         : (of - Tile::end) / 2;
    const int place = of < Tile::rotary ? of % 2 : of < Tile::end ? 2 + of % 4 : 6 + of % 2;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Tile::warps; ++i) sum += sums[kind][i][holder][place];
    partial[static_cast<int64_t>(blockIdx.x) * 2 * Tile::dim + j] = sum;
  }
}

}  // namespace

void qk_norm_rope_forward_spread(Stream& stream, Tensor q_THK, Tensor k_TGK, Tensor q_rstd_TH,
                                 Tensor k_rstd_TG, CTensor proj_TN, CTensor q_norm_K, CTensor k_norm_K,
                                 CTensor positions_T, CTensor inv_freq, AttentionShape shape, float eps) {
  if (proj_TN.dim(0) == 0) return;
  if (!aligned16(q_THK.data, k_TGK.data, proj_TN.data, q_norm_K.data, k_norm_K.data)) {
    qk_norm_rope_forward(stream, q_THK, k_TGK, q_rstd_TH, k_rstd_TG, proj_TN, q_norm_K, k_norm_K, positions_T,
                         inv_freq, shape, eps);
    return;
  }
  launch(stream, {"qk_norm_rope_forward", proj_TN}, spread_forward_kernel,
         dim3(blocks_for(proj_TN.dim(0), Tile::forward_tokens)), dim3(Tile::threads), 0,
         make_call<T>(proj_TN, q_norm_K, k_norm_K, positions_T, inv_freq, shape), pointer<T>(q_THK),
         pointer<T>(k_TGK), wanted<float>(q_rstd_TH), wanted<float>(k_rstd_TG), eps);
}

void qk_norm_rope_backward_spread(Stream& stream, Tensor dproj_TN, Tensor dq_norm_K, Tensor dk_norm_K,
                                  CTensor dq_THK, CTensor dk_TGK, CTensor proj_TN, CTensor q_norm_K,
                                  CTensor k_norm_K, CTensor q_rstd_TH, CTensor k_rstd_TG, CTensor positions_T,
                                  CTensor inv_freq, AttentionShape shape) {
  const int64_t tokens = proj_TN.dim(0);
  if (tokens == 0) return;
  if (!aligned16(dproj_TN.data, dq_THK.data, dk_TGK.data, proj_TN.data, q_norm_K.data, k_norm_K.data)) {
    qk_norm_rope_backward(stream, dproj_TN, dq_norm_K, dk_norm_K, dq_THK, dk_TGK, proj_TN, q_norm_K, k_norm_K,
                          q_rstd_TH, k_rstd_TG, positions_T, inv_freq, shape);
    return;
  }
  const unsigned blocks = blocks_for(tokens, Tile::tokens);
  float* const partial = reinterpret_cast<float*>(
      stream.scratch(scratch::qk_norm_rope_backward(Target::cuda, proj_TN.dtype, tokens, shape)));
  const Gradients<T> x{pointer<T>(dq_THK), pointer<T>(dk_TGK), pointer<float>(q_rstd_TH),
                       pointer<float>(k_rstd_TG)};
  launch(stream, {"qk_norm_rope_backward", proj_TN}, spread_backward_kernel, dim3(blocks),
         dim3(Tile::threads), 0, make_call<T>(proj_TN, q_norm_K, k_norm_K, positions_T, inv_freq, shape), x,
         wanted<T>(dproj_TN), partial);
  const int64_t rows = blocks;
  add_partials(stream, {"qk_norm_rope_backward: weights", proj_TN},
               {wanted<float>(dq_norm_K), partial, Tile::dim, 2 * Tile::dim, rows},
               {wanted<float>(dk_norm_K), partial + Tile::dim, Tile::dim, 2 * Tile::dim, rows});
}

}  // namespace deltatune::cuda
