// Attention backward on sm_90a: wgmma, bf16 operands, fp32 scores, softmax and sums; heads of 256. Formulas
// in ops/attention.h. Deterministic, in two kernels as on older GPUs (attention_mma_backward.cu).
//
// dq: a block takes 128 queries of one head, 64 a warpgroup, and walks over their keys, 64 at a time.
// dk, dv: a block takes 64 keys of one key/value head and walks over the query heads of the group and their
// queries, 64 at a time. One warpgroup computes the scores (keys x queries) and adds to dv; the other
// computes do v^T, takes the probabilities from the first through shared memory, in fp32, and adds to dk.
// Both have one product of each kind per step. dots[h, t] = do . o first, by a warp each.
#include <algorithm>
#include <cmath>

#include "cuda/kernels/attention_backward.cuh"
#include "cuda/kernels/attention_wgmma.cuh"
#include "ops/attention_cuda_scratch.h"

namespace deltatune::cuda {
namespace {

using namespace attention_wgmma;

struct Query {
  static constexpr int groups = 2;
  static constexpr int threads = 128 * groups;
  static constexpr int rows = group_rows * groups;
  static constexpr int keys = 64;
  static constexpr int k_stages = 2;  ///< v has one: it is free after half a step
  static constexpr int bytes = 1024 + 2 * tile_bytes<rows> + (k_stages + 1) * tile_bytes<keys>;
  static_assert(rows == query_rows);
};

struct Key {
  static constexpr int threads = 256;
  static constexpr int rows = group_rows;
  static constexpr int queries = 64;
  static constexpr int stages = 2;
  static constexpr int stage_bytes = 2 * tile_bytes<queries>;
  static constexpr int p_bytes = rows * queries * 4;
  static constexpr int statistics_bytes = 2 * queries * 4;
  static constexpr int bytes =
      1024 + 2 * tile_bytes<rows> + stages * stage_bytes + p_bytes + stages * statistics_bytes;
  static constexpr int p_barrier = 1;
  static_assert(rows == key_rows);
};

__global__ void __launch_bounds__(Query::threads, 1)
    query_kernel(BackwardCall call, device_bf16* __restrict__ dq) {
  using Q = Query;
  const uint32_t q_tile = ptx::shared_address(aligned_shared());
  const uint32_t do_tile = q_tile + tile_bytes<Q::rows>;
  const uint32_t v_tile = do_tile + tile_bytes<Q::rows>;
  const uint32_t k_ring = v_tile + tile_bytes<Q::keys>;
  const int lane = static_cast<int>(threadIdx.x) % 32, row0 = static_cast<int>(threadIdx.x) / 32 * 16;
  const int group0 = static_cast<int>(threadIdx.x) / 128 * group_rows;
  const int row = row0 + lane / 4;  // and row + 8
  const float c = call.scale * log2_e;
  const auto stage = [](int block) {
    return static_cast<uint32_t>(block % Q::k_stages * tile_bytes<Q::keys>);
  };
  const int count = call.work.state[0] * call.heads;
  for (Queue queue(call.work); queue.item() < count; queue.advance()) {
    const auto [work, head, begin, q_at, k, v, key_count] = QueryItem<head_dim>(call, queue.item());
    const int blocks = (key_count + Q::keys - 1) / Q::keys;
    // Blocks of keys that the first query of the warp sees whole, and those that the last one of its
    // warpgroup sees at all.
    const int whole = (work.position + row0 + 1) / Q::keys;
    const int seen =
        group0 < work.rows ? min(blocks, (work.position + group0 + group_rows - 1) / Q::keys + 1) : 0;

    const auto load_k = [&](int block) {
      if (block >= blocks) return;
      load_panels<Q::keys, Q::threads>(k_ring + stage(block),
                                       k + static_cast<int64_t>(block) * Q::keys * call.k_stride,
                                       call.k_stride, key_count - block * Q::keys);
    };
    const auto load_v = [&](int block) {
      if (block >= blocks) return;
      load_panels<Q::keys, Q::threads>(v_tile, v + static_cast<int64_t>(block) * Q::keys * call.v_stride,
                                       call.v_stride, key_count - block * Q::keys);
    };
    load_panels<Q::rows, Q::threads>(q_tile, call.q + q_at, call.q_stride, work.rows);
    load_panels<Q::rows, Q::threads>(do_tile, call.d_o + q_at, call.q_stride, work.rows);
    load_k(0);
    load_v(0);
    float lse[2], dots[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool there = row + half * 8 < work.rows;
      const int64_t at = head * call.tokens + begin + row + half * 8;
      lse[half] = there ? call.lse[at] * log2_e : 0.0f;
      dots[half] = there ? call.dots[at] : 0.0f;
    }

    float out[32][4] = {};
    for (int block = 0; block < blocks; ++block) {
      copies_arrived();
      __syncthreads();
      load_k(block + 1);
      const bool mine = block < seen;
      float s[8][4], dp[8][4];
      if (mine) {
        ptx::wgmma_fence();
        start_nt<Q::rows>(s, q_tile, group0, k_ring + stage(block));
        ptx::wgmma_commit();
        start_nt<Q::rows>(dp, do_tile, group0, v_tile);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        if (block >= whole) {
          const int limit = work.position + row - block * Q::keys - lane % 4 * 2;
#pragma unroll
          for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              if (n * 8 + i % 2 > limit + i / 2 * 8) s[n][i] = -INFINITY;
            }
          }
        }
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) s[n][i] = ptx::exp2(fmaf(s[n][i], c, -lse[i / 2]));
        }
        ptx::wgmma_wait<0>();
      }
      __syncthreads();
      load_v(block + 1);
      if (!mine) continue;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] *= dp[n][i] - dots[i / 2];
      }
      uint32_t ds[4][1][4];
      to_operand(ds, s);
      ptx::wgmma_fence();
      start_nn(out, ds, k_ring + stage(block));
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
    }
    queue.ask();
    store_tile<Q::rows>(dq + q_at, call.q_stride, work.rows, q_tile, row0, out, call.scale, call.scale);
  }
}

/// Copies the statistics of a block of queries; entries from `valid` on become 0.
__device__ inline void load_statistics(uint32_t to, const float* lse, const float* dots, int valid) {
  const int i = static_cast<int>(threadIdx.x) % Key::queries;
  const int kind = static_cast<int>(threadIdx.x) / Key::queries;
  if (kind > 1) return;
  const float* const from = kind ? dots : lse;
  ptx::cp_async_4(to + static_cast<uint32_t>(kind * Key::queries + i) * 4, i < valid ? from + i : from,
                  i < valid);
}

__global__ void __launch_bounds__(Key::threads, 1)
    key_kernel(BackwardCall call, device_bf16* __restrict__ dk, device_bf16* __restrict__ dv) {
  using K = Key;
  char* const shared = aligned_shared();
  const uint32_t k_tile = ptx::shared_address(shared);
  const uint32_t v_tile = k_tile + tile_bytes<K::rows>;
  const uint32_t ring = v_tile + tile_bytes<K::rows>;
  float4* const exchange = reinterpret_cast<float4*>(shared + (ring - k_tile) + K::stages * K::stage_bytes);
  char* const statistics = reinterpret_cast<char*>(exchange) + K::p_bytes;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool scores = threadIdx.x < 128;  // this warpgroup has the scores and dv
  const int thread = static_cast<int>(threadIdx.x) % 128, row0 = thread / 32 * 16;
  const float c = call.scale * log2_e;
  const int count = call.work.state[0] * call.kv_heads;
  for (Queue queue(call.work); queue.item() < count; queue.advance()) {
    const int item = queue.item();
    const Work work = call.work.entries[item / call.kv_heads];
    const int kv_head = item % call.kv_heads;
    const int64_t begin = work.begin;
    const int64_t k_at = begin * call.k_stride + static_cast<int64_t>(kv_head) * head_dim;
    const int64_t v_at = begin * call.v_stride + static_cast<int64_t>(kv_head) * head_dim;
    const int length = work.last - work.begin;
    const int blocks = (length + K::queries - 1) / K::queries * call.group;

    int load_head = kv_head * call.group, load_query = 0;  // of the block that is copied next
    const auto load_next = [&](int block) {
      if (block >= blocks) return;
      const uint32_t to = ring + static_cast<uint32_t>(block % K::stages * K::stage_bytes);
      const int valid = length - load_query;
      const int64_t token = begin + load_query;
      const int64_t at = token * call.q_stride + static_cast<int64_t>(load_head) * head_dim;
      load_panels<K::queries, K::threads>(to, call.q + at, call.q_stride, valid);
      load_panels<K::queries, K::threads>(to + tile_bytes<K::queries>, call.d_o + at, call.q_stride, valid);
      const int64_t from = load_head * call.tokens + token;
      load_statistics(ptx::shared_address(statistics + block % K::stages * K::statistics_bytes),
                      call.lse + from, call.dots + from, valid);
      load_query += K::queries;
      if (load_query >= length) {
        load_query = 0;
        ++load_head;
      }
    };
    load_panels<K::rows, K::threads>(k_tile, call.k + k_at, call.k_stride, work.rows);
    load_panels<K::rows, K::threads>(v_tile, call.v + v_at, call.v_stride, work.rows);
    load_next(0);

    float out[32][4] = {};
    int query = 0;  // of this block, counted from the first key
    for (int block = 0; block < blocks; ++block) {
      copies_arrived();
      __syncthreads();
      load_next(block + 1);
      const uint32_t q_tile = ring + static_cast<uint32_t>(block % K::stages * K::stage_bytes);
      const uint32_t do_tile = q_tile + tile_bytes<K::queries>;
      const float* const columns =
          reinterpret_cast<const float*>(statistics + block % K::stages * K::statistics_bytes) + lane % 4 * 2;
      float s[8][4];
      uint32_t p[4][1][4];
      if (scores) {
        ptx::wgmma_fence();
        start_nt<K::rows>(s, k_tile, 0, q_tile);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        const int queries = length - query;
        if (query < K::rows || queries < K::queries) {
          // Masked: queries before the key, and those beyond the document.
          const int key = row0 + lane / 4 - query, column = lane % 4 * 2;
#pragma unroll
          for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int at = column + n * 8 + i % 2;
              if (at < key + i / 2 * 8 || at >= queries) s[n][i] = -INFINITY;
            }
          }
        }
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            s[n][i] = ptx::exp2(fmaf(s[n][i], c, -columns[n * 8 + i % 2] * log2_e));
          }
          exchange[n * 128 + thread] = make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
        }
        ptx::barrier_arrive(K::p_barrier, K::threads);
        to_operand(p, s);
        ptx::wgmma_fence();
        start_nn(out, p, do_tile);
      } else {
        ptx::wgmma_fence();
        start_nt<K::rows>(s, v_tile, 0, do_tile);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::barrier_sync(K::p_barrier, K::threads);
        const float* const dots = columns + K::queries;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const float4 of_scores = exchange[n * 128 + thread];
          s[n][0] = of_scores.x * (s[n][0] - dots[n * 8]);
          s[n][1] = of_scores.y * (s[n][1] - dots[n * 8 + 1]);
          s[n][2] = of_scores.z * (s[n][2] - dots[n * 8]);
          s[n][3] = of_scores.w * (s[n][3] - dots[n * 8 + 1]);
        }
        to_operand(p, s);
        ptx::wgmma_fence();
        start_nn(out, p, q_tile);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      query += K::queries;
      if (query >= length) query = 0;
    }
    queue.ask();
    device_bf16* const to = scores ? dv + v_at : dk + k_at;
    const int64_t stride = scores ? call.v_stride : call.k_stride;
    const float factor = scores ? 1.0f : call.scale;
    store_tile<K::rows>(to, stride, work.rows, scores ? k_tile : v_tile, row0, out, factor, factor);
  }
}

}  // namespace

void attention_backward_wgmma(Stream& stream, Tensor dq_THK, Tensor dk_TGK, Tensor dproj_TN, CTensor do_THK,
                              CTensor o_THK, CTensor q_THK, CTensor k_TGK, CTensor proj_TN, CTensor lse_HT,
                              const Segments& segments, AttentionShape shape) {
  const int64_t tokens = q_THK.dim(0);
  std::byte* memory = stream.scratch(attention_backward_mma_scratch(shape, tokens, segments.chunks.dim(0)));
  const WorkList queries = list_at(memory, segments.chunks.dim(0));
  const WorkList keys = list_at(memory, segments.chunks.dim(0));
  float* const dots = reinterpret_cast<float*>(memory);
  make_work(stream, "attention_backward: work", segments, queries, &keys);
  launch(stream, {"attention_backward: dots", q_THK}, dots_kernel<head_dim>,
         dim3(blocks_for(tokens * shape.query_heads, 256 / warp_size)), dim3(256), 0, dots,
         pointer<device_bf16>(do_THK), pointer<device_bf16>(o_THK), tokens,
         static_cast<int>(shape.query_heads));
  BackwardCall call{make_call(q_THK, k_TGK, proj_TN, shape, keys), pointer<device_bf16>(do_THK),
                    pointer<float>(lse_HT), dots};
  launch_shared(stream, {"attention_backward: dk, dv", q_THK}, key_kernel, dim3(resident_blocks(stream)),
                dim3(Key::threads), Key::bytes, call, pointer<device_bf16>(dk_TGK),
                pointer<device_bf16>(dproj_TN) + shape.v_column());
  call.work = queries;
  launch_shared(stream, {"attention_backward: dq", q_THK}, query_kernel, dim3(resident_blocks(stream)),
                dim3(Query::threads), Query::bytes, call, pointer<device_bf16>(dq_THK));
}

}  // namespace deltatune::cuda
