// Attention backward on tensor cores: bf16 operands, fp32 scores, softmax and sums; heads of 64, 128 or 256.
// Formulas in ops/attention.h. Deterministic: scores are computed twice, once for dq and once for dk and dv,
// so that every sum belongs to one block and no block adds to another's.
//
// dq: a block takes 128 queries of one head, 16 a warp, and walks over their keys, as forward does.
// dk, dv: a block takes 64 keys of one key/value head and walks over the query heads of the group and their
// queries, 64 at a time. Scores are computed transposed (keys x queries), 16 keys x 32 queries a warp; they
// meet in shared memory as bf16, and each warp adds 32 keys x D / 4 columns of dk and dv.
// dots[h, t] = do . o first, by a warp each.
#include <algorithm>
#include <cmath>

#include "cuda/kernels/attention_backward.cuh"
#include "cuda/ptx/math.cuh"
#include "ops/attention_cuda_scratch.h"

namespace deltatune::cuda {
namespace {

using namespace attention_mma;

template <int D>
struct Query {
  static constexpr int warps = 8;
  static constexpr int threads = 32 * warps;
  static constexpr int rows = 16 * warps;
  static constexpr int keys = 32;
  static constexpr int stages = 2;
  static constexpr int q_bytes = rows * D * 2;  ///< and as many for do
  static constexpr int k_bytes = keys * D * 2;  ///< and as many for v
  static constexpr int bytes = 2 * q_bytes + stages * 2 * k_bytes;
  static_assert(rows == query_rows);
};

template <int D>
struct Key {
  static constexpr int warps = 8;
  static constexpr int threads = 32 * warps;
  static constexpr int rows = key_rows;
  static constexpr int queries = 64;
  static constexpr int stages = 2;
  static constexpr int k_bytes = rows * D * 2;     ///< and as many for v
  static constexpr int q_bytes = queries * D * 2;  ///< and as many for do
  static constexpr int stage_bytes = 2 * q_bytes + 2 * queries * 4;
  static constexpr int p_row = 128;
  static constexpr int p_bytes = rows * p_row;  ///< and as many for ds
  static constexpr int bytes = 2 * k_bytes + stages * stage_bytes + 2 * p_bytes;
  static_assert(queries * 2 <= p_row);
};

template <int D>
__global__ void __launch_bounds__(Query<D>::threads, 1)
    query_kernel(BackwardCall call, device_bf16* __restrict__ dq) {
  using Q = Query<D>;
  constexpr int tiles = Q::keys / 8;
  const uint32_t q_tile = ptx::shared_address(dynamic_shared<char>());
  const uint32_t do_tile = q_tile + Q::q_bytes;
  const uint32_t ring = do_tile + Q::q_bytes;
  const int lane = static_cast<int>(threadIdx.x) % 32, row0 = static_cast<int>(threadIdx.x) / 32 * 16;
  const int row = row0 + lane / 4;  // and row + 8
  const float c = call.scale * log2_e;
  const int count = call.work.state[0] * call.heads;
  for (Queue queue(call.work); queue.item() < count; queue.advance()) {
    const auto [work, head, begin, q_at, k, v, key_count] = QueryItem<D>(call, queue.item());
    const int blocks = (key_count + Q::keys - 1) / Q::keys;
    // Blocks of keys that the first query of the warp sees whole, and those that its last one sees at all.
    const int whole = (work.position + row0 + 1) / Q::keys;
    const int seen = row0 < work.rows ? min(blocks, (work.position + row0 + 15) / Q::keys + 1) : 0;

    const auto load_block = [&](int block) {
      const uint32_t to = ring + static_cast<uint32_t>(block % Q::stages * 2 * Q::k_bytes);
      const int64_t key = static_cast<int64_t>(block) * Q::keys;
      const int valid = key_count - block * Q::keys;
      load_tile<D, Q::keys, Q::threads>(to, k + key * call.k_stride, call.k_stride, valid);
      load_tile<D, Q::keys, Q::threads>(to + Q::k_bytes, v + key * call.v_stride, call.v_stride, valid);
    };
    load_tile<D, Q::rows, Q::threads>(q_tile, call.q + q_at, call.q_stride, work.rows);
    load_tile<D, Q::rows, Q::threads>(do_tile, call.d_o + q_at, call.q_stride, work.rows);
    for (int block = 0; block < Q::stages - 1; ++block) {
      if (block < blocks) load_block(block);
      ptx::cp_async_commit();
    }
    float lse[2], dots[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool there = row + half * 8 < work.rows;
      const int64_t at = head * call.tokens + begin + row + half * 8;
      lse[half] = there ? call.lse[at] * log2_e : 0.0f;
      dots[half] = there ? call.dots[at] : 0.0f;
    }

    float out[1][D / 8][4] = {};
    for (int block = 0; block < blocks; ++block) {
      ptx::cp_async_wait<Q::stages - 2>();
      __syncthreads();
      if (block + Q::stages - 1 < blocks) load_block(block + Q::stages - 1);
      ptx::cp_async_commit();
      if (block >= seen) continue;
      const uint32_t k_tile = ring + static_cast<uint32_t>(block % Q::stages * 2 * Q::k_bytes);
      float s[tiles][4] = {}, dp[tiles][4] = {};
      multiply_nt<D>(s, q_tile + static_cast<uint32_t>(row0 * 2 * D), k_tile);
      multiply_nt<D>(dp, do_tile + static_cast<uint32_t>(row0 * 2 * D), k_tile + Q::k_bytes);
      if (block >= whole) {
        const int limit = work.position + row - block * Q::keys - lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < tiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (n * 8 + i % 2 > limit + i / 2 * 8) s[n][i] = -INFINITY;
          }
        }
      }
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[n][i] = ptx::exp2(fmaf(s[n][i], c, -lse[i / 2])) * (dp[n][i] - dots[i / 2]);
        }
      }
      uint32_t ds[tiles / 2][1][4];
      to_operand(ds, s);
      multiply_nn<D>(out, ds, k_tile, 0);
    }
    queue.ask();
    store_rows(dq + q_at + row0 * call.q_stride, call.q_stride, work.rows - row0, out[0], call.scale,
               call.scale);
  }
}

/// Copies the statistics of a block of queries; entries from `valid` on become 0.
template <int Queries>
__device__ inline void load_statistics(uint32_t to, const float* lse, const float* dots, int valid) {
  const int i = static_cast<int>(threadIdx.x) % Queries;
  const int kind = static_cast<int>(threadIdx.x) / Queries;
  if (kind > 1) return;
  const float* const from = kind ? dots : lse;
  ptx::cp_async_4(to + static_cast<uint32_t>(kind * Queries + i) * 4, i < valid ? from + i : from, i < valid);
}

template <int D>
__global__ void __launch_bounds__(Key<D>::threads, 1)
    key_kernel(BackwardCall call, device_bf16* __restrict__ dk, device_bf16* __restrict__ dv) {
  using K = Key<D>;
  constexpr int columns = D / 4;                 // of dk and dv, per warp
  constexpr int score_queries = K::queries / 2;  // per warp
  constexpr int tiles = score_queries / 8;
  char* const shared = dynamic_shared<char>();
  const uint32_t k_tile = ptx::shared_address(shared);
  const uint32_t v_tile = k_tile + K::k_bytes;
  const uint32_t p_tile = v_tile + K::k_bytes;
  const uint32_t ds_tile = p_tile + K::p_bytes;
  const uint32_t ring = ds_tile + K::p_bytes;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int score_row = warp % 4 * 16, score_column = warp / 4 * score_queries;
  const int out_row = warp / 4 * 32, out_column = warp % 4 * columns;
  const float c = call.scale * log2_e;
  const int count = call.work.state[0] * call.kv_heads;
  for (Queue queue(call.work); queue.item() < count; queue.advance()) {
    const int item = queue.item();
    const Work work = call.work.entries[item / call.kv_heads];
    const int kv_head = item % call.kv_heads;
    const int64_t begin = work.begin;
    const int64_t k_at = begin * call.k_stride + static_cast<int64_t>(kv_head) * D;
    const int64_t v_at = begin * call.v_stride + static_cast<int64_t>(kv_head) * D;
    const int query_blocks = (work.last - work.begin + K::queries - 1) / K::queries;
    const int blocks = query_blocks * call.group;

    int load_head = kv_head * call.group, load_query = 0;  // of the block that is copied next
    const auto load_next = [&](int block) {
      const uint32_t to = ring + static_cast<uint32_t>(block % K::stages * K::stage_bytes);
      const int valid = work.last - work.begin - load_query;
      const int64_t token = begin + load_query;
      const int64_t at = token * call.q_stride + static_cast<int64_t>(load_head) * D;
      load_tile<D, K::queries, K::threads>(to, call.q + at, call.q_stride, valid);
      load_tile<D, K::queries, K::threads>(to + K::q_bytes, call.d_o + at, call.q_stride, valid);
      const int64_t statistics = load_head * call.tokens + token;
      load_statistics<K::queries>(to + 2 * K::q_bytes, call.lse + statistics, call.dots + statistics, valid);
      load_query += K::queries;
      if (load_query >= work.last - work.begin) {
        load_query = 0;
        ++load_head;
      }
    };
    load_tile<D, K::rows, K::threads>(k_tile, call.k + k_at, call.k_stride, work.rows);
    load_tile<D, K::rows, K::threads>(v_tile, call.v + v_at, call.v_stride, work.rows);
    for (int block = 0; block < K::stages - 1; ++block) {
      if (block < blocks) load_next(block);
      ptx::cp_async_commit();
    }

    float dk_out[2][columns / 8][4] = {}, dv_out[2][columns / 8][4] = {};
    int query = 0;  // of this block, counted from the first key
    for (int block = 0; block < blocks; ++block) {
      ptx::cp_async_wait<K::stages - 2>();
      __syncthreads();
      if (block + K::stages - 1 < blocks) load_next(block + K::stages - 1);
      ptx::cp_async_commit();
      const int stage = block % K::stages * K::stage_bytes;
      const uint32_t q_tile = ring + static_cast<uint32_t>(stage), do_tile = q_tile + K::q_bytes;
      const float* const lse =
          reinterpret_cast<const float*>(shared + (ring - k_tile) + stage + 2 * K::q_bytes) + score_column +
          lane % 4 * 2;
      const float* const dots = lse + K::queries;
      float s[tiles][4] = {}, dp[tiles][4] = {};
      const auto row_bytes = [](int row) { return static_cast<uint32_t>(row * 2 * D); };
      multiply_nt<D>(s, k_tile + row_bytes(score_row), q_tile + row_bytes(score_column));
      multiply_nt<D>(dp, v_tile + row_bytes(score_row), do_tile + row_bytes(score_column));
      const int queries = work.last - work.begin - query;
      if (query < K::rows || queries < K::queries) {
        // Masked: queries before the key, and those beyond the document.
        const int key = score_row + lane / 4 - query, column = score_column + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < tiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int at = column + n * 8 + i % 2;
            if (at < key + i / 2 * 8 || at >= queries) s[n][i] = -INFINITY;
          }
        }
      }
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        const int row = score_row + lane / 4;
        const auto place = [&](uint32_t tile, int r) {
          const int piece = score_column / 8 + n;
          return tile + static_cast<uint32_t>(r * K::p_row + ((piece ^ (r % 8)) * 16) + lane % 4 * 4);
        };
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[n][i] = ptx::exp2(fmaf(s[n][i], c, -lse[n * 8 + i % 2] * log2_e));
          dp[n][i] = s[n][i] * (dp[n][i] - dots[n * 8 + i % 2]);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          ptx::store_shared(place(p_tile, row + half * 8),
                            ptx::pack_bf16(s[n][2 * half], s[n][2 * half + 1]));
          ptx::store_shared(place(ds_tile, row + half * 8),
                            ptx::pack_bf16(dp[n][2 * half], dp[n][2 * half + 1]));
        }
      }
      __syncthreads();
      const auto p_lane = lane_rows<K::p_row>();
      const auto accumulate = [&](float(&out)[2][columns / 8][4], uint32_t p, uint32_t b) {
        uint32_t left[K::queries / 16][2][4];
#pragma unroll
        for (int k = 0; k < K::queries / 16; ++k) {
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            ptx::ldmatrix_x4(left[k][m], p_lane(p + static_cast<uint32_t>((out_row + m * 16) * K::p_row), k));
          }
        }
        multiply_nn<D>(out, left, b, out_column / 16);
      };
      accumulate(dv_out, p_tile, do_tile);
      accumulate(dk_out, ds_tile, q_tile);
      query += K::queries;
      if (query >= work.last - work.begin) query = 0;
    }
    queue.ask();
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int row = out_row + m * 16;
      store_rows(dk + k_at + row * call.k_stride + out_column, call.k_stride, work.rows - row, dk_out[m],
                 call.scale, call.scale);
      store_rows(dv + v_at + row * call.v_stride + out_column, call.v_stride, work.rows - row, dv_out[m],
                 1.0f, 1.0f);
    }
  }
}

}  // namespace

void attention_backward_mma(Stream& stream, Tensor dq_THK, Tensor dk_TGK, Tensor dproj_TN, CTensor do_THK,
                            CTensor o_THK, CTensor q_THK, CTensor k_TGK, CTensor proj_TN, CTensor lse_HT,
                            const Segments& segments, AttentionShape shape) {
  const int64_t tokens = q_THK.dim(0);
  std::byte* memory = stream.scratch(attention_backward_mma_scratch(shape, tokens, segments.chunks.dim(0)));
  const WorkList queries = list_at(memory, segments.chunks.dim(0));
  const WorkList keys = list_at(memory, segments.chunks.dim(0));
  float* const dots = reinterpret_cast<float*>(memory);
  make_work(stream, "attention_backward: work", segments, queries, &keys);
  by_head_dim(shape.head_dim, [&]<int D>() {
    launch(stream, {"attention_backward: dots", q_THK}, dots_kernel<D>,
           dim3(blocks_for(tokens * shape.query_heads, 256 / warp_size)), dim3(256), 0, dots,
           pointer<device_bf16>(do_THK), pointer<device_bf16>(o_THK), tokens,
           static_cast<int>(shape.query_heads));
    BackwardCall call{make_call(q_THK, k_TGK, proj_TN, shape, keys), pointer<device_bf16>(do_THK),
                      pointer<float>(lse_HT), dots};
    launch_shared(stream, {"attention_backward: dk, dv", q_THK}, key_kernel<D>, dim3(resident_blocks(stream)),
                  dim3(Key<D>::threads), Key<D>::bytes, call, pointer<device_bf16>(dk_TGK),
                  pointer<device_bf16>(dproj_TN) + shape.v_column());
    call.work = queries;
    launch_shared(stream, {"attention_backward: dq", q_THK}, query_kernel<D>, dim3(resident_blocks(stream)),
                  dim3(Query<D>::threads), Query<D>::bytes, call, pointer<device_bf16>(dq_THK));
  });
}

}  // namespace deltatune::cuda
