// Attention forward on sm_90a: wgmma, bf16 operands, fp32 scores, softmax and sums; heads of 256. Formulas in
// ops/attention.h. Deterministic.
//
// A block takes 128 queries of one head, 64 a warpgroup, and walks over the keys of their document from its
// start, 64 at a time. While the tensor cores work on the scores of the next block of keys, a warpgroup does
// the softmax of this one; then its probabilities are the operand in registers of the second product. The
// tiles of work are those of the mma kernels (attention_mma.cuh).
#include <algorithm>
#include <cmath>

#include "cuda/kernels/attention_wgmma.cuh"
#include "ops/attention_cuda_scratch.h"

namespace deltatune::cuda {
namespace {

using namespace attention_wgmma;

struct Forward {
  static constexpr int groups = 2;
  static constexpr int threads = 128 * groups;
  static constexpr int rows = group_rows * groups;
  static constexpr int keys = 64;
  static constexpr int stages = 2;
  static constexpr int bytes = 1024 + tile_bytes<rows> + stages * 2 * tile_bytes<keys>;
  static_assert(rows == query_rows);
};

/// One block of scores of a warpgroup: masks, moves the maxima on, and leaves probabilities. Returns true
/// where some maximum of the warp moved; `shift` is then what sums of before are to be multiplied with.
__device__ inline bool softmax(float (&s)[8][4], float (&top)[2], float (&sum)[2], float (&shift)[2], float c,
                               bool masked, int limit) {
  if (masked) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (n * 8 + i % 2 > limit + i / 2 * 8) s[n][i] = -INFINITY;
      }
    }
  }
  float best[2] = {top[0], top[1]};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    best[0] = fmaxf(best[0], fmaxf(s[n][0], s[n][1]));
    best[1] = fmaxf(best[1], fmaxf(s[n][2], s[n][3]));
  }
  // Key 0 is seen by every query, so the maxima are finite from the first block on.
  best[0] = row_max(best[0]);
  best[1] = row_max(best[1]);
  const bool moved = __any_sync(0xffffffffu, best[0] != top[0] || best[1] != top[1]);
  shift[0] = ptx::exp2((top[0] - best[0]) * c);
  shift[1] = ptx::exp2((top[1] - best[1]) * c);
  sum[0] *= shift[0];
  sum[1] *= shift[1];
  top[0] = best[0];
  top[1] = best[1];
  const float offset[2] = {top[0] * c, top[1] * c};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[n][i] = ptx::exp2(fmaf(s[n][i], c, -offset[i / 2]));
      sum[i / 2] += s[n][i];
    }
  }
  return moved;
}

__global__ void __launch_bounds__(Forward::threads, 1)
    forward_kernel(Call call, device_bf16* __restrict__ o, float* __restrict__ lse) {
  using F = Forward;
  const uint32_t q_tile = ptx::shared_address(aligned_shared());
  const uint32_t k_ring = q_tile + tile_bytes<F::rows>;
  const uint32_t v_ring = k_ring + F::stages * tile_bytes<F::keys>;
  const int lane = static_cast<int>(threadIdx.x) % 32, row0 = static_cast<int>(threadIdx.x) / 32 * 16;
  const int group0 = static_cast<int>(threadIdx.x) / 128 * group_rows;
  const int row = row0 + lane / 4;  // and row + 8
  const float c = call.scale * log2_e;
  const auto stage = [](int block) { return static_cast<uint32_t>(block % F::stages * tile_bytes<F::keys>); };
  const int count = call.work.state[0] * call.heads;
  for (Queue queue(call.work); queue.item() < count; queue.advance()) {
    const auto [work, head, begin, q_at, k, v, key_count] = QueryItem<head_dim>(call, queue.item());
    const int blocks = (key_count + F::keys - 1) / F::keys;
    // Blocks of keys that the first query of the warp sees whole, and those that the last one of its
    // warpgroup sees at all.
    const int whole = (work.position + row0 + 1) / F::keys;
    const int seen =
        group0 < work.rows ? min(blocks, (work.position + group0 + group_rows - 1) / F::keys + 1) : 0;

    const auto load_k = [&](int block) {
      if (block >= blocks) return;
      load_panels<F::keys, F::threads>(k_ring + stage(block),
                                       k + static_cast<int64_t>(block) * F::keys * call.k_stride,
                                       call.k_stride, key_count - block * F::keys);
    };
    const auto load_v = [&](int block) {
      if (block >= blocks) return;
      load_panels<F::keys, F::threads>(v_ring + stage(block),
                                       v + static_cast<int64_t>(block) * F::keys * call.v_stride,
                                       call.v_stride, key_count - block * F::keys);
    };
    load_panels<F::rows, F::threads>(q_tile, call.q + q_at, call.q_stride, work.rows);
    load_k(0);
    copies_arrived();
    __syncthreads();
    load_k(1);
    load_v(0);

    float out[32][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    float s[8][4], next[8][4];
    if (seen > 0) {
      ptx::wgmma_fence();
      start_nt<F::rows>(next, q_tile, group0, k_ring);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
    }
    for (int block = 0; block < blocks; ++block) {
      // Here the scores of this block are done and the output of the one before, in every warpgroup: their
      // stages are free.
      copies_arrived();
      __syncthreads();
      load_k(block + 2);
      load_v(block + 1);
      if (block >= seen) continue;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] = next[n][i];
      }
      if (block + 1 < seen) {
        ptx::wgmma_fence();
        start_nt<F::rows>(next, q_tile, group0, k_ring + stage(block + 1));
        ptx::wgmma_commit();
      }
      float shift[2];
      if (softmax(s, top, sum, shift, c, block >= whole,
                  work.position + row - block * F::keys - lane % 4 * 2)) {
#pragma unroll
        for (int n = 0; n < 32; ++n) {
          out[n][0] *= shift[0];
          out[n][1] *= shift[0];
          out[n][2] *= shift[1];
          out[n][3] *= shift[1];
        }
      }
      uint32_t p[4][1][4];
      to_operand(p, s);
      ptx::wgmma_fence();
      start_nn(out, p, v_ring + stage(block));
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
    }
    queue.ask();
    sum[0] = row_sum(sum[0]);
    sum[1] = row_sum(sum[1]);
    store_tile<F::rows>(o + q_at, call.q_stride, work.rows, q_tile, row0, out, 1.0f / sum[0], 1.0f / sum[1]);
    if (lse && lane % 4 == 0) {
      float* const to = lse + head * call.tokens + begin;
      if (row < work.rows) to[row] = top[0] * call.scale + logf(sum[0]);
      if (row + 8 < work.rows) to[row + 8] = top[1] * call.scale + logf(sum[1]);
    }
  }
}

}  // namespace

void attention_forward_wgmma(Stream& stream, Tensor o_THK, Tensor lse_HT, CTensor q_THK, CTensor k_TGK,
                             CTensor proj_TN, const Segments& segments, AttentionShape shape) {
  std::byte* memory = stream.scratch(attention_forward_mma_scratch(segments.chunks.dim(0)));
  const WorkList queries = list_at(memory, segments.chunks.dim(0));
  make_work(stream, "attention_forward: work", segments, queries, nullptr);
  launch_shared(stream, {"attention_forward", q_THK}, forward_kernel, dim3(resident_blocks(stream)),
                dim3(Forward::threads), Forward::bytes, make_call(q_THK, k_TGK, proj_TN, shape, queries),
                pointer<device_bf16>(o_THK), lse_HT.count() ? pointer<float>(lse_HT) : nullptr);
}

}  // namespace deltatune::cuda
