// Attention forward on tensor cores: bf16 operands, fp32 scores, softmax and sums; heads of 64, 128 or 256.
// Formulas in ops/attention.h. Deterministic.
//
// A block takes 128 queries of one head and walks over the keys of their document from its start, 16 queries
// a warp, whose scores, softmax and output stay in its registers; probabilities become bf16 operands of the
// second product. Keys and values are copied ahead into a ring of stages. Queries count from the start of
// their document, so a document's bits depend on nothing outside it.
#include <algorithm>
#include <cmath>

#include "cuda/kernels/attention_mma.cuh"
#include "cuda/ptx/math.cuh"
#include "ops/attention_cuda_scratch.h"

namespace deltatune::cuda {
namespace {

using namespace attention_mma;

template <int D>
struct Forward {
  static constexpr int warps = 8;
  static constexpr int threads = 32 * warps;
  static constexpr int rows = 16 * warps;
  static constexpr int keys = 64;
  static constexpr int stages = 2;
  static constexpr int q_bytes = rows * D * 2;
  static constexpr int k_bytes = keys * D * 2;  ///< and as many for v
  static constexpr int bytes = q_bytes + stages * 2 * k_bytes;
  static_assert(rows == query_rows);
};

template <int D>
__global__ void __launch_bounds__(Forward<D>::threads, 1)
    forward_kernel(Call call, device_bf16* __restrict__ o, float* __restrict__ lse) {
  using F = Forward<D>;
  constexpr int tiles = F::keys / 8;
  const uint32_t q_tile = ptx::shared_address(dynamic_shared<char>());
  const uint32_t ring = q_tile + F::q_bytes;
  const int lane = static_cast<int>(threadIdx.x) % 32, row0 = static_cast<int>(threadIdx.x) / 32 * 16;
  const int row = row0 + lane / 4;  // and row + 8
  const float c = call.scale * log2_e;
  const int count = call.work.state[0] * call.heads;
  for (Queue queue(call.work); queue.item() < count; queue.advance()) {
    const auto [work, head, begin, q_at, k, v, key_count] = QueryItem<D>(call, queue.item());
    const int blocks = (key_count + F::keys - 1) / F::keys;
    // Blocks of keys that the first query of the warp sees whole, and those that its last one sees at all.
    const int whole = (work.position + row0 + 1) / F::keys;
    const int seen = row0 < work.rows ? min(blocks, (work.position + row0 + 15) / F::keys + 1) : 0;

    const auto load_block = [&](int block) {
      const uint32_t to = ring + static_cast<uint32_t>(block % F::stages * 2 * F::k_bytes);
      const int64_t key = static_cast<int64_t>(block) * F::keys;
      const int valid = key_count - block * F::keys;
      load_tile<D, F::keys, F::threads>(to, k + key * call.k_stride, call.k_stride, valid);
      load_tile<D, F::keys, F::threads>(to + F::k_bytes, v + key * call.v_stride, call.v_stride, valid);
    };
    load_tile<D, F::rows, F::threads>(q_tile, call.q + q_at, call.q_stride, work.rows);
    for (int block = 0; block < F::stages - 1; ++block) {
      if (block < blocks) load_block(block);
      ptx::cp_async_commit();
    }

    float out[1][D / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    for (int block = 0; block < blocks; ++block) {
      ptx::cp_async_wait<F::stages - 2>();
      __syncthreads();
      if (block + F::stages - 1 < blocks) load_block(block + F::stages - 1);
      ptx::cp_async_commit();
      if (block >= seen) continue;
      const uint32_t k_tile = ring + static_cast<uint32_t>(block % F::stages * 2 * F::k_bytes);
      float s[tiles][4] = {};
      multiply_nt<D>(s, q_tile + static_cast<uint32_t>(row0 * 2 * D), k_tile);
      if (block >= whole) {
        const int limit = work.position + row - block * F::keys - lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < tiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (n * 8 + i % 2 > limit + i / 2 * 8) s[n][i] = -INFINITY;
          }
        }
      }
      float best[2] = {top[0], top[1]};
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        best[0] = fmaxf(best[0], fmaxf(s[n][0], s[n][1]));
        best[1] = fmaxf(best[1], fmaxf(s[n][2], s[n][3]));
      }
      // Key 0 is seen by every query, so the maxima are finite from the first block on.
      best[0] = row_max(best[0]);
      best[1] = row_max(best[1]);
      if (__any_sync(0xffffffffu, best[0] != top[0] || best[1] != top[1])) {
        const float shift[2] = {ptx::exp2((top[0] - best[0]) * c), ptx::exp2((top[1] - best[1]) * c)};
        sum[0] *= shift[0];
        sum[1] *= shift[1];
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          out[0][n][0] *= shift[0];
          out[0][n][1] *= shift[0];
          out[0][n][2] *= shift[1];
          out[0][n][3] *= shift[1];
        }
        top[0] = best[0];
        top[1] = best[1];
      }
      const float offset[2] = {top[0] * c, top[1] * c};
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[n][i] = ptx::exp2(fmaf(s[n][i], c, -offset[i / 2]));
          sum[i / 2] += s[n][i];
        }
      }
      uint32_t p[tiles / 2][1][4];
      to_operand(p, s);
      multiply_nn<D>(out, p, k_tile + F::k_bytes, 0);
    }
    queue.ask();
    sum[0] = row_sum(sum[0]);
    sum[1] = row_sum(sum[1]);
    store_rows(o + q_at + row0 * call.q_stride, call.q_stride, work.rows - row0, out[0], 1.0f / sum[0],
               1.0f / sum[1]);
    if (lse && lane % 4 == 0) {
      float* const to = lse + head * call.tokens + begin;
      if (row < work.rows) to[row] = top[0] * call.scale + logf(sum[0]);
      if (row + 8 < work.rows) to[row + 8] = top[1] * call.scale + logf(sum[1]);
    }
  }
}

}  // namespace

void attention_forward_mma(Stream& stream, Tensor o_THK, Tensor lse_HT, CTensor q_THK, CTensor k_TGK,
                           CTensor proj_TN, const Segments& segments, AttentionShape shape) {
  std::byte* memory = stream.scratch(attention_forward_mma_scratch(segments.chunks.dim(0)));
  const WorkList queries = list_at(memory, segments.chunks.dim(0));
  make_work(stream, "attention_forward: work", segments, queries, nullptr);
  by_head_dim(shape.head_dim, [&]<int D>() {
    launch_shared(stream, {"attention_forward", q_THK}, forward_kernel<D>, dim3(resident_blocks(stream)),
                  dim3(Forward<D>::threads), Forward<D>::bytes,
                  make_call(q_THK, k_TGK, proj_TN, shape, queries), pointer<device_bf16>(o_THK),
                  lse_HT.count() ? pointer<float>(lse_HT) : nullptr);
  });
}

}  // namespace deltatune::cuda
