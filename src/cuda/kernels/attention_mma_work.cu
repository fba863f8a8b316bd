// The lists of work of the tensor-core attention kernels: one block sorts the tiles of a row by cost
// (counting sort), most expensive first. Tiles of equal cost come in any order, which no result depends on.
//
// Cost in chunks: of a tile of queries the keys before its end, of a tile of keys the queries from its start.
#include <cmath>

#include "cuda/kernels/attention_mma.cuh"
#include "ops/attention_cuda_scratch.h"

namespace deltatune::cuda::attention_mma {
namespace {

struct Sort {
  static constexpr int threads = 1024;
  static constexpr int per_thread = 4;
  static constexpr int bins = threads * per_thread;  ///< costs above count as the last one
};

/// The tile that begins with chunk i, if one does; `rows` 0 otherwise.
__device__ Work tile_at(const int32_t* chunks, const int32_t* starts, int i, bool pairs) {
  const int4 chunk = reinterpret_cast<const int4*>(chunks)[i];  // document, first token, length, number
  Work work{chunk.y, chunk.z, chunk.w * static_cast<int>(gdn_chunk), 0};
  if (work.rows == 0) return work;
  work.last = starts[chunk.x + 1];
  if (pairs) {
    if (chunk.w % 2 == 1) {
      work.rows = 0;
    } else {
      work.rows = min(query_rows, work.last - work.begin);
    }
  }
  return work;
}

__device__ int bin_of(const Work& work, bool pairs) {
  const int tokens = pairs ? work.position + work.rows : work.last - work.begin;
  const int cost = (tokens + static_cast<int>(gdn_chunk) - 1) / static_cast<int>(gdn_chunk);
  return Sort::bins - 1 - min(cost, Sort::bins - 1);
}

/// Block 0: pairs of chunks into `queries`; block 1: chunks into `keys`.
__global__ void __launch_bounds__(Sort::threads)
    work_kernel(WorkList queries, WorkList keys, const int32_t* __restrict__ chunks,
                const int32_t* __restrict__ starts, int count) {
  __shared__ int places[Sort::bins];
  __shared__ int of_warp[32];
  const bool pairs = blockIdx.x == 0;
  const WorkList list = pairs ? queries : keys;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < Sort::bins; i += Sort::threads) places[i] = 0;
  __syncthreads();
  for (int i = thread; i < count; i += Sort::threads) {
    const Work work = tile_at(chunks, starts, i, pairs);
    if (work.rows) atomicAdd(&places[bin_of(work, pairs)], 1);
  }
  __syncthreads();
  // Exclusive prefix sum over the bins.
  int mine[Sort::per_thread];
  int sum = 0;
  for (int i = 0; i < Sort::per_thread; ++i) {
    mine[i] = sum;
    sum += places[thread * Sort::per_thread + i];
  }
  int before = sum;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int x = __shfl_up_sync(0xffffffffu, before, distance);
    if (thread % 32 >= distance) before += x;
  }
  if (thread % 32 == 31) of_warp[thread / 32] = before;
  __syncthreads();
  int offset = before - sum;
  for (int warp = 0; warp < thread / 32; ++warp) offset += of_warp[warp];
  for (int i = 0; i < Sort::per_thread; ++i) places[thread * Sort::per_thread + i] = offset + mine[i];
  if (thread == Sort::threads - 1) {
    list.state[0] = offset + sum;
    list.state[1] = 0;
  }
  __syncthreads();
  for (int i = thread; i < count; i += Sort::threads) {
    const Work work = tile_at(chunks, starts, i, pairs);
    if (work.rows) list.entries[atomicAdd(&places[bin_of(work, pairs)], 1)] = work;
  }
}

}  // namespace

void make_work(const Stream& stream, const char* op, const Segments& segments, WorkList queries,
               const WorkList* keys) {
  launch(stream, {op, segments.chunks}, work_kernel, dim3(keys ? 2 : 1), dim3(Sort::threads), 0, queries,
         keys ? *keys : queries, pointer<int32_t>(segments.chunks), pointer<int32_t>(segments.cu_seqlens),
         static_cast<int>(segments.chunks.dim(0)));
}

Call make_call(CTensor q_THK, CTensor k_TGK, CTensor proj_TN, const AttentionShape& shape, WorkList work) {
  return {pointer<device_bf16>(q_THK),
          pointer<device_bf16>(k_TGK),
          pointer<device_bf16>(proj_TN) + shape.v_column(),
          work,
          q_THK.dim(0),
          shape.query_heads * shape.head_dim,
          shape.kv_heads * shape.head_dim,
          shape.columns(),
          static_cast<int>(shape.query_heads),
          static_cast<int>(shape.kv_heads),
          static_cast<int>(shape.query_heads / shape.kv_heads),
          1.0f / std::sqrt(static_cast<float>(shape.head_dim))};
}

WorkList list_at(std::byte*& memory, int64_t entries) {
  WorkList list{reinterpret_cast<int32_t*>(memory), reinterpret_cast<Work*>(memory + 256)};
  memory += attention_work_bytes(entries);
  return list;
}

unsigned resident_blocks(const Stream& stream) {
  return static_cast<unsigned>(
      static_cast<const CudaDevice&>(stream.device()).properties().multiProcessorCount);
}

}  // namespace deltatune::cuda::attention_mma
