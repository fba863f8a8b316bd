// gated_delta forward on tensor cores (mma.sync), bf16 storage, dk = dv = 128, chunks of 64 tokens.
//
// After gdn_prepare (T, q_i . k_j, gates, order of documents) a block carries half the columns of S of one
// value head through one document. With S entering the chunk, G and Gam as in gdn_inverse.cuh, s = dk^-1/2:
//     W = V - e^G o (K S),  D = (Gam o T diag(beta)) W,  P = Gam o tril(Q K^T),
//     O = s (e^G o (Q S) + P D),  S' = e^(G_n) S + K^T (e^(G_n - G) o D).
// All exponents are <= 0. Everything is carried transposed: S^T [64 of dv, 128] lies in registers, 16 rows
// per warp, in fp32; each left operand is the bf16 rounding of the warp's last result, so the serial chain S
// -> K S -> W -> D -> S' passes neither shared memory nor a barrier. K, Q, V, T and Q K^T come from shared
// memory, two chunks in flight; T and Q K^T are multiplied by their gates in place, one chunk ahead.
//
// Documents are handed out longest first through a counter; which block takes one changes no bit of it.
#include "cuda/cuda_ops.h"
#include "cuda/kernels/gdn_scan.cuh"

namespace deltatune::cuda {
namespace gdn {
namespace {

struct Scan {
  static constexpr int threads = 128;
  static constexpr int columns = 64;  ///< of S per block
  static constexpr int slices = head_dim / columns;
  static constexpr int blocks = 264;  ///< at most; two fit on an SM of 228 KiB
  static constexpr int stage_bytes = 7 * tile_bytes;
  static constexpr int shared_bytes = 2 * stage_bytes + 16;
};

/// One chunk's operands in shared memory.
struct Stage {
  unsigned char* memory;
  uint32_t k, q, v, inverse, scores;

  __device__ Stage(unsigned char* base, int number) : memory(base + (number & 1) * Scan::stage_bytes) {
    k = ptx::shared_address(memory);
    q = k + 2 * tile_bytes;
    v = q + 2 * tile_bytes;
    inverse = v + tile_bytes;
    scores = inverse + tile_bytes;
  }
  __device__ PackedGates gates() const { return {memory + 5 * tile_bytes}; }
  __device__ unsigned char* inverse_tile() const { return memory + 5 * tile_bytes; }
  __device__ unsigned char* scores_tile() const { return memory + 6 * tile_bytes; }
};

/// A chunk of a document, and the half of dv.
struct Place {
  int64_t h, key_head, c, t0;
  int n, slice;
};

__device__ inline void load_stage(const ScanCall& call, const Stage& stage, const Place& at) {
  const int tid = static_cast<int>(threadIdx.x);
  const int64_t keys = call.key_heads * head_dim, values = call.value_heads * head_dim;
  load_rows<Scan::threads, 16>(stage.k, call.k + at.t0 * keys + at.key_head * head_dim, keys, at.n, tid);
  load_rows<Scan::threads, 16>(stage.q, call.q + at.t0 * keys + at.key_head * head_dim, keys, at.n, tid);
  load_rows<Scan::threads, 8>(stage.v, call.v + at.t0 * values + at.h * head_dim + at.slice * Scan::columns,
                              values, at.n, tid);
  load_lower<Scan::threads>(stage.inverse, call.inverse + (at.c * call.value_heads + at.h) * square, tid);
  load_lower<Scan::threads>(stage.scores, call.scores + (at.c * call.key_heads + at.key_head) * square, tid);
  if (tid < 32) {
    const float* const gates = call.gates + (at.c * call.value_heads + at.h) * 2 * chunk;
    const auto which = tid < 16 ? Gates::log_decay : Gates::beta;
    ptx::cp_async_16(stage.inverse + PackedGates::offset(which, (tid & 15) * 4), gates + tid * 4);
  }
}

/// The chunk of `stage`, n tokens from t0: writes o, takes S (transposed) to the end of the chunk. `state`:
/// where S entering the chunk goes, at this warp's columns; null: nowhere.
__device__ inline void walk_chunk(const ScanCall& call, const Stage& stage, float (&s)[16][4], device_bf16* o,
                                  device_bf16* state, int n, bool first, bool last) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const PackedGates gates = stage.gates();
  float out[8][4] = {};
  uint32_t w[4][4];
  {
    float u[8][4] = {};
    if (!first) {
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        uint32_t a[4];
        as_left(a, s[2 * step], s[2 * step + 1]);
        if (state) store_state(state, a, step);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t b[4];
          ptx::ldmatrix_x4(b, across_address(stage.k, 16 * i, step));
          ptx::mma_bf16(u[2 * i], a, b[0], b[1]);
          ptx::mma_bf16(u[2 * i + 1], a, b[2], b[3]);
          ptx::ldmatrix_x4(b, across_address(stage.q, 16 * i, step));
          ptx::mma_bf16(out[2 * i], a, b[0], b[1]);
          ptx::mma_bf16(out[2 * i + 1], a, b[2], b[3]);
        }
      }
    } else if (state) {
      const uint32_t zero[4] = {};
#pragma unroll
      for (int step = 0; step < 8; ++step) store_state(state, zero, step);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t v[4];
      ptx::ldmatrix_x4_trans(v, across_address(stage.v, 16 * i, warp));
      miss(w[i], v, u[2 * i], u[2 * i + 1], gates, 2 * i);
    }
  }
  float d[8][4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j <= i; ++j) {
      uint32_t b[4];
      ptx::ldmatrix_x4(b, across_address(stage.inverse, 16 * i, j));
      ptx::mma_bf16(d[2 * i], w[j], b[0], b[1]);
      ptx::mma_bf16(d[2 * i + 1], w[j], b[2], b[3]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) as_left(w[i], d[2 * i], d[2 * i + 1]);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 decay = gates.columns(Gates::from_start, i), rest = gates.columns(Gates::to_end, i);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      out[i][e] *= e & 1 ? decay.y : decay.x;
      d[i][e] *= e & 1 ? rest.y : rest.x;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j <= i; ++j) {
      uint32_t b[4];
      ptx::ldmatrix_x4(b, across_address(stage.scores, 16 * i, j));
      ptx::mma_bf16(out[2 * i], w[j], b[0], b[1]);
      ptx::mma_bf16(out[2 * i + 1], w[j], b[2], b[3]);
    }
  }
  if (!last) {
    const float decay = *gates.at(Gates::from_start, chunk - 1);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[i][e] *= decay;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t a[4];
      as_left(a, d[2 * j], d[2 * j + 1]);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        uint32_t b[4];
        ptx::ldmatrix_x4_trans(b, down_address(stage.k, 16 * j, i));
        ptx::mma_bf16(s[2 * i], a, b[0], b[1]);
        ptx::mma_bf16(s[2 * i + 1], a, b[2], b[3]);
      }
    }
  }
  if (o) store_rows(o, out, call.value_heads * head_dim, call.scale, n);
}

__global__ void __launch_bounds__(Scan::threads, 2) scan_kernel(ScanCall call) {
  unsigned char* const memory = dynamic_shared<unsigned char>();
  int* const ticket = reinterpret_cast<int*>(memory + 2 * Scan::stage_bytes);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t tasks_per_document = call.value_heads * Scan::slices;
  const int64_t tasks = call.documents() * tasks_per_document;
  for (;;) {
    if (threadIdx.x == 0) *ticket = call.next_ticket();
    __syncthreads();
    const int64_t task = *ticket;
    if (task >= tasks) return;
    const int4 document = call.document(task / tasks_per_document);
    const int64_t h = task % tasks_per_document / Scan::slices;
    const auto place = [&](int i) {
      return Place{h,
                   h / (call.value_heads / call.key_heads),
                   document.x + i,
                   document.y + i * int64_t{chunk},
                   min(chunk, document.z - i * chunk),
                   static_cast<int>(task % Scan::slices)};
    };
    const int chunks = (document.z + chunk - 1) / chunk;
    const int64_t column = task % Scan::slices * Scan::columns + warp * 16;
    for (int i = 0; i < 2; ++i) {
      if (i < chunks) load_stage(call, Stage(memory, i), place(i));
      ptx::cp_async_commit();
    }
    ptx::cp_async_wait<1>();
    __syncthreads();
    const auto gate = [&](const Stage& stage) {
      apply_gates(stage.gates(), stage.inverse_tile(), stage.scores_tile(), static_cast<int>(threadIdx.x));
    };
    gate(Stage(memory, 0));
    __syncthreads();
    float s[16][4] = {};
    for (int i = 0; i < chunks; ++i) {
      const Stage stage(memory, i);
      const Place at = place(i);
      walk_chunk(
          call, stage, s, call.o ? call.o + (at.t0 * call.value_heads + h) * head_dim + column : nullptr,
          call.states ? call.states + (at.c * call.value_heads + h) * head_dim * head_dim + column : nullptr,
          at.n, i == 0, i + 1 == chunks);
      ptx::cp_async_wait<0>();
      __syncthreads();
      if (i + 1 == chunks) break;
      if (i + 2 < chunks) load_stage(call, stage, place(i + 2));
      ptx::cp_async_commit();
      gate(Stage(memory, i + 1));
      __syncthreads();
    }
  }
}

}  // namespace
}  // namespace gdn

void gated_delta_forward_mma(Stream& stream, Tensor o_THV, Tensor states_CHKV, CTensor q_THK, CTensor k_THK,
                             CTensor v_THV, CTensor g_TH, CTensor beta_TH, const Segments& segments,
                             GdnShape shape) {
  const gdn::ScanCall call =
      gdn::prepare_scan(stream, o_THV, states_CHKV, q_THK, k_THK, v_THV, g_TH, beta_TH, segments, shape);
  const int64_t tasks = call.max_documents * shape.value_heads * gdn::Scan::slices;
  launch_shared(stream, {"gated_delta_forward_mma", v_THV}, gdn::scan_kernel,
                dim3(blocks_for(tasks < gdn::Scan::blocks ? tasks : gdn::Scan::blocks, 1)),
                dim3(gdn::Scan::threads), gdn::Scan::shared_bytes, call);
}

}  // namespace deltatune::cuda
