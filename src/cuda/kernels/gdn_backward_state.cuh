// The reverse scan of the fast gated_delta backward: Z of every token and R leaving every full chunk, chunk
// by chunk from the end of each document. Formulas: gdn_backward.cuh.
//
// A block of 4 warps holds 64 of the 128 columns of R of one value head, transposed ([v, k], warp w the 16
// rows from 16 w, fp32 in registers), so that the left operand of every product on the serial chain is the
// product before it, rounded to bf16 in registers:
//     dD^T = R^T K^T diag(end) + dO^T P,   Z^T = dD^T T',   R^T <- gam_C R^T + dU^T K + (s gam o dO)^T Q
// Only P and T' pass through shared memory. K, Q and dO of the next chunk are copied while one is computed.
// Two blocks a multiprocessor (on sm_90) fill each other's gaps. Blocks take (document, head, half) items
// from a counter, longest document first: which block takes an item changes nothing in its result.
#pragma once

#include "cuda/kernels/gdn_backward.cuh"

namespace deltatune::cuda::gdn_backward {

struct StateTile {
  static constexpr int threads = 128;
  static constexpr int half = 64;  ///< columns of dv per block
  // Bytes of shared memory.
  static constexpr int keys = chunk * dim * 2;
  static constexpr int square = chunk * chunk * 2;
  static constexpr int stage = 2 * keys + square;  ///< K, Q, half of dO
  static constexpr int vectors = 4 * chunk * 4;    ///< G, end, s gam, -gam beta
  static constexpr int barriers = 16;              ///< one per stage
  static constexpr int shared = 1024 + 2 * (stage + vectors) + 2 * square + barriers;
};

/// Shared memory of state_kernel: two stages of inputs, P, T'.
struct StateShared {
  uint32_t base;  ///< of the panels
  float* floats;  ///< behind them, then the barriers

  __device__ Panel<chunk> keys(int stage) const { return Panel<chunk>(base + stage * StateTile::stage); }
  __device__ Panel<chunk> queries(int stage) const {
    return Panel<chunk>(base + stage * StateTile::stage + StateTile::keys);
  }
  __device__ Panel<chunk> dout(int stage) const {
    return Panel<chunk>(base + stage * StateTile::stage + 2 * StateTile::keys);
  }
  __device__ Panel<chunk> scores() const { return Panel<chunk>(base + 2 * StateTile::stage); }
  __device__ Panel<chunk> inverse() const {
    return Panel<chunk>(base + 2 * StateTile::stage + StateTile::square);
  }
  __device__ uint32_t barrier(int stage) const {
    return base + 2 * (StateTile::stage + StateTile::square + StateTile::vectors) + 8 * stage;
  }
  __device__ float* vectors(int stage) const { return floats + stage * (StateTile::vectors / 4); }
};

/// One (document, head, half) item.
struct StateItem {
  int first_chunk, first_token, tokens, head, half;

  __device__ StateItem(const Call& call, int item) {
    const int parts = 2 * call.value_heads;
    const int4 document = reinterpret_cast<const int4*>(call.order)[item / parts];
    first_chunk = document.x;
    first_token = document.y;
    tokens = document.z;
    head = item % parts / 2;
    half = item % 2;
  }
  __device__ int token(int number) const { return first_token + number * chunk; }
  __device__ int length(int number) const { return min(chunk, tokens - number * chunk); }
};

template <bool Bulk>
__device__ inline void copy_state_inputs(const Call& call, const StateItem& item, const StateShared& shared,
                                         int stage, int number) {
  constexpr int threads = StateTile::threads;
  const int t0 = item.token(number), key_head = item.head / call.ratio;
  if constexpr (Bulk) {
    if (threadIdx.x != 0) return;
    const uint32_t barrier = shared.barrier(stage), to = shared.base + stage * StateTile::stage;
    ptx::mbarrier_expect(barrier, StateTile::stage);
    copy_boxes<2>(to, call.k_map, key_head, t0, barrier);
    copy_boxes<2>(to + StateTile::keys, call.q_map, key_head, t0, barrier);
    ptx::copy_box(to + 2 * StateTile::keys, &call.d_o_map, item.half * StateTile::half, item.head, t0,
                  barrier);
  } else {
    const int n = item.length(number), end = item.tokens > 16 ? chunk : 16;
    const int64_t key_row = call.key_row(t0, key_head);
    copy_rows<threads, 16>(shared.keys(stage), call.k + key_row, call.key_heads * dim, n, end);
    copy_rows<threads, 16>(shared.queries(stage), call.q + key_row, call.key_heads * dim, n, end);
    copy_rows<threads, 8>(shared.dout(stage),
                          call.d_o + call.value_row(t0, item.head) + item.half * StateTile::half,
                          call.value_heads * dim, n, end);
    ptx::cp_async_commit();
  }
}

/// The inputs are there, with zeros behind the document's end, once the block has passed a barrier after it.
/// `parity`: of both stages' barriers, in bits 0 and 1.
template <bool Bulk>
__device__ inline void wait_state_inputs(const StateItem& item, const StateShared& shared, int stage,
                                         int number, uint32_t& parity) {
  constexpr int threads = StateTile::threads;
  if constexpr (Bulk) {
    ptx::mbarrier_wait(shared.barrier(stage), static_cast<int>(parity >> stage & 1));
    parity ^= 1u << stage;
    const int n = item.length(number);
    if (n == chunk) return;
    clear_rows<threads, 16>(shared.keys(stage), n);
    clear_rows<threads, 16>(shared.queries(stage), n);
    clear_rows<threads, 8>(shared.dout(stage), n);
  } else {
    ptx::cp_async_wait<0>();
  }
}

/// G and beta of tokens 2l and 2l + 1 of a chunk, for lane l.
struct Gates {
  float2 G, beta;
  __device__ void load(const Call& call, const StateItem& item, int number) {
    const int64_t at = static_cast<int64_t>(item.first_chunk + number) * call.value_heads + item.head;
    const float2* const from =
        reinterpret_cast<const float2*>(call.gates + at * 2 * chunk) + threadIdx.x % 32;
    G = from[0];
    beta = from[chunk / 2];
  }
};

/// By one warp: the vectors of a chunk.
__device__ inline void store_vectors(float* vectors, const Gates& gates) {
  const float last = __shfl_sync(0xffffffffu, gates.G.y, 31), scale = rsqrtf(static_cast<float>(dim));
  const float gam0 = ptx::exp2(gates.G.x), gam1 = ptx::exp2(gates.G.y);
  float2* const out = reinterpret_cast<float2*>(vectors) + threadIdx.x % 32;
  out[0] = gates.G;
  out[chunk / 2] = {ptx::exp2(last - gates.G.x), ptx::exp2(last - gates.G.y)};
  out[chunk] = {scale * gam0, scale * gam1};
  out[3 * chunk / 2] = {-gam0 * gates.beta.x, -gam1 * gates.beta.y};
}

/// T and q_i . k_j of a chunk on their way through registers: thread x of every 128 holds pieces of 8
/// columns.
struct Squares {
  static constexpr int parts = chunk * 8 / StateTile::threads;
  uint4 inverse[parts], scores[parts];

  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / 8 + i * (chunk / parts); }
  __device__ static int piece() { return static_cast<int>(threadIdx.x) % 8; }
  /// Column blocks of 16 above the diagonal are not looked at.
  __device__ static bool used(int i) { return piece() / 2 <= row(i) / 16; }
  __device__ static int64_t offset(int i) { return row(i) * chunk + 8 * piece(); }

  __device__ void load(const Call& call, const StateItem& item, int number) {
    const int64_t c = item.first_chunk + number;
    const bf16* const t = call.inverse + (c * call.value_heads + item.head) * chunk * chunk;
    const __half* const s = call.scores + (c * call.key_heads + item.head / call.ratio) * chunk * chunk;
#pragma unroll
    for (int i = 0; i < parts; ++i) {
      if (!used(i)) continue;
      inverse[i] = *reinterpret_cast<const uint4*>(t + offset(i));
      scores[i] = *reinterpret_cast<const uint4*>(s + offset(i));
    }
  }
  /// P and T' to shared memory.
  __device__ void store(const StateShared& shared, const float* G) const {
    const float scale = rsqrtf(static_cast<float>(dim));
    const float4* const from = reinterpret_cast<const float4*>(G + 8 * piece());
    const float4 first = from[0], second = from[1];
    const float Gj[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
    for (int i = 0; i < parts; ++i) {
      if (!used(i)) continue;
      const float Gi = G[row(i)];
      const uint32_t t[4] = {inverse[i].x, inverse[i].y, inverse[i].z, inverse[i].w};
      const uint32_t s[4] = {scores[i].x, scores[i].y, scores[i].z, scores[i].w};
      uint32_t t_out[4], s_out[4];
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const int j = 8 * piece() + 2 * p;
        const float left = decay(Gi, Gj[2 * p], row(i) >= j), right = decay(Gi, Gj[2 * p + 1], row(i) > j);
        t_out[p] = ptx::pack_bf16(low(t[p]) * left, high(t[p]) * right);
        const float2 qk = widen_f16(s[p]);
        s_out[p] = ptx::pack_bf16(qk.x * (scale * left), qk.y * (scale * right));
      }
      ptx::store_shared_16(shared.inverse().piece(row(i), piece()), t_out);
      ptx::store_shared_16(shared.scores().piece(row(i), piece()), s_out);
    }
  }
};

/// The columns of R^T that a warp holds, as C tiles of 8 keys.
using StateColumns = float[16][4];

/// dD^T = R^T K^T; stores R for the products of the chunk.
__device__ inline void read_state(float (&dd)[8][4], const StateColumns& state, const Panel<chunk>& keys,
                                  bf16* __restrict__ leaving, int half) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t* const out = reinterpret_cast<uint32_t*>(leaving) + (half * 8 + warp * 2) * 16 * 32 + lane;
#pragma unroll
  for (int ks = 0; ks < 8; ++ks) {
    const float(&left)[4] = state[2 * ks], (&right)[4] = state[2 * ks + 1];
    const uint32_t a[4] = {ptx::pack_bf16(left[0], left[1]), ptx::pack_bf16(left[2], left[3]),
                           ptx::pack_bf16(right[0], right[1]), ptx::pack_bf16(right[2], right[3])};
#pragma unroll
    for (int i = 0; i < 4; ++i) out[(i % 2 * 16 + 2 * ks + i / 2) * 32] = a[i];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      uint32_t b[4];
      keys.b(b, 16 * m, 2 * ks);
      multiply(dd[2 * m], dd[2 * m + 1], a, b);
    }
  }
}

/// c += a X for a lower triangular X [64, 64]: a's 64 columns as C tiles of 8.
template <int Blocks>
__device__ inline void times_triangle(float (&c)[8][4], const uint32_t (&a)[4][4], const Panel<chunk>& x) {
#pragma unroll
  for (int ks = 0; ks < Blocks; ++ks) {
#pragma unroll
    for (int m = 0; m <= ks; ++m) {
      uint32_t b[4];
      x.b_transposed(b, 16 * ks, 2 * m);
      multiply(c[2 * m], c[2 * m + 1], a[ks], b);
    }
  }
}

/// state += a X for X [64, 128].
__device__ inline void add_outer(StateColumns& state, const uint32_t (&a)[4][4], const Panel<chunk>& x) {
#pragma unroll
  for (int ks = 0; ks < 4; ++ks) {
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      uint32_t b[4];
      x.b_transposed(b, 16 * ks, 2 * m);
      multiply(state[2 * m], state[2 * m + 1], a[ks], b);
    }
  }
}

/// A fragments of 16 x 64 from C tiles, column j scaled by scale[j].
__device__ inline void round_columns(uint32_t (&a)[4][4], const float (&c)[8][4], const float* scale) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int m = 0; m < 8; ++m) {
    const float2 f = scale ? *reinterpret_cast<const float2*>(scale + 8 * m + 2 * t) : float2{1.0f, 1.0f};
    a[m / 2][m % 2 * 2] = ptx::pack_bf16(c[m][0] * f.x, c[m][1] * f.y);
    a[m / 2][m % 2 * 2 + 1] = ptx::pack_bf16(c[m][2] * f.x, c[m][3] * f.y);
  }
}

/// One chunk behind its barrier: everything that needs P and T'. Blocks: of 16 tokens.
template <int Blocks>
__device__ inline void step_back(const Call& call, const StateItem& item, const StateShared& shared,
                                 int stage, int number, StateColumns& state, float (&dd)[8][4]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int n = item.length(number), t = lane % 4;
  const float* const end = shared.vectors(stage) + chunk;
  uint32_t dout[4][4];
#pragma unroll
  for (int ks = 0; ks < Blocks; ++ks) shared.dout(stage).a_transposed(dout[ks], 16 * ks, 2 * warp);
#pragma unroll
  for (int m = 0; m < 8; ++m) {
    const float2 f = *reinterpret_cast<const float2*>(end + 8 * m + 2 * t);
    dd[m][0] *= f.x;
    dd[m][1] *= f.y;
    dd[m][2] *= f.x;
    dd[m][3] *= f.y;
  }
  times_triangle<Blocks>(dd, dout, shared.scores());
  uint32_t a[4][4];
  round_columns(a, dd, nullptr);
  float z[8][4] = {};
  times_triangle<Blocks>(z, a, shared.inverse());
  bf16* const out = call.z + call.value_row(item.token(number), item.head) + item.half * StateTile::half +
                    16 * warp + 2 * t;
#pragma unroll
  for (int m = 0; m < 8; ++m) {
    const int row = 8 * m + lane / 4;
    const uint32_t first = ptx::transpose_8x8(ptx::pack_bf16(z[m][0], z[m][1]));
    const uint32_t second = ptx::transpose_8x8(ptx::pack_bf16(z[m][2], z[m][3]));
    if (row >= n) continue;
    uint32_t* const to =
        reinterpret_cast<uint32_t*>(out + static_cast<int64_t>(row) * call.value_heads * dim);
    to[0] = first;
    to[4] = second;
  }
  if (Blocks < 4 || number == 0) return;
  // The last decay of the chunk is end[0] gam[0]; as s gam and -gam beta are at hand, gam_C comes from G.
  const float total = ptx::exp2(shared.vectors(stage)[chunk - 1]);
#pragma unroll
  for (auto& tile : state) {
#pragma unroll
    for (float& x : tile) x *= total;
  }
  round_columns(a, z, shared.vectors(stage) + 3 * chunk);
  add_outer(state, a, shared.keys(stage));
  const float* const out_scale = shared.vectors(stage) + 2 * chunk;
#pragma unroll
  for (int ks = 0; ks < 4; ++ks) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 f = *reinterpret_cast<const float2*>(out_scale + 16 * ks + i / 2 * 8 + 2 * t);
      dout[ks][i] = ptx::pack_bf16(low(dout[ks][i]) * f.x, high(dout[ks][i]) * f.y);
    }
  }
  add_outer(state, dout, shared.queries(stage));
}

/// One item: its chunks in reverse.
template <bool Bulk>
__device__ inline void scan_back(const Call& call, const StateItem& item, const StateShared& shared,
                                 uint32_t& parity) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int last = (item.tokens - 1) / chunk;
  Gates gates;
  copy_state_inputs<Bulk>(call, item, shared, last & 1, last);
  if (warp == 0) {
    gates.load(call, item, last);
    store_vectors(shared.vectors(last & 1), gates);
  }
  StateColumns state = {};
  for (int number = last; number >= 0; --number) {
    const int stage = number & 1;
    wait_state_inputs<Bulk>(item, shared, stage, number, parity);
    __syncthreads();
    if (number > 0) {
      copy_state_inputs<Bulk>(call, item, shared, stage ^ 1, number - 1);
      if (warp == 0) gates.load(call, item, number - 1);
    }
    Squares squares;
    squares.load(call, item, number);
    float dd[8][4] = {};
    if (number < last) {
      read_state(dd, state, shared.keys(stage), call.leaving_of(item.token(number), item.head), item.half);
    }
    squares.store(shared, shared.vectors(stage));
    if (number > 0 && warp == 0) store_vectors(shared.vectors(stage ^ 1), gates);
    __syncthreads();
    if (item.tokens > 16) {
      step_back<4>(call, item, shared, stage, number, state, dd);
    } else {
      step_back<1>(call, item, shared, stage, number, state, dd);
    }
  }
}

/// Grid: as many blocks as fit the GPU; each takes items until none is left.
template <bool Bulk>
__global__ void __launch_bounds__(StateTile::threads, 2) state_kernel(const __grid_constant__ Call call) {
  __shared__ int taken;
  unsigned char* const memory = dynamic_shared<unsigned char>();
  const uint32_t address = ptx::shared_address(memory), base = (address + 1023) & ~1023u;
  constexpr int panels = 2 * StateTile::stage + 2 * StateTile::square;
  const StateShared shared{base, reinterpret_cast<float*>(memory + (base - address) + panels)};
  const int items = call.order[4 * call.max_documents] * 2 * call.value_heads;
  if (Bulk && threadIdx.x == 0) {
    ptx::mbarrier_init(shared.barrier(0), 1);
    ptx::mbarrier_init(shared.barrier(1), 1);
  }
  uint32_t parity = 0;
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) taken = atomicAdd(call.order + 4 * call.max_documents + 1, 1);
    __syncthreads();
    const int item = taken;
    if (item >= items) return;
    scan_back<Bulk>(call, StateItem(call, item), shared, parity);
  }
}

}  // namespace deltatune::cuda::gdn_backward
