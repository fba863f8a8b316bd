// What the tensor-core kernels of gated_delta forward share: the call, the gates of a chunk in shared memory,
// and storing transposed results. Formulas: gated_delta_mma.cu.
#pragma once

#include <cmath>

#include "cuda/kernels/gdn_inverse.cuh"
#include "cuda/kernels/gdn_tile.cuh"
#include "cuda/kernels/sums.cuh"
#include "cuda/ptx/math.cuh"
#include "ops/delta_net_cuda_scratch.h"

namespace deltatune::cuda::gdn {

struct ScanCall {
  const device_bf16 *q, *k, *v, *inverse;
  const __half* scores;
  const float* gates;
  int32_t* order;  ///< see GdnPrepared
  int64_t max_documents, key_heads, value_heads;
  float scale;
  device_bf16 *o, *states;  ///< null: not wanted

  __device__ int4 document(int64_t rank) const { return reinterpret_cast<const int4*>(order)[rank]; }
  __device__ int documents() const { return order[4 * max_documents]; }
  __device__ int next_ticket() const { return atomicAdd(order + 4 * max_documents + 1, 1); }
};

/// Runs gdn_prepare into the stream's scratch.
inline ScanCall prepare_scan(Stream& stream, const Tensor& o_THV, const Tensor& states_CHKV,
                             const CTensor& q_THK, const CTensor& k_THK, const CTensor& v_THV,
                             const CTensor& g_TH, const CTensor& beta_TH, const Segments& segments,
                             const GdnShape& shape) {
  const int64_t max_documents = segments.cu_seqlens.dim(0) - 1;
  const GdnForwardScratch layout(shape, segments.chunks.dim(0), max_documents);
  std::byte* const scratch = stream.scratch(layout.bytes());
  const GdnPrepared prepared{scratch + layout.inverse, scratch + layout.scores,
                             reinterpret_cast<float*>(scratch + layout.gates),
                             reinterpret_cast<int32_t*>(scratch + layout.order)};
  gdn_prepare(stream, prepared, q_THK, k_THK, g_TH, beta_TH, segments, shape);
  return {pointer<device_bf16>(q_THK),
          pointer<device_bf16>(k_THK),
          pointer<device_bf16>(v_THV),
          static_cast<const device_bf16*>(prepared.inverse),
          static_cast<const __half*>(prepared.scores),
          prepared.gates,
          prepared.order,
          max_documents,
          shape.key_heads,
          shape.value_heads,
          1.0f / std::sqrt(static_cast<float>(shape.key_dim)),
          wanted<device_bf16>(o_THV),
          wanted<device_bf16>(states_CHKV)};
}

/// Gates of the 64 tokens of a chunk, [4][64] floats.
struct Gates {
  enum Which { log_decay, beta, from_start, to_end };  ///< log2(e) G, beta, e^G, e^(G_n - G)
  static constexpr int bytes = 4 * chunk * 4;
  float* values;

  static __device__ uint32_t offset(Which which, int token) {
    return static_cast<uint32_t>(which * chunk + token) * 4;
  }
  __device__ float* at(Which which, int token) const { return values + which * chunk + token; }
  /// This lane's two columns of tile `n` of a fragment C whose columns are tokens.
  __device__ float2 columns(Which which, int n) const {
    return *reinterpret_cast<const float2*>(at(which, 8 * n + 2 * (static_cast<int>(threadIdx.x) % 4)));
  }
};
/// The same in pieces of T's tile above its diagonal, where no product of 16 x 16 blocks looks.
struct PackedGates {
  using Which = Gates::Which;
  unsigned char* tile;

  static __device__ uint32_t offset(Which which, int token) {
    return piece_offset((which >> 1) * 16 + (token >> 2), 7 - (which & 1)) +
           static_cast<uint32_t>(token & 3) * 4;
  }
  __device__ float* at(Which which, int token) const {
    return reinterpret_cast<float*>(tile + offset(which, token));
  }
  __device__ float2 columns(Which which, int n) const {
    return *reinterpret_cast<const float2*>(at(which, 8 * n + 2 * (static_cast<int>(threadIdx.x) % 4)));
  }
};

/// Columns 8 piece.. of one row of T and of Q K^T (fp16) -> Gam o T diag(beta), Gam o Q K^T (bf16).
template <class G>
__device__ inline void gate_piece(const uint4& t, const uint4& p, const G& gates, int row, int piece,
                                  uint4* t_to, uint4* p_to) {
  const float end = *gates.at(Gates::log_decay, row);
  const uint32_t t_in[4] = {t.x, t.y, t.z, t.w}, p_in[4] = {p.x, p.y, p.z, p.w};
  uint32_t t_out[4], p_out[4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float4 g = *reinterpret_cast<const float4*>(gates.at(Gates::log_decay, 8 * piece + 4 * half));
    const float4 b = *reinterpret_cast<const float4*>(gates.at(Gates::beta, 8 * piece + 4 * half));
    const float starts[4] = {g.x, g.y, g.z, g.w}, betas[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float2 x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&t_in[2 * half + e]));
      const float2 y = __half22float2(*reinterpret_cast<const __half2*>(&p_in[2 * half + e]));
      // Above the diagonal, where T and Q K^T are 0, the exponent may be positive.
      const float low = ptx::exp2(fminf(end - starts[2 * e], 0.0f));
      const float high = ptx::exp2(fminf(end - starts[2 * e + 1], 0.0f));
      t_out[2 * half + e] = ptx::pack_bf16(x.x * low * betas[2 * e], x.y * high * betas[2 * e + 1]);
      p_out[2 * half + e] = ptx::pack_bf16(y.x * low, y.y * high);
    }
  }
  *t_to = make_uint4(t_out[0], t_out[1], t_out[2], t_out[3]);
  *p_to = make_uint4(p_out[0], p_out[1], p_out[2], p_out[3]);
}

/// By 128 threads, `tid` this one's number: gate_piece in place on the tiles `inverse` and `scores`, and
/// from_start and to_end from the other gates.
template <class G>
__device__ inline void apply_gates(const G& gates, unsigned char* inverse, unsigned char* scores, int tid) {
  const int pair = tid >> 2;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    // Rows `pair` and 63 - pair have 9 pieces up to the diagonal between them.
    const int number = (tid & 3) + 4 * i, upper = (pair >> 3) + 1;
    if (number > 8) break;
    const int row = number < upper ? pair : 63 - pair, piece = number < upper ? number : number - upper;
    uint4* const t = reinterpret_cast<uint4*>(inverse + piece_offset(row, piece));
    uint4* const p = reinterpret_cast<uint4*>(scores + piece_offset(row, piece));
    gate_piece(*t, *p, gates, row, piece, t, p);
  }
  if (tid < chunk) {
    const float g = *gates.at(Gates::log_decay, tid), last = *gates.at(Gates::log_decay, chunk - 1);
    *gates.at(Gates::from_start, tid) = ptx::exp2(g);
    *gates.at(Gates::to_end, tid) = ptx::exp2(last - g);
  }
}

/// Two neighbouring tiles of a fragment C, as fragment A.
__device__ inline void as_left(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = ptx::pack_bf16(left[0], left[1]);
  a[1] = ptx::pack_bf16(left[2], left[3]);
  a[2] = ptx::pack_bf16(right[0], right[1]);
  a[3] = ptx::pack_bf16(right[2], right[3]);
}

/// W^T of 16 tokens, from tile n of C on, as fragment A: from V^T (two tiles of C as ldmatrix gives them) and
/// (K S)^T.
template <class G>
__device__ inline void miss(uint32_t (&w)[4], const uint32_t (&v)[4], const float (&left)[4],
                            const float (&right)[4], const G& gates, int n) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float2 value = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&v[j]));
    const float2 decay = gates.columns(Gates::from_start, n + (j >> 1));
    const float* const read = (j >> 1 ? right : left) + 2 * (j & 1);
    w[j] = ptx::pack_bf16(value.x - decay.x * read[0], value.y - decay.y * read[1]);
  }
}

/// Sets the columns from n on of a fragment A to 0; its first column is `first`.
__device__ inline void clear_columns(uint32_t (&a)[4], int first, int n) {
  const int column = first + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int left = n - column - 8 * (i >> 1);  // columns of this pair that stay
    a[i] = left >= 2 ? a[i] : left == 1 ? a[i] & 0xffffu : 0u;
  }
}

/// Rows 16 step.. of S, 16 columns, from S^T as fragment A.
__device__ inline void store_state(device_bf16* state, const uint32_t (&a)[4], int step) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t left = ptx::transpose_8x8(a[2 * half]), right = ptx::transpose_8x8(a[2 * half + 1]);
    device_bf16* const to = state + (16 * step + 8 * half + g) * head_dim + joined_column();
    *reinterpret_cast<uint2*>(to) = join_quads(left, right);
  }
}

/// n rows of O, `stride` apart, 16 columns, from O^T / scale.
__device__ inline void store_rows(device_bf16* o, const float (&out)[8][4], int64_t stride, float scale,
                                  int n) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  o += g * stride + joined_column();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t left = ptx::pack_bf16(out[i][0] * scale, out[i][1] * scale);
    const uint32_t right = ptx::pack_bf16(out[i][2] * scale, out[i][3] * scale);
    const uint2 joined = join_quads(ptx::transpose_8x8(left), ptx::transpose_8x8(right));
    if (8 * i + g < n) *reinterpret_cast<uint2*>(o) = joined;
    o += 8 * stride;
  }
}

}  // namespace deltatune::cuda::gdn
