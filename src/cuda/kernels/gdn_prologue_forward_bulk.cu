// gdn_prologue, forward, for sm_90: the formulas and the walk of gdn_prologue.cu with rows that come through
// shared memory (gdn_prologue_bulk.cuh). bf16, heads of 128, convolutions 4 wide.
//
// Four tokens inside a run and a document are one straight stretch of code; four tokens in which a document
// starts or a row ends go one by one.
#include "cuda/kernels/gdn_prologue_bulk.cuh"

namespace deltatune::cuda {
namespace {

using namespace prologue;

struct Tile {
  static constexpr int warps = 4;  ///< neighbouring heads
  static constexpr int threads = warps * warp_size;
  static constexpr int run = 32;  ///< tokens of a warp
  static constexpr int slots = 2;
  static constexpr int blocks = 7;  ///< of a multiprocessor
};
static_assert(Tile::run % Bulk::tokens == 0);
using Ring = BulkRing<Tile::slots, 1, Tile::run>;
using Window4 = Window<Bulk::each, 1>;
using Taps4 = Taps<Bulk::each, 1>;

/// Tokens [t0, end) of one head. `normalised`: q and k.
template <bool normalised>
struct Run {
  const Call<device_bf16>& call;
  const CUtensorMap& proj;
  const Head& head;
  Ring& ring;
  device_bf16* out;  ///< of token t0 and the lane's first channel; null: not wanted
  float* rstd_out;   ///< of token t0; null: not wanted
  int t0, end, lane;

  /// Has a group copied. One lane's.
  __device__ void start(int group, int slot) const {
    ptx::mbarrier_expect(ring.barrier(slot), Bulk::group_bytes);
    ptx::copy_box(ring.address(slot, 0), &proj, head.column, t0 + group * Bulk::tokens, ring.barrier(slot));
  }

  /// What is left to do with u = silu(c) of the token `at` places behind t0.
  __device__ void finish(Four& u, int at) const {
    if (normalised) {
      const float squares = u[0] * u[0] + u[1] * u[1] + u[2] * u[2] + u[3] * u[3];
      const float rstd = rsqrtf(lanes_sum(squares) + static_cast<float>(gdn_l2norm_eps));
      if (rstd_out && lane == 0) rstd_out[static_cast<int64_t>(at) * call.key_heads] = rstd;
#pragma unroll
      for (int i = 0; i < Bulk::each; ++i) u[i] *= rstd;
    }
    if (out) write_four(out + at * head.row, u);
  }

  __device__ void whole_unit(Window4& window, const Taps4& taps, const unsigned char* rows, int at) const {
    Four u[Bulk::unit];
#pragma unroll
    for (int a = 0; a < Bulk::unit; ++a) {
      Four now;
      read_four(now, rows, 0, a);
#pragma unroll
      for (int i = 0; i < Bulk::each; ++i) {
        const float c = window.convolve(taps, 0, i, now[i]);
        window.move(0, i, now[i]);
        u[a][i] = c * sigmoid_for<device_bf16>(c);
      }
    }
#pragma unroll
    for (int a = 0; a < Bulk::unit; ++a) finish(u[a], at + a);
  }
  __device__ void mixed_unit(Window4& window, const Taps4& taps, const unsigned char* rows, int at,
                             unsigned starts) const {
#pragma unroll 1
    for (int a = 0; a < Bulk::unit && t0 + at + a < end; ++a) {
      if (starts >> a & 1) window.clear();
      Four now, u;
      read_four(now, rows, 0, a);
#pragma unroll
      for (int i = 0; i < Bulk::each; ++i) {
        const float c = window.convolve(taps, 0, i, now[i]);
        window.move(0, i, now[i]);
        u[i] = c * sigmoid_for<device_bf16>(c);
      }
      finish(u, at + a);
    }
  }

  __device__ void operator()() const {
    const int groups = (end - t0 + Bulk::tokens - 1) / Bulk::tokens;
    if (lane == 0) {
      for (int group = 0; group < Tile::slots; ++group) {
        if (group < groups) start(group, group);
      }
    }
    const Taps4 taps(call, head, lane);
    Window4 window(call, head, t0, lane);
    ring.mark(call.positions, nullptr, 0, t0, call.tokens, lane);
    typename Ring::Place place;
    for (int group = 0; group < groups; ++group) {
      ring.wait(place);
      const unsigned char* rows = ring.lane_rows(place.slot, lane);
#pragma unroll 1
      for (int half = 0; half < Bulk::tokens; half += Bulk::unit) {
        const int at = group * Bulk::tokens + half;
        const unsigned starts = ring.starts[at / Bulk::unit];
        if (starts == 0 && t0 + at + Bulk::unit <= end) {
          whole_unit(window, taps, rows, at);
        } else {
          mixed_unit(window, taps, rows, at, starts);
        }
        rows += Bulk::unit_bytes;
      }
      ptx::fence_bulk_copies();  // what the lanes have read may be written over
      __syncwarp();
      if (lane == 0 && group + Tile::slots < groups) start(group + Tile::slots, place.slot);
      place.next();
    }
  }
};

/// Grid: `gate_blocks` blocks of gates, then runs of tokens times groups of heads, the groups fastest.
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    bulk_forward_kernel(const __grid_constant__ Call<device_bf16> call,
                        const __grid_constant__ CUtensorMap proj,
                        const __grid_constant__ Outputs<device_bf16> out, int gate_blocks, int head_groups) {
  if (static_cast<int>(blockIdx.x) < gate_blocks) {
    forward_gates<Tile::threads>(
        call, out, static_cast<int64_t>(blockIdx.x) * GateTile::each * Tile::threads + threadIdx.x);
    return;
  }
  unsigned char* const memory = dynamic_shared<unsigned char>();
  const uint32_t rest = ptx::shared_address(memory) % Bulk::alignment;
  Ring* const rings = reinterpret_cast<Ring*>(memory + (Bulk::alignment - rest) % Bulk::alignment);
  const int block = static_cast<int>(blockIdx.x) - gate_blocks;
  const int warp = static_cast<int>(threadIdx.x) / warp_size,
            lane = static_cast<int>(threadIdx.x) % warp_size;
  const int number = block % head_groups * Tile::warps + warp;
  if (number >= call.heads()) return;
  const Head head(call, number);
  device_bf16* to = head.kind == Kind::q ? out.q : head.kind == Kind::k ? out.k : out.v;
  float* rstd = head.kind == Kind::q ? out.q_rstd : head.kind == Kind::k ? out.k_rstd : nullptr;
  if (!to && !rstd) return;
  Ring& ring = rings[warp];
  ring.init(lane);
  const int t0 = block / head_groups * Tile::run, end = min(t0 + Tile::run, call.tokens);
  if (to) to += t0 * head.row + head.index * Bulk::dim + lane * Bulk::each;
  if (rstd) rstd += static_cast<int64_t>(t0) * call.key_heads + head.index;
  if (head.kind == Kind::v) {
    Run<false>{call, proj, head, ring, to, rstd, t0, end, lane}();
  } else {
    Run<true>{call, proj, head, ring, to, rstd, t0, end, lane}();
  }
}

}  // namespace

void gdn_prologue_forward_bulk(Stream& stream, Tensor q_THK, Tensor k_THK, Tensor v_THV, Tensor g_TH,
                               Tensor beta_TH, Tensor q_rstd_TH, Tensor k_rstd_TH, CTensor proj_TN,
                               CTensor conv_CW, CTensor A_log_H, CTensor dt_bias_H, const Segments& segments,
                               GdnShape shape) {
  using T = device_bf16;
  if (proj_TN.dim(0) == 0) return;
  if (!aligned16(q_THK.data, k_THK.data, v_THV.data, proj_TN.data, conv_CW.data)) {
    gdn_prologue_forward(stream, q_THK, k_THK, v_THV, g_TH, beta_TH, q_rstd_TH, k_rstd_TH, proj_TN, conv_CW,
                         A_log_H, dt_bias_H, segments, shape);
    return;
  }
  const auto call = make_call<T>(proj_TN, conv_CW, A_log_H, dt_bias_H, segments, shape);
  const Outputs<T> out{wanted<T>(q_THK),         wanted<T>(k_THK),         wanted<T>(v_THV),
                       wanted<float>(q_rstd_TH), wanted<float>(k_rstd_TH), wanted<float>(g_TH),
                       wanted<float>(beta_TH)};
  const unsigned gate_blocks =
      out.g || out.beta ? blocks_for(proj_TN.dim(0) * shape.value_heads, GateTile::each * Tile::threads) : 0;
  const unsigned head_groups = blocks_for(call.heads(), Tile::warps);
  const unsigned blocks = gate_blocks + head_groups * blocks_for(call.tokens, Tile::run);
  launch_shared(stream, {"gdn_prologue_forward", proj_TN}, bulk_forward_kernel, dim3(blocks),
                dim3(Tile::threads), Tile::warps * sizeof(Ring) + Bulk::alignment, call,
                row_tiles(proj_TN, Bulk::dim, Bulk::tokens), out, static_cast<int>(gate_blocks),
                static_cast<int>(head_groups));
}

}  // namespace deltatune::cuda
