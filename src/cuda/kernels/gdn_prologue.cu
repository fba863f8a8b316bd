// gdn_prologue, forward: short convolution + SiLU, l2norm of q and k, gates; one launch. A warp per head of
// channels and run of tokens (gdn_prologue.cuh); the first blocks of the grid make the gates.
#include "cuda/kernels/gdn_prologue_gates.cuh"

namespace deltatune::cuda {
namespace {

using namespace prologue;

struct Tile {
  static constexpr int threads = 256;
  static constexpr int warps = threads / warp_size;  ///< neighbouring heads
  static constexpr int run = warp_size;              ///< tokens of a warp
  static constexpr int ahead = 4;                    ///< tokens loaded together
};

/// Tokens [t0, end) of one head, at most 32, A at a time.
template <class T, int N, int R>
struct Run {
  static constexpr int A = Tile::ahead;
  const Call<T>& call;
  const Head& head;
  T* out;  ///< of token 0; null: not wanted
  float* rstd_out;
  int t0, end, lane;

  __device__ void load_token(Stored<T, N, R>& x, int t) const {  // behind the end, again the last one
    x.read(call.proj + min(t, end - 1) * call.columns + head.column, lane, head.dim);
  }

  /// Tokens t .. t + A; x holds their inputs and gets those of the next A. `plain`: none of them starts a
  /// document or lies behind the end.
  template <bool plain>
  __device__ void step(Stored<T, N, R> (&x)[A], Window<N, R>& window, const Taps<N, R>& taps, unsigned starts,
                       int t) const {
    Lane<N, R> u[A];
    float squares[A];
#pragma unroll
    for (int a = 0; a < A; ++a) {
      squares[a] = 0;
      if (!plain && (starts >> a & 1)) window.clear();
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float now = x[a](r, i), c = window.convolve(taps, r, i, now);
          window.move(r, i, now);
          u[a][r][i] = c * sigmoid_for<T>(c);
          squares[a] += u[a][r][i] * u[a][r][i];
        }
      }
      load_token(x[a], t + a + A);
    }
    if (head.kind != Kind::v) {
#pragma unroll
      for (int a = 0; a < A; ++a) {
        const float rstd = rsqrtf(lanes_sum(squares[a]) + static_cast<float>(gdn_l2norm_eps));
        if (rstd_out && lane == 0 && (plain || t + a < end))
          rstd_out[static_cast<int64_t>(t + a) * call.key_heads + head.index] = rstd;
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
          for (int i = 0; i < N; ++i) u[a][r][i] *= rstd;
        }
      }
    }
    if (!out) return;
#pragma unroll
    for (int a = 0; a < A; ++a) {
      if (plain || t + a < end) write_row<N, R>(out + (t + a) * head.row, lane, head.dim, u[a]);
    }
  }

  __device__ void operator()() const {
    Stored<T, N, R> x[A];
#pragma unroll
    for (int a = 0; a < A; ++a) load_token(x[a], t0 + a);
    const Taps<N, R> taps(call, head, lane);
    const unsigned starts = document_starts(call, t0, lane);
    Window<N, R> window(call, head, t0, lane);
    for (int t = t0; t < end; t += A) {
      const unsigned here = starts >> (t - t0) & ((1u << A) - 1);
      if (here == 0 && t + A <= end) {
        step<true>(x, window, taps, here, t);
      } else {
        step<false>(x, window, taps, here, t);
      }
    }
  }
};

template <class T, int N, int R>
__device__ inline void channels(const Call<T>& call, const Outputs<T>& out, const Head& head, int t0,
                                int lane) {
  T* const to = head.kind == Kind::q ? out.q : head.kind == Kind::k ? out.k : out.v;
  float* const rstd = head.kind == Kind::q ? out.q_rstd : head.kind == Kind::k ? out.k_rstd : nullptr;
  if (!to && !rstd) return;
  Run<T, N, R>{call, head, to ? to + head.index * head.dim : nullptr,
               rstd, t0,   min(t0 + Tile::run, call.tokens),
               lane}();
}

/// Grid: `gate_blocks` blocks of gates, then runs of tokens times groups of heads, the groups fastest.
template <class T, int N, int R>
__global__ void __launch_bounds__(Tile::threads, N* R <= 4 ? 3 : 1)
    forward_kernel(const __grid_constant__ Call<T> call, const __grid_constant__ Outputs<T> out,
                   int gate_blocks, int head_groups) {
  if (static_cast<int>(blockIdx.x) < gate_blocks) {
    forward_gates<Tile::threads>(
        call, out, static_cast<int64_t>(blockIdx.x) * GateTile::each * Tile::threads + threadIdx.x);
    return;
  }
  const int block = static_cast<int>(blockIdx.x) - gate_blocks;
  const int warp = static_cast<int>(threadIdx.x) / warp_size,
            lane = static_cast<int>(threadIdx.x) % warp_size;
  const int head = block % head_groups * Tile::warps + warp;
  if (head >= call.heads()) return;
  const int t0 = block / head_groups * Tile::run;
  channels<T, N, R>(call, out, Head(call, head), t0, lane);
}

}  // namespace

void gdn_prologue_forward(Stream& stream, Tensor q_THK, Tensor k_THK, Tensor v_THV, Tensor g_TH,
                          Tensor beta_TH, Tensor q_rstd_TH, Tensor k_rstd_TH, CTensor proj_TN,
                          CTensor conv_CW, CTensor A_log_H, CTensor dt_bias_H, const Segments& segments,
                          GdnShape shape) {
  if (proj_TN.dim(0) == 0) return;
  by_storage(proj_TN.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto call = make_call<T>(proj_TN, conv_CW, A_log_H, dt_bias_H, segments, shape);
    const Outputs<T> out{wanted<T>(q_THK),         wanted<T>(k_THK),         wanted<T>(v_THV),
                         wanted<float>(q_rstd_TH), wanted<float>(k_rstd_TH), wanted<float>(g_TH),
                         wanted<float>(beta_TH)};
    const unsigned gate_blocks =
        out.g || out.beta ? blocks_for(proj_TN.dim(0) * shape.value_heads, GateTile::each * Tile::threads)
                          : 0;
    const unsigned head_groups = blocks_for(call.heads(), Tile::warps);
    const unsigned blocks = gate_blocks + head_groups * blocks_for(call.tokens, Tile::run);
    const bool aligned = aligned16(q_THK.data, k_THK.data, v_THV.data, proj_TN.data, conv_CW.data);
    by_head(shape, aligned, [&](auto n, auto r) {
      launch(stream, {"gdn_prologue_forward", proj_TN}, forward_kernel<T, n(), r()>, dim3(blocks),
             dim3(Tile::threads), 0, call, out, static_cast<int>(gate_blocks), static_cast<int>(head_groups));
    });
  });
}

}  // namespace deltatune::cuda
