// gdn_prologue, backward, for sm_90: the formulas and the walk of gdn_prologue_backward.cu with rows that
// come through shared memory (gdn_prologue_bulk.cuh). bf16, heads of 128, convolutions 4 wide.
//
// A group of four tokens inside a run and a document is one straight stretch of code. Groups in which a
// document starts, or a run ends, go token by token. dx of the three tokens before a run is the business of
// the run before, which goes on three tokens for it.
#include "cuda/kernels/gdn_prologue_bulk.cuh"

namespace deltatune::cuda {
namespace {

using namespace prologue;

struct Tile {
  static constexpr int warps = GdnCudaTile::bulk_warps;  ///< runs of one head
  static constexpr int threads = warps * warp_size;
  static constexpr int run = GdnCudaTile::bulk_run;
  static constexpr int late = max_taps - 1;
  static constexpr int walked = run + late;
  static constexpr int slots = 2;
  static constexpr int blocks = 4;  ///< of a multiprocessor
};
static_assert(Tile::walked % Bulk::tokens == 0);
using Ring = BulkRing<Tile::slots, 3, Tile::walked>;
using Window4 = Window<Bulk::each, 1>;
using Taps4 = Taps<Bulk::each, 1>;

/// By kind of head: q, k, v.
struct Maps {
  CUtensorMap proj, gradients[3], outputs[2];
};

/// One run of one head: dx into dproj, and the sums for dconv. `normalised`: q and k.
template <bool normalised>
struct Run {
  enum Array { inputs, gradients, outputs };
  const Call<device_bf16>& call;
  const Maps& maps;
  const Head& head;
  Ring& ring;
  device_bf16* dproj;  ///< of token 0 and the lane's first channel; null: not wanted
  int t0, own_end, lane;

  struct State {
    Window4 window;
    Four dx1, dx2, dx3;  ///< of the three tokens before, as far as it is known
    Four dconv[max_taps];
    int reach;  ///< tokens of the document before the present one, where they are less than `late`
  };

  /// Has a group copied. One lane's.
  __device__ void start(int group, int slot) const {
    const int t = t0 + group * Bulk::tokens, column = head.index * Bulk::dim,
              kind = static_cast<int>(head.kind);
    const uint32_t barrier = ring.barrier(slot);
    ptx::mbarrier_expect(barrier, (normalised ? 3 : 2) * Bulk::group_bytes);
    ptx::copy_box(ring.address(slot, inputs), &maps.proj, head.column, t, barrier);
    ptx::copy_box(ring.address(slot, gradients), maps.gradients + kind, column, t, barrier);
    if (normalised) ptx::copy_box(ring.address(slot, outputs), maps.outputs + kind, column, t, barrier);
  }

  /// ds/dc of s = silu(c)
  static __device__ float slope(float c) {
    const float s = sigmoid_for<device_bf16>(c);
    return c * s * (1.0f - s) + s;
  }
  /// y . dy of one token
  static __device__ float along(const unsigned char* rows, int token) {
    Four out, d;
    read_four(out, rows, outputs, token);
    read_four(d, rows, gradients, token);
    return lanes_sum(out[0] * d[0] + out[1] * d[1] + out[2] * d[2] + out[3] * d[3]);
  }
  /// dc from the slopes: the gradient through l2norm and SiLU.
  static __device__ void through(Four& dc, const unsigned char* rows, int token, float projection,
                                 float rstd) {
    Four d, out;
    read_four(d, rows, gradients, token);
    if (normalised) {
      read_four(out, rows, outputs, token);
#pragma unroll
      for (int i = 0; i < Bulk::each; ++i) dc[i] *= rstd * (d[i] - out[i] * projection);
    } else {
#pragma unroll
      for (int i = 0; i < Bulk::each; ++i) dc[i] *= d[i];
    }
  }

  /// Four tokens from t on, all the run's own, and the three tokens before each of its document. `to`: dx of
  /// token t - 3.
  __device__ void whole_unit(State& s, const Taps4& taps, const unsigned char* rows, const float* rstds,
                             device_bf16* to, bool first) const {
    constexpr int n = Bulk::unit, late = Tile::late;
    float projection[n] = {};
    float4 rstd = {};
    if (normalised) {
      rstd = *reinterpret_cast<const float4*>(rstds);
#pragma unroll
      for (int a = 0; a < n; ++a) projection[a] = along(rows, a);
      ptx::read_anew();  // registers are short
    }
    const float rstd_of[n] = {rstd.x, rstd.y, rstd.z, rstd.w};
    Four in[n + late], dx[n + late];  // of the tokens from t - 3 on
#pragma unroll
    for (int i = 0; i < Bulk::each; ++i) {
      in[0][i] = s.window.x3[0][i];
      in[1][i] = s.window.x2[0][i];
      in[2][i] = s.window.x1[0][i];
      dx[0][i] = s.dx3[i];
      dx[1][i] = s.dx2[i];
      dx[2][i] = s.dx1[i];
    }
#pragma unroll
    for (int a = 0; a < n; ++a) {
      read_four(in[a + 3], rows, inputs, a);
      Four dc;
#pragma unroll
      for (int i = 0; i < Bulk::each; ++i) {
        dc[i] = slope(taps.tap[3][0][i] * in[a][i] + taps.tap[2][0][i] * in[a + 1][i] +
                      taps.tap[1][0][i] * in[a + 2][i] + taps.tap[0][0][i] * in[a + 3][i]);
      }
      through(dc, rows, a, projection[a], rstd_of[a]);
#pragma unroll
      for (int i = 0; i < Bulk::each; ++i) {
#pragma unroll
        for (int back = 0; back < max_taps; ++back) s.dconv[back][i] += dc[i] * in[a + 3 - back][i];
        dx[a][i] += taps.tap[3][0][i] * dc[i];
        dx[a + 1][i] += taps.tap[2][0][i] * dc[i];
        dx[a + 2][i] += taps.tap[1][0][i] * dc[i];
        dx[a + 3][i] = taps.tap[0][0][i] * dc[i];
      }
      if (dproj && (a == late || !first)) write_four(to, dx[a]);
      to += call.columns;
    }
#pragma unroll
    for (int i = 0; i < Bulk::each; ++i) {
      s.window.x3[0][i] = in[n][i];
      s.window.x2[0][i] = in[n + 1][i];
      s.window.x1[0][i] = in[n + 2][i];
      s.dx3[i] = dx[n][i];
      s.dx2[i] = dx[n + 1][i];
      s.dx1[i] = dx[n + 2][i];
    }
  }

  /// Any four tokens from t on.
  __device__ void mixed_unit(State& s, const Taps4& taps, const unsigned char* rows, const float* rstds,
                             unsigned starts, int t) const {
#pragma unroll 1
    for (int a = 0; a < Bulk::unit; ++a) {
      if (starts >> a & 1) {
        s.reach = 0;
        s.window.clear();
      }
      const float projection = normalised ? along(rows, a) : 0.0f;
      Four now, dc, dx;
      read_four(now, rows, inputs, a);
#pragma unroll
      for (int i = 0; i < Bulk::each; ++i) dc[i] = slope(s.window.convolve(taps, 0, i, now[i]));
      through(dc, rows, a, projection, normalised ? rstds[a] : 1.0f);
      const bool own = t + a < own_end;
#pragma unroll
      for (int i = 0; i < Bulk::each; ++i) {
        if (own) {
          s.dconv[0][i] += dc[i] * now[i];
          s.dconv[1][i] += dc[i] * s.window.x1[0][i];
          s.dconv[2][i] += dc[i] * s.window.x2[0][i];
          s.dconv[3][i] += dc[i] * s.window.x3[0][i];
        }
        const auto part = [&](int back) { return s.reach >= back ? taps.tap[back][0][i] * dc[i] : 0.0f; };
        dx[i] = s.dx3[i] + part(3);
        s.dx3[i] = s.dx2[i] + part(2);
        s.dx2[i] = s.dx1[i] + part(1);
        s.dx1[i] = taps.tap[0][0][i] * dc[i];
        s.window.move(0, i, now[i]);
      }
      ++s.reach;
      const int done = t + a - Tile::late;  // the token whose dx is known now
      if (dproj && done >= t0 && done < own_end) write_four(dproj + done * call.columns, dx);
    }
  }

  /// sums: dconv of the run, [128, 4].
  __device__ void operator()(float* sums, const float* rstds) const {
    const int groups = (own_end + Tile::late - t0 + Bulk::tokens - 1) / Bulk::tokens;
    if (lane == 0) {
      for (int group = 0; group < Tile::slots; ++group) {
        if (group < groups) start(group, group);
      }
    }
    const Taps4 taps(call, head, lane);
    State s{Window4(call, head, t0, lane), {}, {}, {}, {}, Tile::late};  // dx before the run is not its own
    ring.mark(call.positions, rstds, call.key_heads, t0, call.tokens, lane);
    typename Ring::Place place;
    device_bf16* to = dproj + (t0 - Tile::late) * call.columns;
    for (int group = 0; group < groups; ++group) {
      ring.wait(place);
      const unsigned char* rows = ring.lane_rows(place.slot, lane);
#pragma unroll 1
      for (int half = 0; half < Bulk::tokens; half += Bulk::unit) {
        const int at = group * Bulk::tokens + half, t = t0 + at;
        const unsigned starts = ring.starts[at / Bulk::unit];
        if (starts == 0 && s.reach >= Tile::late && t + Bulk::unit <= own_end) {
          whole_unit(s, taps, rows, ring.rstd + at, to, at == 0);
        } else {
          mixed_unit(s, taps, rows, ring.rstd + at, starts, t);
        }
        rows += Bulk::unit_bytes;
        to += Bulk::unit * call.columns;
      }
      ptx::fence_bulk_copies();  // what the lanes have read may be written over
      __syncwarp();
      if (lane == 0 && group + Tile::slots < groups) start(group + Tile::slots, place.slot);
      place.next();
    }
#pragma unroll
    for (int i = 0; i < Bulk::each; ++i) {
      reinterpret_cast<float4*>(sums)[lane * Bulk::each + i] =
          make_float4(s.dconv[3][i], s.dconv[2][i], s.dconv[1][i], s.dconv[0][i]);
    }
  }
};

/// Grid and partial sums as of gdn_prologue_backward.cu.
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    bulk_backward_kernel(const __grid_constant__ Call<device_bf16> call, const __grid_constant__ Maps maps,
                         const __grid_constant__ Gradients<device_bf16> x, device_bf16* __restrict__ dproj,
                         float* __restrict__ partial_conv, float* __restrict__ partial_gates, int gate_blocks,
                         int gate_groups) {
  if (static_cast<int>(blockIdx.x) < gate_blocks) {
    backward_gates<Tile::warps>(call, x, dproj, partial_gates, static_cast<int>(blockIdx.x), gate_groups);
    return;
  }
  unsigned char* const memory = dynamic_shared<unsigned char>();
  const uint32_t rest = ptx::shared_address(memory) % Bulk::alignment;
  Ring* const rings = reinterpret_cast<Ring*>(memory + (Bulk::alignment - rest) % Bulk::alignment);
  const int block = static_cast<int>(blockIdx.x) - gate_blocks;
  const int warp = static_cast<int>(threadIdx.x) / warp_size,
            lane = static_cast<int>(threadIdx.x) % warp_size;
  Ring& ring = rings[warp];
  ring.init(lane);
  const Head head(call, block % call.heads());
  const int tokens = block / call.heads();
  const int t0 = (tokens * Tile::warps + warp) * Tile::run, own_end = min(t0 + Tile::run, call.tokens);
  // The ring's first bytes, when the copies are over.
  static_assert(sizeof(ring.rows) >= Bulk::dim * max_taps * sizeof(float));
  float* const sums = reinterpret_cast<float*>(ring.rows);
  device_bf16* const to = dproj ? dproj + head.column + lane * Bulk::each : nullptr;
  if (t0 >= call.tokens) {
    for (int j = lane; j < Bulk::dim * max_taps; j += warp_size) sums[j] = 0;
  } else if (head.kind == Kind::v) {
    Run<false>{call, maps, head, ring, to, t0, own_end, lane}(sums, nullptr);
  } else {
    const float* const rstds = head.kind == Kind::q ? x.q_rstd : x.k_rstd;
    Run<true>{call, maps, head, ring, to, t0, own_end, lane}(sums, rstds + head.index);
  }
  ptx::let_next_kernel_start();
  __syncthreads();
  const int64_t channels_of_all = 2 * call.keys() + call.values();
  float* const sum_to = partial_conv + (tokens * channels_of_all + head.column) * max_taps;
  for (int j = static_cast<int>(threadIdx.x); j < Bulk::dim * max_taps; j += Tile::threads) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Tile::warps; ++i) sum += reinterpret_cast<const float*>(rings[i].rows)[j];
    sum_to[j] = sum;
  }
}

}  // namespace

void gdn_prologue_backward_bulk(Stream& stream, Tensor dproj_TN, Tensor dconv_CW, Tensor dA_log_H,
                                Tensor ddt_bias_H, CTensor dq_THK, CTensor dk_THK, CTensor dv_THV,
                                CTensor dg_TH, CTensor dbeta_TH, CTensor proj_TN, CTensor conv_CW,
                                CTensor A_log_H, CTensor dt_bias_H, CTensor q_THK, CTensor k_THK,
                                CTensor q_rstd_TH, CTensor k_rstd_TH, const Segments& segments,
                                GdnShape shape) {
  using T = device_bf16;
  const int64_t tokens = proj_TN.dim(0), Hv = shape.value_heads;
  if (!aligned16(dproj_TN.data, dq_THK.data, dk_THK.data, dv_THV.data, q_THK.data, k_THK.data, proj_TN.data,
                 conv_CW.data)) {
    gdn_prologue_backward(stream, dproj_TN, dconv_CW, dA_log_H, ddt_bias_H, dq_THK, dk_THK, dv_THV, dg_TH,
                          dbeta_TH, proj_TN, conv_CW, A_log_H, dt_bias_H, q_THK, k_THK, q_rstd_TH, k_rstd_TH,
                          segments, shape);
    return;
  }
  if (tokens == 0) return;
  const auto call = make_call<T>(proj_TN, conv_CW, A_log_H, dt_bias_H, segments, shape);
  const Gradients<T> x{pointer<T>(dq_THK),        pointer<T>(dk_THK),    pointer<T>(dv_THV),
                       pointer<T>(q_THK),         pointer<T>(k_THK),     pointer<float>(q_rstd_TH),
                       pointer<float>(k_rstd_TH), pointer<float>(dg_TH), pointer<float>(dbeta_TH)};
  const auto map = [](const CTensor& tensor) { return row_tiles(tensor, Bulk::dim, Bulk::tokens); };
  const int64_t conv_rows = gdn_prologue_bulk_blocks(tokens), gate_rows = gdn_gates_cuda_blocks(tokens);
  const int64_t conv_sums = shape.channels() * shape.conv_width;
  float* const partial =
      reinterpret_cast<float*>(stream.scratch(gdn_prologue_backward_bulk_scratch(shape, tokens)));
  float* const partial_gates = partial + conv_rows * conv_sums;
  const int64_t gate_groups = (Hv + warp_size - 1) / warp_size, gate_blocks = gate_rows * gate_groups;
  launch_shared(stream, {"gdn_prologue_backward", proj_TN}, bulk_backward_kernel,
                dim3(static_cast<unsigned>(gate_blocks + conv_rows * call.heads())), dim3(Tile::threads),
                Tile::warps * sizeof(Ring) + Bulk::alignment, call,
                Maps{map(proj_TN), {map(dq_THK), map(dk_THK), map(dv_THV)}, {map(q_THK), map(k_THK)}}, x,
                wanted<T>(dproj_TN), partial, partial_gates, static_cast<int>(gate_blocks),
                static_cast<int>(gate_groups));
  add_partials(stream, {"gdn_prologue_backward: sums", proj_TN},
               {wanted<float>(dconv_CW), partial, conv_sums, conv_sums, conv_rows},
               {wanted<float>(dA_log_H), partial_gates, Hv, 2 * Hv, gate_rows},
               {wanted<float>(ddt_bias_H), partial_gates + Hv, Hv, 2 * Hv, gate_rows});
}

}  // namespace deltatune::cuda
