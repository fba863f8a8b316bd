// gdn_inverse: formula in gdn_inverse.cuh. One block of four warps per chunk and key head:
//   1. K K^T (and tril(Q K^T)) by tensor cores, fp32 sums; the value heads of a key head share it.
//   2. Per value head one warp inverts I + L: the four 16 x 16 diagonal blocks in fp32 by substitution, half
//   a
//      warp per block, a lane per row, T_ij = [i = j] - sum_{m > j} T_im beta_m (k_m . k_j); then
//      [A 0; C B]^-1 = [A^-1 0; -B^-1 C A^-1 B^-1] from 16 to 32 to 64, products of fp16 with fp32 sums: T
//      and B^-1 C are bounded by 1, where fp16 is finer than bf16 by three bits.
// Blocks walk the tiles with a stride, so that the unused end of the chunk table costs nothing.
#include "cuda/kernels/gdn_inverse.cuh"
#include "cuda/kernels/gdn_tile.cuh"
#include "cuda/kernels/shared.cuh"

namespace deltatune::cuda {
namespace gdn {
namespace {

struct Inverse {
  static constexpr int threads = 128;
  static constexpr int max_ratio = 3;
  static constexpr int max_blocks = 4096;
  static constexpr int product_stride = 72;  ///< floats in a row of K K^T, of fp16 in a row of T
  static constexpr int product_bytes = chunk * product_stride * 4;
  static constexpr int inverse_bytes = chunk * product_stride * 2;
  static constexpr int beta_bytes = max_ratio * chunk * 4;
  /// K and Q, later T of the value heads.
  static constexpr int operand_bytes = 4 * tile_bytes;
  static constexpr int shared_bytes = operand_bytes + product_bytes + beta_bytes;
  static_assert(max_ratio * inverse_bytes <= operand_bytes);
};

struct PrepareCall {
  const device_bf16 *q, *k;
  const float *g, *beta;
  const int32_t *chunks, *cu_seqlens;
  int64_t num_chunks, max_documents, key_heads;
  device_bf16* inverse;
  __half* scores;
  float* gates;
  int32_t* order;
};

/// Lower half of a 64 x 64 product in 16 x 16 blocks: warp w makes row w of Q K^T (blocks 0..w) and, since K
/// K^T is symmetric, row w of its upper half (blocks w..3): five blocks each.
struct Products {
  float sum[5][2][4] = {};
  int warp;

  __device__ bool self(int b) const { return b < 4 - warp; }
  __device__ int column(int b) const { return self(b) ? warp + b : b - (4 - warp); }
};

template <bool forward>
__device__ inline void multiply(Products& out, uint32_t k_tile, uint32_t q_tile) {
#pragma unroll
  for (int step = 0; step < head_dim / 16; ++step) {
    uint32_t k_rows[4], q_rows[4];
    ptx::ldmatrix_x4(k_rows, down_address(k_tile, 16 * out.warp, step));
    if constexpr (forward) ptx::ldmatrix_x4(q_rows, down_address(q_tile, 16 * out.warp, step));
#pragma unroll
    for (int b = 0; b < (forward ? 5 : 4); ++b) {
      if (!forward && !out.self(b)) continue;
      uint32_t columns[4], rows[4];
      ptx::ldmatrix_x4(columns, across_address(k_tile, 16 * out.column(b), step));
#pragma unroll
      for (int i = 0; i < 4; ++i) rows[i] = !forward || out.self(b) ? k_rows[i] : q_rows[i];
      ptx::mma_bf16(out.sum[b][0], rows, columns[0], columns[1]);
      ptx::mma_bf16(out.sum[b][1], rows, columns[2], columns[3]);
    }
  }
}

/// K K^T to shared memory, Q K^T to `scores` with zeros above the diagonal.
template <bool forward>
__device__ inline void store_products(const Products& x, float* product, __half* scores) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int b = 0; b < (forward ? 5 : 4); ++b) {
    const int row = 16 * x.warp + g, column = 16 * x.column(b);
    if (x.self(b)) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float* const to = product + row * Inverse::product_stride + column + 8 * n + 2 * t;
        *reinterpret_cast<float2*>(to) = make_float2(x.sum[b][n][0], x.sum[b][n][1]);
        *reinterpret_cast<float2*>(to + 8 * Inverse::product_stride) =
            make_float2(x.sum[b][n][2], x.sum[b][n][3]);
      }
    } else if constexpr (forward) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = row + 8 * half;
        uint32_t pairs[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int j = column + 8 * n + 2 * t;
          pairs[n] = ptx::pack_f16(j <= i ? x.sum[b][n][2 * half] : 0.0f,
                                   j + 1 <= i ? x.sum[b][n][2 * half + 1] : 0.0f);
        }
        *reinterpret_cast<uint2*>(scores + i * chunk + column + joined_column()) =
            join_quads(pairs[0], pairs[1]);
      }
    }
  }
}

/// Inverse of diagonal block b into T, by half a warp.
__device__ inline void invert_block(__half* inverse, const float* product, const float* beta, int b) {
  constexpr int stride = Inverse::product_stride;
  const int row = static_cast<int>(threadIdx.x) % 16;
  const float* const from = product + 16 * b * stride + 16 * b;
  float scaled[16], value[16];  // T_im beta_m, T_im
#pragma unroll
  for (int j = 15; j >= 0; --j) {
    float sums[2] = {};
#pragma unroll
    for (int m = 15; m > j; --m) sums[m & 1] += scaled[m] * from[j * stride + m];
    value[j] = (row == j ? 1.0f : 0.0f) - (sums[0] + sums[1]);
    scaled[j] = value[j] * beta[16 * b + j];
  }
  uint4* const to = reinterpret_cast<uint4*>(inverse + (16 * b + row) * stride + 16 * b);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float* const x = value + 8 * half;
    to[half] = make_uint4(ptx::pack_f16(x[0], x[1]), ptx::pack_f16(x[2], x[3]), ptx::pack_f16(x[4], x[5]),
                          ptx::pack_f16(x[6], x[7]));
  }
}

__device__ inline uint32_t block_address(const __half* inverse, int row_block, int column_block) {
  const Lane lane;
  return ptx::shared_address(inverse +
                             (16 * row_block + (lane.matrix & 1) * 8 + lane.row) * Inverse::product_stride +
                             16 * column_block + (lane.matrix >> 1) * 8);
}

/// Block (k, n) of L, k > n, as two fragments B.
__device__ inline void load_coupling(uint32_t (&r)[4], const float* product, const float* beta, int k,
                                     int n) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = 16 * k + 8 * (i & 1) + 2 * t;
    const float2 x = *reinterpret_cast<const float2*>(
        product + (16 * n + 8 * (i >> 1) + g) * Inverse::product_stride + at);
    const float2 factor = *reinterpret_cast<const float2*>(beta + at);
    r[i] = ptx::pack_f16(x.x * factor.x, x.y * factor.y);
  }
}

__device__ inline void multiply_block(float (&sum)[2][4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  ptx::mma_f16(sum[0], a, b[0], b[1]);
  ptx::mma_f16(sum[1], a, b[2], b[3]);
}
/// A 16 x 16 sum as fragment A.
__device__ inline void as_left(uint32_t (&a)[4], const float (&sum)[2][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = ptx::pack_f16(sum[i >> 1][2 * (i & 1)], sum[i >> 1][2 * (i & 1) + 1]);
}
__device__ inline void store_negative(__half* inverse, const float (&sum)[2][4], int row_block,
                                      int column_block) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    __half* const to = inverse + (16 * row_block + 8 * (i & 1) + g) * Inverse::product_stride +
                       16 * column_block + 8 * (i >> 1) + 2 * t;
    *reinterpret_cast<uint32_t*>(to) =
        ptx::pack_f16(-sum[i >> 1][2 * (i & 1)], -sum[i >> 1][2 * (i & 1) + 1]);
  }
}

/// T of one value head in shared memory, by one warp.
__device__ inline void invert(__half* inverse, const float* product, const float* beta) {
  const int half = static_cast<int>(threadIdx.x) % 32 / 16;
  invert_block(inverse, product, beta, half);
  invert_block(inverse, product, beta, 2 + half);
  __syncwarp();
#pragma unroll
  for (int pair = 0; pair < 4; pair += 2) {
    float x[2][4] = {}, y[2][4] = {};
    uint32_t a[4], b[4];
    ptx::ldmatrix_x4(a, block_address(inverse, pair + 1, pair + 1));
    load_coupling(b, product, beta, pair + 1, pair);
    multiply_block(x, a, b);
    as_left(a, x);
    ptx::ldmatrix_x4_trans(b, block_address(inverse, pair, pair));
    multiply_block(y, a, b);
    store_negative(inverse, y, pair + 1, pair);
  }
  __syncwarp();
  uint32_t left[2][2][4];  // B^-1 C
  {
    float x[2][2][2][4] = {};
    uint32_t lower[3][4];
    ptx::ldmatrix_x4(lower[0], block_address(inverse, 2, 2));
    ptx::ldmatrix_x4(lower[1], block_address(inverse, 3, 2));
    ptx::ldmatrix_x4(lower[2], block_address(inverse, 3, 3));
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      uint32_t b[4];
      load_coupling(b, product, beta, 2, n);
      multiply_block(x[0][n], lower[0], b);
      multiply_block(x[1][n], lower[1], b);
      load_coupling(b, product, beta, 3, n);
      multiply_block(x[1][n], lower[2], b);
#pragma unroll
      for (int m = 0; m < 2; ++m) as_left(left[m][n], x[m][n]);
    }
  }
  uint32_t upper[3][4];
  ptx::ldmatrix_x4_trans(upper[0], block_address(inverse, 0, 0));
  ptx::ldmatrix_x4_trans(upper[1], block_address(inverse, 1, 0));
  ptx::ldmatrix_x4_trans(upper[2], block_address(inverse, 1, 1));
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    float y[2][2][4] = {};
    multiply_block(y[0], left[m][0], upper[0]);
    multiply_block(y[0], left[m][1], upper[1]);
    multiply_block(y[1], left[m][1], upper[2]);
    store_negative(inverse, y[0], 2 + m, 0);
    store_negative(inverse, y[1], 2 + m, 1);
  }
  __syncwarp();
}

/// T of n tokens to memory, by one warp.
__device__ inline void store_inverse(device_bf16* to, const __half* inverse, int n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 4
  for (int at = lane; at < chunk * 8; at += 32) {
    const int row = at >> 3, piece = at & 7;
    uint4 out = make_uint4(0, 0, 0, 0);
    if (row < n && piece <= row >> 3) {
      const uint4 in = *reinterpret_cast<const uint4*>(inverse + row * Inverse::product_stride + 8 * piece);
      const auto widen = [](uint32_t x) {
        const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&x));
        return ptx::pack_bf16(pair.x, pair.y);
      };
      out = make_uint4(widen(in.x), widen(in.y), widen(in.z), widen(in.w));
    }
    *reinterpret_cast<uint4*>(to + at * 8) = out;
  }
}

/// beta of one value head to shared memory and, for forward, its gates, by one warp.
template <bool forward>
__device__ inline void load_gates(const PrepareCall& call, float* beta, int64_t c, int64_t t0, int n,
                                  int64_t h, int64_t value_heads) {
  constexpr float log2_e = 1.4426950408889634f;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float b[2], sum[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = lane + 32 * i;
    b[i] = t < n ? call.beta[(t0 + t) * value_heads + h] : 0.0f;
    if constexpr (forward) sum[i] = t < n ? call.g[(t0 + t) * value_heads + h] : 0.0f;
    beta[t] = b[i];
  }
  if constexpr (forward) {
    float* const out = call.gates + (c * value_heads + h) * 2 * chunk;
    float before = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const float x = __shfl_up_sync(0xffffffffu, sum[i], step);
        if (lane >= step) sum[i] += x;
      }
      sum[i] += before;
      before = __shfl_sync(0xffffffffu, sum[i], 31);
      out[lane + 32 * i] = sum[i] * log2_e;
      out[chunk + lane + 32 * i] = b[i];
    }
  }
}

/// Enters document d, whose first chunk is c, into the order; the block of chunk 0 also writes their number.
__device__ inline void enter_document(const PrepareCall& call, int64_t c, int64_t d) {
  const int32_t* const starts = call.cu_seqlens;
  const int length = starts[d + 1] - starts[d];
  int rank = 0, documents = 0;
  for (int64_t base = 0; base < call.max_documents; base += Inverse::threads) {
    const int64_t other = base + threadIdx.x;
    const int size = other < call.max_documents ? starts[other + 1] - starts[other] : 0;
    rank += __syncthreads_count(size > length || (size == length && other < d));
    if (c == 0) documents += __syncthreads_count(size > 0);
  }
  if (threadIdx.x != 0) return;
  reinterpret_cast<int4*>(call.order)[rank] = make_int4(static_cast<int>(c), starts[d], length, 0);
  if (c != 0) return;
  call.order[4 * call.max_documents] = documents;
  call.order[4 * call.max_documents + 1] = 0;
}

template <bool forward, int ratio>
__global__ void __launch_bounds__(Inverse::threads) prepare_kernel(PrepareCall call) {
  unsigned char* const memory = dynamic_shared<unsigned char>();
  float* const product = reinterpret_cast<float*>(memory + Inverse::operand_bytes);
  float* const beta = reinterpret_cast<float*>(memory + Inverse::operand_bytes + Inverse::product_bytes);
  const uint32_t k_tile = ptx::shared_address(memory), q_tile = k_tile + 2 * tile_bytes;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t value_heads = call.key_heads * ratio;
  for (int64_t tile = blockIdx.x; tile < call.num_chunks * call.key_heads; tile += gridDim.x) {
    const int64_t c = tile / call.key_heads, key_head = tile % call.key_heads;
    const int4 entry = reinterpret_cast<const int4*>(call.chunks)[c];
    const int n = entry.z;
    if (n == 0) return;
    const int64_t t0 = entry.y;
    const int tid = static_cast<int>(threadIdx.x);
    const int64_t keys = call.key_heads * head_dim, from = t0 * keys + key_head * head_dim;
    load_rows<Inverse::threads, 16>(k_tile, call.k + from, keys, n, tid);
    if constexpr (forward) load_rows<Inverse::threads, 16>(q_tile, call.q + from, keys, n, tid);
    ptx::cp_async_commit();
    const int64_t h = key_head * ratio + warp;
    if (warp < ratio) load_gates<forward>(call, beta + warp * chunk, c, t0, n, h, value_heads);
    ptx::cp_async_wait<0>();
    __syncthreads();
    {
      Products products;
      products.warp = warp;
      multiply<forward>(products, k_tile, q_tile);
      store_products<forward>(products, product,
                              forward ? call.scores + (c * call.key_heads + key_head) * square : nullptr);
    }
    __syncthreads();
    if (warp < ratio) {
      __half* const inverse = reinterpret_cast<__half*>(memory + warp * Inverse::inverse_bytes);
      invert(inverse, product, beta + warp * chunk);
      store_inverse(call.inverse + (c * value_heads + h) * square, inverse, n);
    }
    if constexpr (forward) {
      if (key_head == 0 && entry.w == 0) enter_document(call, c, entry.x);
    }
    __syncthreads();
  }
}

template <bool forward>
void launch_prepare(Stream& stream, PrepareCall call, const GdnShape& shape, const Shape& keys) {
  const int64_t tiles = call.num_chunks * call.key_heads;
  const dim3 grid(blocks_for(tiles < Inverse::max_blocks ? tiles : Inverse::max_blocks, 1));
  const auto run = [&](void (*kernel)(PrepareCall)) {
    launch_shared(stream, {"gdn_inverse", keys}, kernel, grid, dim3(Inverse::threads), Inverse::shared_bytes,
                  call);
  };
  if (shape.key_dim == head_dim && shape.ratio() == 1) return run(prepare_kernel<forward, 1>);
  if (shape.key_dim == head_dim && shape.ratio() == 2) return run(prepare_kernel<forward, 2>);
  if (shape.key_dim == head_dim && shape.ratio() == 3) return run(prepare_kernel<forward, 3>);
  throw Error(ErrorKind::internal,
              "key heads of " + std::to_string(shape.key_dim) + " shared by " + std::to_string(shape.ratio()),
              "gdn_inverse", "please report it with the command line");
}

PrepareCall make_prepare_call(const CTensor& k_THK, const CTensor& beta_TH, const Segments& segments,
                              const GdnShape& shape) {
  PrepareCall call{};
  call.k = pointer<device_bf16>(k_THK);
  call.beta = pointer<float>(beta_TH);
  call.chunks = pointer<int32_t>(segments.chunks);
  call.cu_seqlens = pointer<int32_t>(segments.cu_seqlens);
  call.num_chunks = segments.chunks.dim(0);
  call.max_documents = segments.cu_seqlens.dim(0) - 1;
  call.key_heads = shape.key_heads;
  return call;
}

}  // namespace
}  // namespace gdn

void gdn_inverse(Stream& stream, Tensor T_CHII, CTensor k_THK, CTensor beta_TH, const Segments& segments,
                 GdnShape shape) {
  gdn::PrepareCall call = gdn::make_prepare_call(k_THK, beta_TH, segments, shape);
  call.inverse = pointer<device_bf16>(T_CHII);
  gdn::launch_prepare<false>(stream, call, shape, k_THK.shape);
}

void gdn_prepare(Stream& stream, const GdnPrepared& out, CTensor q_THK, CTensor k_THK, CTensor g_TH,
                 CTensor beta_TH, const Segments& segments, GdnShape shape) {
  gdn::PrepareCall call = gdn::make_prepare_call(k_THK, beta_TH, segments, shape);
  call.q = pointer<device_bf16>(q_THK);
  call.g = pointer<float>(g_TH);
  call.inverse = static_cast<device_bf16*>(out.inverse);
  call.scores = static_cast<__half*>(out.scores);
  call.gates = out.gates;
  call.order = out.order;
  gdn::launch_prepare<true>(stream, call, shape, k_THK.shape);
}

}  // namespace deltatune::cuda
