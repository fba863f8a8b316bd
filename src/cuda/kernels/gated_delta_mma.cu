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
#include "cuda/kernels/gdn_inverse.cuh"
#include "cuda/kernels/gdn_tile.cuh"
#include "cuda/kernels/sums.cuh"
#include "ops/delta_net_cuda_scratch.h"

namespace deltatune::cuda {
namespace gdn {
namespace {

struct Scan {
  static constexpr int threads = 128;
  static constexpr int columns = 64;  ///< of S per block
  static constexpr int slices = head_dim / columns;
  static constexpr int blocks = 264;  ///< at most; two fit on an SM
  static constexpr int stage_bytes = 7 * tile_bytes;
  static constexpr int shared_bytes = 2 * stage_bytes + 16;
};

struct ScanCall {
  const device_bf16 *q, *k, *v, *inverse, *scores;
  const float* gates;
  const int32_t* chunks;
  int32_t* order;
  int64_t max_documents, num_chunks, key_heads, value_heads;
  float scale;
  device_bf16 *o, *states;
};

/// One chunk's operands in shared memory.
struct Stage {
  unsigned char* memory;
  uint32_t k, q, v, inverse, scores;

  __device__ Stage(unsigned char* base, int64_t number) : memory(base + (number & 1) * Scan::stage_bytes) {
    k = ptx::shared_address(memory);
    q = k + 2 * tile_bytes;
    v = q + 2 * tile_bytes;
    inverse = v + tile_bytes;
    scores = inverse + tile_bytes;
  }
  /// Gates of 64 tokens lie in pieces of T that are above its diagonal: log2(e) G, beta, e^G, e^(G_n - G).
  enum Gate { log_decay, beta, from_start, to_end };
  static __device__ uint32_t gate_offset(Gate gate, int token) {
    return piece_offset((gate >> 1) * 16 + (token >> 2), 7 - (gate & 1)) + (token & 3) * 4;
  }
  __device__ float* gate(Gate gate, int token) const {
    return reinterpret_cast<float*>(memory + 5 * tile_bytes + gate_offset(gate, token));
  }
};

/// Where a document's walk is.
struct Walker {
  int64_t h, key_head;
  int slice;
};

__device__ inline void load_stage(const ScanCall& call, const Stage& stage, const Walker& at, int64_t c) {
  const int4 entry = reinterpret_cast<const int4*>(call.chunks)[c];
  const int64_t t0 = entry.y;
  const int n = entry.z, tid = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < chunk * 16 / Scan::threads; ++i) {
    const int row = i * (Scan::threads / 16) + (tid >> 4), piece = tid & 15;
    const int64_t from = ((t0 + (row < n ? row : 0)) * call.key_heads + at.key_head) * head_dim + piece * 8;
    ptx::cp_async_16(stage.k + piece_offset(row, piece), call.k + from, row < n);
    ptx::cp_async_16(stage.q + piece_offset(row, piece), call.q + from, row < n);
  }
  const device_bf16* const inverse = call.inverse + (c * call.value_heads + at.h) * square;
  const device_bf16* const scores = call.scores + (c * call.key_heads + at.key_head) * square;
#pragma unroll
  for (int i = 0; i < chunk * 8 / Scan::threads; ++i) {
    const int row = i * (Scan::threads / 8) + (tid >> 3), piece = tid & 7;
    const int64_t from = ((t0 + (row < n ? row : 0)) * call.value_heads + at.h) * head_dim +
                         at.slice * Scan::columns + piece * 8;
    ptx::cp_async_16(stage.v + piece_offset(row, piece), call.v + from, row < n);
    if (piece > 2 * (row >> 4) + 1) continue;  // above the diagonal blocks
    ptx::cp_async_16(stage.inverse + piece_offset(row, piece), inverse + row * chunk + piece * 8);
    ptx::cp_async_16(stage.scores + piece_offset(row, piece), scores + row * chunk + piece * 8);
  }
  if (tid < 32) {
    const float* const gates = call.gates + (c * call.value_heads + at.h) * 2 * chunk;
    const auto which = tid < 16 ? Stage::log_decay : Stage::beta;
    ptx::cp_async_16(stage.inverse + Stage::gate_offset(which, (tid & 15) * 4), gates + tid * 4);
  }
}

/// T -> Gam o T diag(beta), Q K^T -> Gam o Q K^T, and the gates of single tokens.
__device__ inline void apply_gates(const Stage& stage) {
  const int tid = static_cast<int>(threadIdx.x), pair = tid >> 2;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    // Rows `pair` and 63 - pair have 9 pieces up to the diagonal between them.
    const int number = (tid & 3) + 4 * i, upper = (pair >> 3) + 1;
    if (number > 8) break;
    const int row = number < upper ? pair : 63 - pair, piece = number < upper ? number : number - upper;
    const float end = *stage.gate(Stage::log_decay, row);
    float decay[8], beta[8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 g = *reinterpret_cast<const float4*>(stage.gate(Stage::log_decay, 8 * piece + 4 * half));
      const float4 b = *reinterpret_cast<const float4*>(stage.gate(Stage::beta, 8 * piece + 4 * half));
      const float starts[4] = {g.x, g.y, g.z, g.w}, betas[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        // Above the diagonal, where T and Q K^T are 0, the exponent may be positive.
        decay[4 * half + e] = exp2f(fminf(end - starts[e], 0.0f));
        beta[4 * half + e] = betas[e];
      }
    }
    const uint32_t at = piece_offset(row, piece);
    uint4* const inverse = reinterpret_cast<uint4*>(stage.memory + 5 * tile_bytes + at);
    uint4* const scores = reinterpret_cast<uint4*>(stage.memory + 6 * tile_bytes + at);
    const uint4 t = *inverse, p = *scores;
    const uint32_t t_in[4] = {t.x, t.y, t.z, t.w}, p_in[4] = {p.x, p.y, p.z, p.w};
    uint32_t t_out[4], p_out[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float2 x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&t_in[e]));
      const float2 y = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&p_in[e]));
      t_out[e] = ptx::pack_bf16(x.x * decay[2 * e] * beta[2 * e], x.y * decay[2 * e + 1] * beta[2 * e + 1]);
      p_out[e] = ptx::pack_bf16(y.x * decay[2 * e], y.y * decay[2 * e + 1]);
    }
    *inverse = make_uint4(t_out[0], t_out[1], t_out[2], t_out[3]);
    *scores = make_uint4(p_out[0], p_out[1], p_out[2], p_out[3]);
  }
  if (tid < chunk) {
    const float g = *stage.gate(Stage::log_decay, tid), last = *stage.gate(Stage::log_decay, chunk - 1);
    *stage.gate(Stage::from_start, tid) = exp2f(g);
    *stage.gate(Stage::to_end, tid) = exp2f(last - g);
  }
}

/// 16 x 16 of S^T, or of another sum, as fragment A.
__device__ inline void as_left(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = ptx::pack_bf16(left[0], left[1]);
  a[1] = ptx::pack_bf16(left[2], left[3]);
  a[2] = ptx::pack_bf16(right[0], right[1]);
  a[3] = ptx::pack_bf16(right[2], right[3]);
}

/// Rows 16 step.. of S, columns of this warp, from their fragment A.
__device__ inline void store_state(device_bf16* state, const uint32_t (&a)[4], int step) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t left = ptx::transpose_8x8(a[2 * half]), right = ptx::transpose_8x8(a[2 * half + 1]);
    device_bf16* const to = state + (16 * step + 8 * half + g) * head_dim + joined_column();
    *reinterpret_cast<uint2*>(to) = join_quads(left, right);
  }
}

/// The chunk of `stage`, n tokens from t0: writes o, takes S (transposed) to the end of the chunk. `state`:
/// where S entering the chunk goes, at this warp's columns; null: nowhere.
__device__ inline void walk_chunk(const ScanCall& call, const Stage& stage, float (&s)[16][4], device_bf16* o,
                                  device_bf16* state, int n, bool first, bool last) {
  const int warp = static_cast<int>(threadIdx.x) / 32, g = static_cast<int>(threadIdx.x) % 32 / 4,
            t = static_cast<int>(threadIdx.x) % 4;
  const auto gates = [&](Stage::Gate which, int tile) {
    return *reinterpret_cast<const float2*>(stage.gate(which, 8 * tile + 2 * t));
  };
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
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 value = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&v[j]));
        const float2 decay = gates(Stage::from_start, 2 * i + (j >> 1));
        const float* const read = u[2 * i + (j >> 1)] + 2 * (j & 1);
        w[i][j] = ptx::pack_bf16(value.x - decay.x * read[0], value.y - decay.y * read[1]);
      }
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
    const float2 decay = gates(Stage::from_start, i), rest = gates(Stage::to_end, i);
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
    const float decay = *stage.gate(Stage::from_start, chunk - 1);
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
  if (!o) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t left = ptx::pack_bf16(out[i][0] * call.scale, out[i][1] * call.scale);
    const uint32_t right = ptx::pack_bf16(out[i][2] * call.scale, out[i][3] * call.scale);
    const uint2 joined = join_quads(ptx::transpose_8x8(left), ptx::transpose_8x8(right));
    const int token = 8 * i + g;
    if (token < n) {
      *reinterpret_cast<uint2*>(o + token * call.value_heads * head_dim + joined_column()) = joined;
    }
  }
}

__global__ void __launch_bounds__(Scan::threads, 2) scan_kernel(ScanCall call) {
  unsigned char* const memory = dynamic_shared<unsigned char>();
  int* const ticket = reinterpret_cast<int*>(memory + 2 * Scan::stage_bytes);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t tasks_per_document = call.value_heads * Scan::slices;
  const int64_t tasks = call.order[call.max_documents] * tasks_per_document;
  for (;;) {
    if (threadIdx.x == 0) *ticket = atomicAdd(call.order + call.max_documents + 1, 1);
    __syncthreads();
    const int64_t task = *ticket;
    if (task >= tasks) return;
    const int64_t first = call.order[task / tasks_per_document];
    Walker at;
    at.h = task % tasks_per_document / Scan::slices;
    at.key_head = at.h / (call.value_heads / call.key_heads);
    at.slice = static_cast<int>(task % Scan::slices);
    const int document = call.chunks[4 * first];
    const auto inside = [&](int64_t c) {
      return c < call.num_chunks && call.chunks[4 * c] == document && call.chunks[4 * c + 2] != 0;
    };
    const int64_t column = at.slice * Scan::columns + warp * 16;
    load_stage(call, Stage(memory, 0), at, first);
    ptx::cp_async_commit();
    bool more = inside(first + 1);
    if (more) load_stage(call, Stage(memory, 1), at, first + 1);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    __syncthreads();
    apply_gates(Stage(memory, 0));
    __syncthreads();
    float s[16][4] = {};
    for (int64_t c = first;; ++c) {
      const Stage stage(memory, c - first);
      const int64_t t0 = call.chunks[4 * c + 1];
      const int n = call.chunks[4 * c + 2];
      walk_chunk(
          call, stage, s, call.o ? call.o + (t0 * call.value_heads + at.h) * head_dim + column : nullptr,
          call.states ? call.states + (c * call.value_heads + at.h) * head_dim * head_dim + column : nullptr,
          n, c == first, !more);
      ptx::cp_async_wait<0>();
      __syncthreads();
      if (!more) break;
      more = inside(c + 2);
      if (more) load_stage(call, stage, at, c + 2);
      ptx::cp_async_commit();
      apply_gates(Stage(memory, c + 1 - first));
      __syncthreads();
    }
  }
}

}  // namespace
}  // namespace gdn

void gated_delta_forward_mma(Stream& stream, Tensor o_THV, Tensor states_CHKV, CTensor q_THK, CTensor k_THK,
                             CTensor v_THV, CTensor g_TH, CTensor beta_TH, const Segments& segments,
                             GdnShape shape) {
  const int64_t num_chunks = segments.chunks.dim(0), max_documents = segments.cu_seqlens.dim(0) - 1;
  const GdnForwardScratch layout(shape, num_chunks, max_documents);
  std::byte* const scratch = stream.scratch(layout.bytes());
  const GdnPrepared prepared{scratch + layout.inverse, scratch + layout.scores,
                             reinterpret_cast<float*>(scratch + layout.gates),
                             reinterpret_cast<int32_t*>(scratch + layout.order)};
  gdn_prepare(stream, prepared, q_THK, k_THK, g_TH, beta_TH, segments, shape);
  gdn::ScanCall call{};
  call.q = pointer<device_bf16>(q_THK);
  call.k = pointer<device_bf16>(k_THK);
  call.v = pointer<device_bf16>(v_THV);
  call.inverse = static_cast<const device_bf16*>(prepared.inverse);
  call.scores = static_cast<const device_bf16*>(prepared.scores);
  call.gates = prepared.gates;
  call.chunks = pointer<int32_t>(segments.chunks);
  call.order = prepared.order;
  call.max_documents = max_documents;
  call.num_chunks = num_chunks;
  call.key_heads = shape.key_heads;
  call.value_heads = shape.value_heads;
  call.scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
  call.o = wanted<device_bf16>(o_THV);
  call.states = wanted<device_bf16>(states_CHKV);
  const int64_t tasks = max_documents * shape.value_heads * gdn::Scan::slices;
  launch_shared(stream, {"gated_delta_forward_mma", v_THV}, gdn::scan_kernel,
                dim3(blocks_for(tasks < gdn::Scan::blocks ? tasks : gdn::Scan::blocks, 1)),
                dim3(gdn::Scan::threads), gdn::Scan::shared_bytes, call);
}

}  // namespace deltatune::cuda
