// gdn_prologue, backward: gradients of the convolution's input, of its taps and of the gates; one launch, and
// one for the sums over blocks of tokens. A warp per head of channels and run of tokens (gdn_prologue.cuh).
//
// c and u are made again from proj. A warp walks its tokens once. dc of token t belongs to dx of t and of up
// to three tokens before it; those three wait in registers, so dx leaves three tokens late, and a run goes on
// three tokens into the next one. Taps' gradients stay in registers over the run, then go over the warps of a
// block in order.
#include "cuda/kernels/gdn_prologue_gates.cuh"

namespace deltatune::cuda {
namespace {

using namespace prologue;

struct Tile {
  static constexpr int warps = GdnCudaTile::prologue_warps;  ///< runs of one head
  static constexpr int threads = warps * warp_size;
  static constexpr int run = GdnCudaTile::prologue_run;
  static constexpr int late = max_taps - 1;
  static constexpr int ahead = 2;  ///< tokens loaded together: more would not fit the registers
};
static_assert(Tile::run % warp_size == 0 && warp_size % Tile::ahead == 0);

/// One run of one head: dx into dproj, and the sums for dconv.
template <class T, int N, int R>
struct Run {
  static constexpr int A = Tile::ahead;
  const Call<T>& call;
  const Head& head;
  const T* dy;         ///< of token 0
  const T* y;          ///< of token 0: q or k; null: v is not normalised
  const float* rstds;  ///< the same
  T* dproj;            ///< null: not wanted
  int t0, own_end, end, lane;

  struct Inputs {
    Stored<T, N, R> x, dy, y;
  };
  struct State {
    Window<N, R> window;
    Lane<N, R> dx1, dx2, dx3;  ///< of the three tokens before, as far as it is known
    float dconv[max_taps][R][N];
    int reach;  ///< tokens of this run and document before the present one
  };

  __device__ void load_token(Inputs& in, int t) const {  // behind the end, again the last one
    const int at = min(t, end - 1);
    in.x.read(call.proj + at * call.columns + head.column, lane, head.dim);
    in.dy.read(dy + at * head.row, lane, head.dim);
    if (y) in.y.read(y + at * head.row, lane, head.dim);
  }

  /// dc of one token; the sums for dconv where it is one of the run's own; the window moves on.
  __device__ void token_gradient(Lane<N, R>& dc, State& state, const Taps<N, R>& taps, const Inputs& in,
                                 float rstd, bool own) const {
    Lane<N, R> slope;
    Window<N, R>& window = state.window;
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float c = window.convolve(taps, r, i, in.x(r, i)), s = sigmoid_for<T>(c);
        slope[r][i] = c * s * (1.0f - s) + s;  // s (1 + c (1 - s))
        dc[r][i] = in.dy(r, i);
      }
    }
    if (y) {
      // rstd (dy - y (y . dy))
      float along = 0;
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int i = 0; i < N; ++i) along += in.y(r, i) * dc[r][i];
      }
      along = lanes_sum(along);
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int i = 0; i < N; ++i) dc[r][i] = rstd * (dc[r][i] - in.y(r, i) * along);
      }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        dc[r][i] *= slope[r][i];
        const float x = in.x(r, i);
        if (own) {
          state.dconv[0][r][i] += dc[r][i] * x;
          state.dconv[1][r][i] += dc[r][i] * window.x1[r][i];
          state.dconv[2][r][i] += dc[r][i] * window.x2[r][i];
          state.dconv[3][r][i] += dc[r][i] * window.x3[r][i];
        }
        window.move(r, i, x);
      }
    }
  }

  /// Tokens t .. t + A; `in` holds their inputs and gets those of the next A. `plain`: all are the run's own,
  /// and the three tokens before each are of its document and run.
  template <bool plain>
  __device__ void step(Inputs (&in)[A], State& state, const Taps<N, R>& taps, unsigned starts, float rstd,
                       int phase, int t) const {
#pragma unroll
    for (int a = 0; a < A; ++a) {
      const int at = t + a;
      if (!plain && (starts >> a & 1)) {
        state.reach = 0;
        state.window.clear();
      }
      const float rstd_now = rstds ? __shfl_sync(full_warp, rstd, phase + a) : 1.0f;
      Lane<N, R> dc = {}, dx;
      if (plain || at < end) token_gradient(dc, state, taps, in[a], rstd_now, plain || at < own_end);
      load_token(in[a], at + A);
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const auto part = [&](int back) {
            return plain || state.reach >= back ? taps.tap[back][r][i] * dc[r][i] : 0.0f;
          };
          dx[r][i] = state.dx3[r][i] + part(3);
          state.dx3[r][i] = state.dx2[r][i] + part(2);
          state.dx2[r][i] = state.dx1[r][i] + part(1);
          state.dx1[r][i] = part(0);
        }
      }
      ++state.reach;
      if (dproj && (plain || (at >= t0 + Tile::late && at < own_end + Tile::late)))
        write_row<N, R>(dproj + (at - Tile::late) * call.columns + head.column, lane, head.dim, dx);
    }
  }

  __device__ void operator()(float (&dconv)[max_taps][R][N]) const {
    Inputs in[A];
#pragma unroll
    for (int a = 0; a < A; ++a) load_token(in[a], t0 + a);
    const Taps<N, R> taps(call, head, lane);
    State state{Window<N, R>(call, head, t0, lane), {}, {}, {}, {}, 0};
    unsigned starts = 0;
    float rstd = 1;  // of the lane's token
    for (int t = t0; t < own_end + Tile::late; t += A) {
      const int phase = (t - t0) % warp_size;
      if (phase == 0) {
        starts = document_starts(call, t, lane);
        if (rstds) rstd = rstds[static_cast<int64_t>(min(t + lane, end - 1)) * call.key_heads];
      }
      const unsigned here = starts >> phase & ((1u << A) - 1);
      if (here == 0 && state.reach >= Tile::late && t + A <= own_end) {
        step<true>(in, state, taps, here, rstd, phase, t);
      } else {
        step<false>(in, state, taps, here, rstd, phase, t);
      }
    }
#pragma unroll
    for (int back = 0; back < max_taps; ++back) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int i = 0; i < N; ++i) dconv[back][r][i] = state.dconv[back][r][i];
      }
    }
  }
};

template <class T, int N, int R>
__device__ inline void channels(float (&dconv)[max_taps][R][N], const Call<T>& call, const Gradients<T>& x,
                                T* __restrict__ dproj, const Head& head, int t0, int lane) {
  const T* const dy = head.kind == Kind::q ? x.dq : head.kind == Kind::k ? x.dk : x.dv;
  const T* const y = head.kind == Kind::q ? x.q : head.kind == Kind::k ? x.k : nullptr;
  const float* const rstds = head.kind == Kind::q ? x.q_rstd : head.kind == Kind::k ? x.k_rstd : nullptr;
  const int own_end = min(t0 + Tile::run, call.tokens), offset = head.index * head.dim;
  Run<T, N, R>{call,
               head,
               dy + offset,
               y ? y + offset : nullptr,
               rstds ? rstds + head.index : nullptr,
               dproj,
               t0,
               own_end,
               min(own_end + Tile::late, call.tokens),
               lane}(dconv);
}

/// Grid: `gate_blocks` blocks of gates (token blocks times `gate_groups` of heads), then blocks of tokens
/// times heads, the heads fastest. partial_conv: [blocks of tokens, channels, W]; partial_gates: [blocks of
/// tokens, 2, Hv].
template <class T, int N, int R>
__global__ void __launch_bounds__(Tile::threads, N* R <= 4 ? 4 : 1)
    backward_kernel(const __grid_constant__ Call<T> call, const __grid_constant__ Gradients<T> x,
                    T* __restrict__ dproj, float* __restrict__ partial_conv,
                    float* __restrict__ partial_gates, int gate_blocks, int gate_groups) {
  if (static_cast<int>(blockIdx.x) < gate_blocks) {
    backward_gates<Tile::warps>(call, x, dproj, partial_gates, static_cast<int>(blockIdx.x), gate_groups);
    return;
  }
  float* const sums = dynamic_shared<float>();  // [warps, dim, W]
  const int block = static_cast<int>(blockIdx.x) - gate_blocks;
  const int warp = static_cast<int>(threadIdx.x) / warp_size,
            lane = static_cast<int>(threadIdx.x) % warp_size;
  const Head head(call, block % call.heads());
  const int tokens = block / call.heads();
  const int t0 = (tokens * Tile::warps + warp) * Tile::run;
  float dconv[max_taps][R][N] = {};
  if (t0 < call.tokens) channels<T, N, R>(dconv, call, x, dproj, head, t0, lane);
  ptx::let_next_kernel_start();
  const int W = call.width, count = head.dim * W;
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int j = lane_element<N>(r, lane) + i;
#pragma unroll
      for (int back = 0; back < max_taps; ++back) {
        if (j < head.dim && back < W) sums[warp * count + j * W + W - 1 - back] = dconv[back][r][i];
      }
    }
  }
  __syncthreads();
  const int64_t channels_of_all = 2 * call.keys() + call.values();
  float* const to = partial_conv + (tokens * channels_of_all + head.column) * W;
  for (int j = static_cast<int>(threadIdx.x); j < count; j += Tile::threads) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Tile::warps; ++i) sum += sums[i * count + j];
    to[j] = sum;
  }
}

}  // namespace

void gdn_prologue_backward(Stream& stream, Tensor dproj_TN, Tensor dconv_CW, Tensor dA_log_H,
                           Tensor ddt_bias_H, CTensor dq_THK, CTensor dk_THK, CTensor dv_THV, CTensor dg_TH,
                           CTensor dbeta_TH, CTensor proj_TN, CTensor conv_CW, CTensor A_log_H,
                           CTensor dt_bias_H, CTensor q_THK, CTensor k_THK, CTensor q_rstd_TH,
                           CTensor k_rstd_TH, const Segments& segments, GdnShape shape) {
  const int64_t tokens = proj_TN.dim(0), Hv = shape.value_heads;
  if (tokens == 0) return;
  by_storage(proj_TN.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto call = make_call<T>(proj_TN, conv_CW, A_log_H, dt_bias_H, segments, shape);
    const Gradients<T> x{pointer<T>(dq_THK),        pointer<T>(dk_THK),    pointer<T>(dv_THV),
                         pointer<T>(q_THK),         pointer<T>(k_THK),     pointer<float>(q_rstd_TH),
                         pointer<float>(k_rstd_TH), pointer<float>(dg_TH), pointer<float>(dbeta_TH)};
    const int64_t conv_rows = gdn_prologue_cuda_blocks(tokens), gate_rows = gdn_gates_cuda_blocks(tokens);
    const int64_t conv_sums = shape.channels() * shape.conv_width;
    float* const partial =
        reinterpret_cast<float*>(stream.scratch(gdn_prologue_backward_cuda_scratch(shape, tokens)));
    float* const partial_gates = partial + conv_rows * conv_sums;
    const int64_t gate_groups = (Hv + warp_size - 1) / warp_size;
    const int64_t gate_blocks = gate_rows * gate_groups;
    const int64_t dim = shape.key_dim > shape.value_dim ? shape.key_dim : shape.value_dim;
    const bool aligned = aligned16(dproj_TN.data, dq_THK.data, dk_THK.data, dv_THV.data, q_THK.data,
                                   k_THK.data, proj_TN.data, conv_CW.data);
    by_head(shape, aligned, [&](auto n, auto r) {
      launch_shared(stream, {"gdn_prologue_backward", proj_TN}, backward_kernel<T, n(), r()>,
                    dim3(static_cast<unsigned>(gate_blocks + conv_rows * call.heads())), dim3(Tile::threads),
                    static_cast<size_t>(Tile::warps * dim * shape.conv_width) * sizeof(float), call, x,
                    wanted<T>(dproj_TN), partial, partial_gates, static_cast<int>(gate_blocks),
                    static_cast<int>(gate_groups));
    });
    add_partials(stream, {"gdn_prologue_backward: sums", proj_TN},
                 {wanted<float>(dconv_CW), partial, conv_sums, conv_sums, conv_rows},
                 {wanted<float>(dA_log_H), partial_gates, Hv, 2 * Hv, gate_rows},
                 {wanted<float>(ddt_bias_H), partial_gates + Hv, Hv, 2 * Hv, gate_rows});
  });
}

}  // namespace deltatune::cuda
