// qk_norm_rope for sm_90: the formulas of rope.cu with heads that come through shared memory. bf16, heads of
// 256, rotary halves of a multiple of 8.
//
// A block makes the angles of its tokens once; each of its warps takes whole tokens (forward: one), the q
// heads of all of them first. A warp's heads come by the bulk copy engine, some heads ahead, into a ring of
// its own: it waits for nothing but its own copies, and lane l has elements 8 l .. 8 l + 7. Sums for the norm
// weights go over a warp's heads, its block's warps and the blocks, in order.
#include "cuda/kernels/rope.cuh"
#include "cuda/kernels/shared.cuh"
#include "cuda/pack.cuh"
#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/mma.cuh"

namespace deltatune::cuda {
namespace {

using namespace rope;

struct Tile {
  static constexpr int dim = 256;
  static constexpr int each = dim / warp_size;  ///< of a lane
  static constexpr int row_bytes = dim * 2;
  static constexpr int warps = 8;
  static constexpr int threads = warps * warp_size;
  static constexpr int slots = 3;            ///< heads of a warp under way
  static constexpr int forward_blocks = 4;   ///< of a multiprocessor
  static constexpr int backward_blocks = 4;  ///< the same
  static constexpr int forward_tokens = 8;
  static constexpr int tokens = scratch::cuda_norm_block;
};
static_assert(Tile::threads == Rope::threads);
using T = device_bf16;
using Eight = float[Tile::each];

/// Where a warp is in its heads: tokens warp, warp + 8, ... of the block, q heads of all before k heads.
struct Place {
  int kind = 0, head = 0, token, slot = 0, parity = 0;

  __device__ explicit Place(int warp) : token(warp) {}
  __device__ void next(const Call<T>& call, int warp, int tokens) {
    if (++head == (kind == 0 ? call.query_heads : call.kv_heads)) {
      head = 0;
      token += Tile::warps;
      if (token >= tokens) {
        token = warp;
        ++kind;
      }
    }
    const bool last = ++slot == Tile::slots;
    slot = last ? 0 : slot;
    parity ^= last;
  }
  /// Among all heads of a token.
  __device__ int of_all(const Call<T>& call) const { return kind == 0 ? head : call.query_heads + head; }
};

/// A warp's ring: `arrays` rows of each slot.
template <int arrays>
struct Ring {
  alignas(128) unsigned char rows[Tile::slots][arrays][Tile::row_bytes];
  uint64_t barriers[Tile::slots];

  __device__ void init(int lane) {
    if (lane < Tile::slots) ptx::mbarrier_init(ptx::shared_address(barriers + lane), 1);
    __syncwarp();
  }
  __device__ void start(int slot, const T* first, const T* second) {
    const uint32_t barrier = ptx::shared_address(barriers + slot);
    ptx::mbarrier_expect(barrier, arrays * Tile::row_bytes);
    ptx::copy_bytes(ptx::shared_address(rows[slot][0]), first, Tile::row_bytes, barrier);
    if constexpr (arrays > 1)
      ptx::copy_bytes(ptx::shared_address(rows[slot][1]), second, Tile::row_bytes, barrier);
  }
  __device__ void wait(int slot, int parity) const {
    ptx::mbarrier_wait(ptx::shared_address(barriers + slot), parity);
  }
  /// By the warp, between its last use of a slot and start() for it. To be called where what was read has
  /// been computed with: a load that is still under way may be overtaken by the copy.
  __device__ static void give_back() {
    ptx::fence_bulk_copies();
    __syncwarp();
  }
};

/// Eight elements from 8 on `place`, as fp32.
__device__ inline void read_eight(Eight& x, const void* row, int place) {
  const uint4 pairs = static_cast<const uint4*>(row)[place];
  const uint32_t words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = __uint_as_float(words[i] << 16);
    x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}
__device__ inline void write_eight(T* row, int place, const Eight& x) {
  reinterpret_cast<uint4*>(row)[place] = make_uint4(ptx::pack_bf16(x[0], x[1]), ptx::pack_bf16(x[2], x[3]),
                                                    ptx::pack_bf16(x[4], x[5]), ptx::pack_bf16(x[6], x[7]));
}
/// 1 + w of a norm weight.
__device__ inline void read_weight(Eight& w, const T* weight, int place) {
  read_eight(w, weight, place);
#pragma unroll
  for (int i = 0; i < Tile::each; ++i) w[i] += 1.0f;
}

/// A lane's part of the rotation: which elements, and where the other halves of their pairs are.
struct Turn {
  bool turned;  ///< the lane's elements are in the rotary part
  bool low;     ///< in its first half
  int partner;  ///< in units of 8 elements
  int pair;     ///< of the first element

  __device__ Turn(const Call<T>& call, int lane) {
    const int j = lane * Tile::each;
    turned = j < call.rotary;
    low = j < call.half();
    partner = turned ? call.partner(j) / Tile::each : lane;
    pair = turned ? call.pair(j) : 0;
  }
};

/// Grid: blocks of tokens, a token for each warp. Of a token and a norm weight everything but x and rstd is
/// the same for all heads: y_i = rstd (x_i own_i + x_partner(i) other_i), own = (1 + w) cos, other = -+(1 + w
/// of the partner) sin; own = 1 + w, other = 0 outside the rotary part.
__global__ void __launch_bounds__(Tile::threads, Tile::forward_blocks)
    bulk_forward_kernel(const __grid_constant__ Call<T> call, T* __restrict__ q, T* __restrict__ k,
                        float* __restrict__ q_rstd, float* __restrict__ k_rstd, float eps) {
  static_assert(Tile::forward_tokens == Tile::warps);
  __shared__ Ring<1> rings[Tile::warps];
  float2* const angles = dynamic_shared<float2>();  // [tokens, half]
  const int lane = static_cast<int>(threadIdx.x) % warp_size,
            warp = static_cast<int>(threadIdx.x) / warp_size;
  const int64_t t0 = static_cast<int64_t>(blockIdx.x) * Tile::forward_tokens, t = t0 + warp;
  const int tokens = static_cast<int>(min(static_cast<int64_t>(Tile::forward_tokens), call.tokens - t0));
  Ring<1>& ring = rings[warp];
  ring.init(lane);
  const int all_heads = warp < tokens ? call.heads() : 0;
  int next = 0, next_slot = 0;  // head to be copied
  const auto start = [&] {
    if (next == all_heads) return;
    if (lane == 0) ring.start(next_slot, call.proj + t * call.columns + call.column(next), nullptr);
    ++next;
    next_slot = next_slot + 1 == Tile::slots ? 0 : next_slot + 1;
  };
  for (int i = 0; i < Tile::slots; ++i) start();
  make_angles(angles, call, t0, tokens);
  if (all_heads == 0) return;
  const Turn turn(call, lane);
  const float2* const angle = angles + warp * call.half() + turn.pair;
  int slot = 0, parity = 0;
#pragma unroll 1
  for (int kind = 0; kind < 2; ++kind) {
    const T* const weight = kind == 0 ? call.q_norm : call.k_norm;
    Eight own, other = {};
    read_weight(own, weight, lane);
    if (turn.turned) {
      read_weight(other, weight, turn.partner);
#pragma unroll
      for (int i = 0; i < Tile::each; ++i) {
        const float2 turned_by = angle[i];
        own[i] *= turned_by.x;
        other[i] *= turn.low ? -turned_by.y : turned_by.y;
      }
    }
    const int heads = kind == 0 ? call.query_heads : call.kv_heads;
    T* to = (kind == 0 ? q : k) + t * heads * Tile::dim;
    float* const rstd_out = kind == 0 ? q_rstd : k_rstd;
#pragma unroll 1
    for (int head = 0; head < heads; ++head, to += Tile::dim) {
      ring.wait(slot, parity);
      Eight x, partner;
      read_eight(x, ring.rows[slot][0], lane);
      read_eight(partner, ring.rows[slot][0], turn.partner);
      const bool last = ++slot == Tile::slots;
      slot = last ? 0 : slot;
      parity ^= last;
      float squares = 0;
#pragma unroll
      for (int i = 0; i < Tile::each; ++i) squares += x[i] * x[i];
      const float rstd = rsqrtf(lanes_sum(squares) / static_cast<float>(Tile::dim) + eps);
#pragma unroll
      for (int i = 0; i < Tile::each; ++i) x[i] = (x[i] * own[i] + partner[i] * other[i]) * rstd;
      write_eight(to, lane, x);
      if (rstd_out && lane == 0) rstd_out[t * heads + head] = rstd;
      ring.give_back();
      start();
    }
  }
}

/// Shared memory of a backward block, then angles [tokens, half], then rstd of q [tokens, Hq] and of k.
struct BackwardShared {
  Ring<2> rings[Tile::warps];
  float sums[2][Tile::warps][Tile::dim];
};

/// Grid: blocks of tokens. partial: [blocks, 2, dim], dq_norm and dk_norm.
__global__ void __launch_bounds__(Tile::threads, Tile::backward_blocks)
    bulk_backward_kernel(const __grid_constant__ Call<T> call, const __grid_constant__ Gradients<T> x,
                         T* __restrict__ dproj, float* __restrict__ partial) {
  unsigned char* memory = dynamic_shared<unsigned char>();
  memory += (128 - ptx::shared_address(memory) % 128) % 128;
  BackwardShared& shared = *reinterpret_cast<BackwardShared*>(memory);
  float2* const angles = reinterpret_cast<float2*>(&shared + 1);
  float* const rstds = reinterpret_cast<float*>(angles + Tile::tokens * call.half());
  const int lane = static_cast<int>(threadIdx.x) % warp_size,
            warp = static_cast<int>(threadIdx.x) / warp_size;
  const int64_t t0 = static_cast<int64_t>(blockIdx.x) * Tile::tokens;
  const int tokens = static_cast<int>(min(static_cast<int64_t>(Tile::tokens), call.tokens - t0));
  Ring<2>& ring = shared.rings[warp];
  ring.init(lane);
  Place ahead(warp), at(warp);
  if (warp >= tokens) at.kind = ahead.kind = 2;
  const auto start = [&] {
    if (ahead.kind == 2) return;
    const int head = ahead.of_all(call);
    const int64_t t = t0 + ahead.token;
    if (lane == 0)
      ring.start(ahead.slot, call.proj + t * call.columns + call.column(head),
                 (ahead.kind == 0 ? x.dq : x.dk) + call.row(t, head) * Tile::dim);
    ahead.next(call, warp, tokens);
  };
  for (int i = 0; i < Tile::slots; ++i) start();
  const int q_count = tokens * call.query_heads, count = tokens * call.heads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += Tile::threads) {
    rstds[i] = i < q_count ? x.q_rstd[t0 * call.query_heads + i] : x.k_rstd[t0 * call.kv_heads + i - q_count];
  }
  make_angles(angles, call, t0, tokens);
  const Turn turn(call, lane);
  const float sign = turn.low ? 1.0f : -1.0f;
#pragma unroll 1
  for (int kind = 0; kind < 2; ++kind) {
    Eight w, dw = {};
    read_weight(w, kind == 0 ? call.q_norm : call.k_norm, lane);
    for (; at.kind == kind; at.next(call, warp, tokens)) {
      const int heads = kind == 0 ? call.query_heads : call.kv_heads;
      ring.wait(at.slot, at.parity);
      Eight d, n;
      read_eight(d, ring.rows[at.slot][1], lane);
      if (turn.turned) {  // back by the angle
        Eight other;
        read_eight(other, ring.rows[at.slot][1], turn.partner);
        const float2* const angle = angles + at.token * call.half() + turn.pair;
#pragma unroll
        for (int i = 0; i < Tile::each; ++i) {
          const float2 turned_by = angle[i];
          d[i] = d[i] * turned_by.x + sign * (other[i] * turned_by.y);
        }
      }
      read_eight(n, ring.rows[at.slot][0], lane);
      const float rstd = rstds[(kind == 0 ? 0 : q_count) + at.token * heads + at.head];
      float along = 0;
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
        write_eight(dproj + (t0 + at.token) * call.columns + call.column(at.of_all(call)), lane, d);
      }
      ring.give_back();
      start();
    }
    float4* const sums = reinterpret_cast<float4*>(shared.sums[kind][warp] + lane * Tile::each);
    sums[0] = make_float4(dw[0], dw[1], dw[2], dw[3]);
    sums[1] = make_float4(dw[4], dw[5], dw[6], dw[7]);
  }
  __syncthreads();
  for (int j = static_cast<int>(threadIdx.x); j < 2 * Tile::dim; j += Tile::threads) {
    const int kind = j / Tile::dim;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Tile::warps; ++i) sum += shared.sums[kind][i][j % Tile::dim];
    partial[static_cast<int64_t>(blockIdx.x) * 2 * Tile::dim + j] = sum;
  }
}

}  // namespace

void qk_norm_rope_forward_bulk(Stream& stream, Tensor q_THK, Tensor k_TGK, Tensor q_rstd_TH, Tensor k_rstd_TG,
                               CTensor proj_TN, CTensor q_norm_K, CTensor k_norm_K, CTensor positions_T,
                               CTensor inv_freq, AttentionShape shape, float eps) {
  if (proj_TN.dim(0) == 0) return;
  if (!aligned16(q_THK.data, k_TGK.data, proj_TN.data, q_norm_K.data, k_norm_K.data)) {
    qk_norm_rope_forward(stream, q_THK, k_TGK, q_rstd_TH, k_rstd_TG, proj_TN, q_norm_K, k_norm_K, positions_T,
                         inv_freq, shape, eps);
    return;
  }
  launch_shared(stream, {"qk_norm_rope_forward", proj_TN}, bulk_forward_kernel,
                dim3(blocks_for(proj_TN.dim(0), Tile::forward_tokens)), dim3(Tile::threads),
                static_cast<size_t>(Tile::forward_tokens * shape.rotary_dim / 2) * sizeof(float2),
                make_call<T>(proj_TN, q_norm_K, k_norm_K, positions_T, inv_freq, shape), pointer<T>(q_THK),
                pointer<T>(k_TGK), wanted<float>(q_rstd_TH), wanted<float>(k_rstd_TG), eps);
}

void qk_norm_rope_backward_bulk(Stream& stream, Tensor dproj_TN, Tensor dq_norm_K, Tensor dk_norm_K,
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
  const int64_t words = shape.rotary_dim + shape.query_heads + shape.kv_heads;  // angles and rstd of a token
  launch_shared(stream, {"qk_norm_rope_backward", proj_TN}, bulk_backward_kernel, dim3(blocks),
                dim3(Tile::threads),
                sizeof(BackwardShared) + 128 + static_cast<size_t>(Tile::tokens * words) * sizeof(float),
                make_call<T>(proj_TN, q_norm_K, k_norm_K, positions_T, inv_freq, shape), x,
                wanted<T>(dproj_TN), partial);
  const int64_t rows = blocks;
  add_partials(stream, {"qk_norm_rope_backward: weights", proj_TN},
               {wanted<float>(dq_norm_K), partial, Tile::dim, 2 * Tile::dim, rows},
               {wanted<float>(dk_norm_K), partial + Tile::dim, Tile::dim, 2 * Tile::dim, rows});
}

}  // namespace deltatune::cuda
