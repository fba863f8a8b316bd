// What the tensor-core attention kernels share: tiles in shared memory, their fragments, and the list of
// work.
//
// A tile is rows x D bf16, a row 2 D bytes, its 16-byte pieces permuted by piece ^ (row % 8), so that both
// cp.async (a warp writes whole rows) and ldmatrix (eight rows at one column) are free of bank conflicts.
//
// The list of work is made on the device from the chunk table (ops/segments.h), because a captured step may
// depend on nothing that the host knows about one row. Blocks of a grid as large as the GPU take entries in
// order, most expensive first, by a counter; which block takes which entry changes no bit, since entries
// share no sum.
#pragma once

#include "cuda/cuda_ops.h"
#include "cuda/kernels/shared.cuh"
#include "cuda/ptx/mma.cuh"

namespace deltatune::cuda::attention_mma {

/// One entry: `rows` tokens from `begin`, at `position` in their document, which ends before token `last`.
struct Work {
  int begin, rows, position, last;
};
static_assert(sizeof(Work) == 16);

/// A list of work in device memory.
struct WorkList {
  int32_t* state;  ///< [0] entries in the list, [1] taken from it (times the heads)
  Work* entries;   ///< room for every chunk
};

/// Tokens of an entry: queries of forward and of dq (two chunks), keys of dk and dv (one chunk).
inline constexpr int query_rows = 2 * static_cast<int>(gdn_chunk);
inline constexpr int key_rows = static_cast<int>(gdn_chunk);

/// Fills a list with the tiles of queries, and with `keys` another with the tiles of keys.
void make_work(const Stream& stream, const char* op, const Segments& segments, WorkList queries,
               const WorkList* keys);

/// Where the pieces of one call lie; rows of proj are v's. Strides in elements.
struct Call {
  const device_bf16 *q, *k, *v;
  WorkList work;
  int64_t tokens;
  int64_t q_stride, k_stride, v_stride;
  int heads, kv_heads, group;
  float scale;
};

inline constexpr float log2_e = 1.4426950408889634f;

/// An entry of the list for one query head: where its rows lie, and the keys that they see.
template <int D>
struct QueryItem {
  Work work;
  int head;
  int64_t begin, q_at;
  const device_bf16 *k, *v;  ///< of the document's first token
  int key_count;

  __device__ QueryItem(const Call& call, int item)
      : work(call.work.entries[item / call.heads]), head(item % call.heads) {
    begin = work.begin;
    const int64_t first = begin - work.position;
    q_at = begin * call.q_stride + static_cast<int64_t>(head) * D;
    const int64_t kv_column = static_cast<int64_t>(head / call.group) * D;
    k = call.k + first * call.k_stride + kv_column;
    v = call.v + first * call.v_stride + kv_column;
    key_count = work.position + work.rows;
  }
};

/// Hands a block its entries (times heads): the first is its own number, the others come from the counter.
/// The answer is asked for while an entry is worked on, so that nobody waits for it.
class Queue {
 public:
  __device__ explicit Queue(const WorkList& work)
      : counter_(work.state + 1), item_(static_cast<int>(blockIdx.x)) {}
  __device__ int item() const { return item_; }
  /// Once for each entry.
  __device__ void ask() {
    if (threadIdx.x == 0) next_ = static_cast<int>(gridDim.x) + atomicAdd(counter_, 1);
  }
  /// At its end; shared memory of before may be overwritten afterwards. There is a barrier of the block
  /// between two calls.
  __device__ void advance() {
    __shared__ int taken;
    if (threadIdx.x == 0) taken = next_;
    __syncthreads();
    item_ = taken;
  }

 private:
  int32_t* counter_;
  int item_, next_ = 0;
};

/// Copies `Rows` rows of D elements into a tile without waiting; rows from `valid` on become 0.
template <int D, int Rows, int Threads>
__device__ inline void load_tile(uint32_t tile, const device_bf16* __restrict__ from, int64_t stride,
                                 int valid) {
  constexpr int pieces = D / 8;
  constexpr int step = Threads / pieces;
  static_assert(Threads % pieces == 0 && Rows % step == 0 && step % 8 == 0);
  const int piece = static_cast<int>(threadIdx.x) % pieces;
  const int first = static_cast<int>(threadIdx.x) / pieces;
  const uint32_t to = tile + static_cast<uint32_t>(first * 2 * D + ((piece ^ (first % 8)) * 16));
  const device_bf16* source = from + first * stride + piece * 8;
#pragma unroll
  for (int i = 0; i < Rows / step; ++i) {
    const bool there = first + i * step < valid;
    ptx::cp_async_16(to + static_cast<uint32_t>(i * step * 2 * D), there ? source : from, there);
    source += step * stride;
  }
}

/// How a lane addresses 16 x 16 blocks of a tile whose rows are `RowBytes` long: block(i) is 16 columns.
template <int RowBytes>
struct Lane {
  uint32_t offset;  ///< of the lane's row and piece of block 0

  __device__ Lane(int row, int piece)
      : offset(static_cast<uint32_t>(row * RowBytes + ((piece ^ (row % 8)) * 16))) {}
  /// Address in the tile at `tile` of the lane's piece in the i-th 16 columns.
  __device__ uint32_t operator()(uint32_t tile, int i) const {
    return tile + ((offset ^ static_cast<uint32_t>(i % 4 * 32)) + static_cast<uint32_t>(i / 4 * 128));
  }
};
/// A operand, and B operand stored [k][n] (ldmatrix.trans): rows 0..15, then the right eight columns.
template <int RowBytes>
__device__ inline Lane<RowBytes> lane_rows() {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return {lane % 16, lane / 16};
}
/// B operand stored [n][k]: two tiles of eight n, each its two halves of k.
template <int RowBytes>
__device__ inline Lane<RowBytes> lane_columns() {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return {lane % 8 + lane / 16 * 8, lane / 8 % 2};
}

/// s[16 rows x 8 NT] += a b^T over D columns: a's 16 rows at `a`, b's 8 NT rows at `b`.
template <int D, int NT>
__device__ inline void multiply_nt(float (&s)[NT][4], uint32_t a, uint32_t b) {
  const auto a_lane = lane_rows<2 * D>();
  const auto b_lane = lane_columns<2 * D>();
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    uint32_t left[4];
    ptx::ldmatrix_x4(left, a_lane(a, k));
#pragma unroll
    for (int n = 0; n < NT / 2; ++n) {
      uint32_t right[4];
      ptx::ldmatrix_x4(right, b_lane(b + static_cast<uint32_t>(n * 16 * 2 * D), k));
      ptx::mma_bf16(s[2 * n], left, right[0], right[1]);
      ptx::mma_bf16(s[2 * n + 1], left, right[2], right[3]);
    }
  }
}

/// out[16 MT rows x 8 NT] += p b: p [16 MT x 16 KT] in fragments p[k][m]; b's 16 KT rows of D elements at
/// `b`, from its 16-column block `first` on.
template <int D, int KT, int MT, int NT>
__device__ inline void multiply_nn(float (&out)[MT][NT][4], const uint32_t (&p)[KT][MT][4], uint32_t b,
                                   int first) {
  const auto b_lane = lane_rows<2 * D>();
#pragma unroll
  for (int k = 0; k < KT; ++k) {
#pragma unroll
    for (int n = 0; n < NT / 2; ++n) {
      uint32_t right[4];
      ptx::ldmatrix_x4_trans(right, b_lane(b + static_cast<uint32_t>(k * 16 * 2 * D), first + n));
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        ptx::mma_bf16(out[m][2 * n], p[k][m], right[0], right[1]);
        ptx::mma_bf16(out[m][2 * n + 1], p[k][m], right[2], right[3]);
      }
    }
  }
}

/// The C fragments of 16 x 8 NT values as A fragments of 16 x 16 (NT / 2).
template <int NT>
__device__ inline void to_operand(uint32_t (&p)[NT / 2][1][4], const float (&s)[NT][4]) {
#pragma unroll
  for (int k = 0; k < NT / 2; ++k) {
    p[k][0][0] = ptx::pack_bf16(s[2 * k][0], s[2 * k][1]);
    p[k][0][1] = ptx::pack_bf16(s[2 * k][2], s[2 * k][3]);
    p[k][0][2] = ptx::pack_bf16(s[2 * k + 1][0], s[2 * k + 1][1]);
    p[k][0][3] = ptx::pack_bf16(s[2 * k + 1][2], s[2 * k + 1][3]);
  }
}

/// Stores C fragments of 16 rows x 8 NT, times `factor` of each half of the rows; rows from `valid` on are
/// left out.
template <int NT>
__device__ inline void store_rows(device_bf16* to, int64_t stride, int valid, const float (&x)[NT][4],
                                  float factor_low, float factor_high) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4;
  to += row * stride + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    if (row < valid) {
      *reinterpret_cast<uint32_t*>(to + n * 8) = ptx::pack_bf16(x[n][0] * factor_low, x[n][1] * factor_low);
    }
    if (row + 8 < valid) {
      *reinterpret_cast<uint32_t*>(to + 8 * stride + n * 8) =
          ptx::pack_bf16(x[n][2] * factor_high, x[n][3] * factor_high);
    }
  }
}

/// Sum, or maximum, over the four lanes that hold one row of a C fragment.
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

Call make_call(CTensor q_THK, CTensor k_TGK, CTensor proj_TN, const AttentionShape& shape, WorkList work);
/// The list at `memory`, which has room for `entries`, and the first byte after it.
WorkList list_at(std::byte*& memory, int64_t entries);
/// Blocks of a grid that fills the GPU with one block on each multiprocessor.
unsigned resident_blocks(const Stream& stream);

/// Calls f.operator()<D>() for a head_dim that the kernels have.
template <class F>
void by_head_dim(int64_t head_dim, F&& f) {
  if (head_dim == 64) return f.template operator()<64>();
  if (head_dim == 128) return f.template operator()<128>();
  if (head_dim == 256) return f.template operator()<256>();
  throw Error(ErrorKind::internal, "no tensor-core attention kernel for heads of " + std::to_string(head_dim),
              "attention", "please report it with the command line");
}

}  // namespace deltatune::cuda::attention_mma
