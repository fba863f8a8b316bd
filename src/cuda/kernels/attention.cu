// Attention, plain: causal inside each document, grouped heads, any head_dim up to 256; formulas in
// ops/attention.h. fp32 FMA in tiles of 64 queries x 64 keys, streaming softmax in forward, probabilities
// recomputed from lse in backward. Deterministic: each output row belongs to one block, sums in a fixed
// order.
//
// Tiles of rows are the entries of the chunk table (64 tokens or fewer, never across documents), so they
// count from the start of their document and a document's bits depend on nothing outside it. Late tiles see
// the most keys and start first. Scores and probabilities stay in fp32.
#include <algorithm>
#include <cmath>

#include "cuda/cuda_ops.h"
#include "cuda/kernels/tile.cuh"
#include "ops/scratch.h"

namespace deltatune::cuda {
namespace {

static_assert(Tile::rows == gdn_chunk);

/// Where the pieces of one call lie; rows of proj are v's.
template <class T>
struct Call {
  const T *q, *k, *v;
  const int32_t *chunks, *starts;
  int64_t tokens;
  int64_t q_stride, k_stride, v_stride;
  int dim, group;
  float scale;
};

/// What backward needs besides; lse and dots (do . o) are [H, T].
template <class T>
struct BackwardCall : Call<T> {
  const T* d_o;
  const float *lse, *dots;
};

/// One entry of the chunk table: tokens [begin, begin + rows) of the document [first, last).
struct Part {
  int64_t first, last, begin;
  int rows;  ///< 0: not in use

  __device__ Part(const int32_t* chunks, const int32_t* starts, int64_t index) {
    const int32_t* const entry = chunks + 4 * index;
    rows = entry[2];
    begin = entry[1];
    first = begin - static_cast<int64_t>(entry[3]) * Tile::rows;
    last = rows ? starts[entry[0] + 1] : 0;
  }
};

template <int NC>
struct AttentionShared {
  static constexpr int square = Tile::rows * Tile::stride;
  static constexpr int floats(int squares) { return Tile::panel_floats<NC> + squares * square; }
};

/// Rows from `from`, `stride` apart: element(row, i) is 0 beyond `rows` and beyond dim.
template <class T>
struct Rows {
  const T* from;
  int64_t stride;
  int rows, dim;
  __device__ float operator()(int row, int i) const {
    return row < rows && i < dim ? load(from[row * stride + i]) : 0.0f;
  }
};

/// Grid: chunk table, query heads.
template <class T, int NC>
__global__ void __launch_bounds__(Tile::threads)
    forward_kernel(Call<T> call, T* __restrict__ o, float* __restrict__ lse) {
  const Part part(call.chunks, call.starts, gridDim.x - 1 - blockIdx.x);
  if (part.rows == 0) return;
  float* const panels = dynamic_shared<float>();
  float* const p_keys_rows = panels + Tile::panel_floats<NC>;
  const int head = static_cast<int>(blockIdx.y), row0 = Tile::row(), dim = call.dim;
  const int64_t head_column = static_cast<int64_t>(head) * dim, kv_column = head / call.group * dim;
  const Rows<T> q{call.q + part.begin * call.q_stride + head_column, call.q_stride, part.rows, dim};
  float out[4][NC] = {};
  float top[4], sum[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    top[i] = -INFINITY;
    sum[i] = 0;
  }
  for (int64_t k0 = part.first; k0 <= part.begin; k0 += Tile::rows) {
    const int keys = static_cast<int>(min(static_cast<int64_t>(Tile::rows), part.begin + part.rows - k0));
    const Rows<T> k{call.k + k0 * call.k_stride + kv_column, call.k_stride, keys, dim};
    const Rows<T> v{call.v + k0 * call.v_stride + kv_column, call.v_stride, keys, dim};
    float s[4][4] = {};
    multiply<Along::depth, Along::depth>(s, dim, panels, q, k);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t seen = min(static_cast<int64_t>(keys), part.begin + row0 + i - k0 + 1);
      float best = -INFINITY;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[i][j] = Tile::column(j) < seen ? s[i][j] * call.scale : -INFINITY;
        best = fmaxf(best, s[i][j]);
      }
      best = fmaxf(lanes_max<Tile::lanes>(best), top[i]);
      const float shift = expf(top[i] - best);
      float total = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float p = expf(s[i][j] - best);
        total += p;
        p_keys_rows[Tile::column(j) * Tile::stride + row0 + i] = p;
      }
      top[i] = best;
      sum[i] = sum[i] * shift + lanes_sum<Tile::lanes>(total);
#pragma unroll
      for (int c = 0; c < NC; ++c) out[i][c] *= shift;
    }
    multiply_shared<Along::rows>(out, keys, panels, p_keys_rows,
                                 [&](int column, int key) { return v(key, column); });
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (row0 + i >= part.rows) continue;
    const int64_t t = part.begin + row0 + i;
    const float inverse = 1.0f / sum[i];
#pragma unroll
    for (int c = 0; c < NC; ++c) {
      const int column = Tile::column(c);
      if (column < dim) o[t * call.q_stride + head_column + column] = store<T>(out[i][c] * inverse);
    }
    if (lse && threadIdx.x % Tile::lanes == 0) lse[head * call.tokens + t] = top[i] + logf(sum[i]);
  }
}

/// dots[h, t] = do . o, a warp each.
template <class T>
__global__ void __launch_bounds__(Tile::threads)
    dots_kernel(float* __restrict__ dots, const T* __restrict__ d_o, const T* __restrict__ o, int64_t tokens,
                int64_t heads, int dim) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * Tile::threads + threadIdx.x) / warp_size;
  if (i >= tokens * heads) return;
  float sum = 0;
  for (int j = lane; j < dim; j += warp_size) sum += load(d_o[i * dim + j]) * load(o[i * dim + j]);
  sum = lanes_sum(sum);
  if (lane == 0) dots[i % heads * tokens + i / heads] = sum;
}

/// dq of one tile of queries of one head. Grid: chunk table, query heads.
template <class T, int NC>
__global__ void __launch_bounds__(Tile::threads) query_kernel(BackwardCall<T> call, T* __restrict__ dq) {
  const Part part(call.chunks, call.starts, gridDim.x - 1 - blockIdx.x);
  if (part.rows == 0) return;
  float* const panels = dynamic_shared<float>();
  float* const ds_keys_rows = panels + Tile::panel_floats<NC>;
  const int head = static_cast<int>(blockIdx.y), row0 = Tile::row(), dim = call.dim;
  const int64_t head_column = static_cast<int64_t>(head) * dim, kv_column = head / call.group * dim;
  const Rows<T> q{call.q + part.begin * call.q_stride + head_column, call.q_stride, part.rows, dim};
  const Rows<T> d_o{call.d_o + part.begin * call.q_stride + head_column, call.q_stride, part.rows, dim};
  float lse[4], dots[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t at = head * call.tokens + part.begin + row0 + i;
    lse[i] = row0 + i < part.rows ? call.lse[at] : 0.0f;
    dots[i] = row0 + i < part.rows ? call.dots[at] : 0.0f;
  }
  float out[4][NC] = {};
  for (int64_t k0 = part.first; k0 <= part.begin; k0 += Tile::rows) {
    const int keys = static_cast<int>(min(static_cast<int64_t>(Tile::rows), part.begin + part.rows - k0));
    const Rows<T> k{call.k + k0 * call.k_stride + kv_column, call.k_stride, keys, dim};
    const Rows<T> v{call.v + k0 * call.v_stride + kv_column, call.v_stride, keys, dim};
    float s[4][4] = {}, dp[4][4] = {};
    multiply<Along::depth, Along::depth>(s, dim, panels, q, k);
    multiply<Along::depth, Along::depth>(dp, dim, panels, d_o, v);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t seen =
          row0 + i < part.rows ? min(static_cast<int64_t>(keys), part.begin + row0 + i - k0 + 1) : 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int column = Tile::column(j);
        const float p = expf(s[i][j] * call.scale - lse[i]);
        ds_keys_rows[column * Tile::stride + row0 + i] =
            column < seen ? p * (dp[i][j] - dots[i]) * call.scale : 0.0f;
      }
    }
    multiply_shared<Along::rows>(out, keys, panels, ds_keys_rows,
                                 [&](int column, int key) { return k(key, column); });
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int c = 0; c < NC; ++c) {
      const int column = Tile::column(c);
      if (row0 + i < part.rows && column < dim) {
        dq[(part.begin + row0 + i) * call.q_stride + head_column + column] = store<T>(out[i][c]);
      }
    }
  }
}

/// dk and dv of one tile of keys of one key/value head: over the query heads of its group, then over the
/// tiles of queries that can see it. Rows of the tile are keys. Grid: chunk table, key/value heads.
template <class T, int NC>
__global__ void __launch_bounds__(Tile::threads)
    key_kernel(BackwardCall<T> call, T* __restrict__ dk, T* __restrict__ dv) {
  const Part part(call.chunks, call.starts, blockIdx.x);
  if (part.rows == 0) return;
  float* const panels = dynamic_shared<float>();
  float* const p_queries_keys = panels + Tile::panel_floats<NC>;
  float* const ds_queries_keys = p_queries_keys + AttentionShared<NC>::square;
  const int kv_head = static_cast<int>(blockIdx.y), row0 = Tile::row(), dim = call.dim;
  const int64_t kv_column = static_cast<int64_t>(kv_head) * dim;
  const Rows<T> k{call.k + part.begin * call.k_stride + kv_column, call.k_stride, part.rows, dim};
  const Rows<T> v{call.v + part.begin * call.v_stride + kv_column, call.v_stride, part.rows, dim};
  float dk_out[4][NC] = {}, dv_out[4][NC] = {};
  for (int head = kv_head * call.group; head < (kv_head + 1) * call.group; ++head) {
    for (int64_t t0 = part.begin; t0 < part.last; t0 += Tile::rows) {
      const int queries = static_cast<int>(min(static_cast<int64_t>(Tile::rows), part.last - t0));
      const int64_t at = t0 * call.q_stride + static_cast<int64_t>(head) * dim;
      const Rows<T> q{call.q + at, call.q_stride, queries, dim};
      const Rows<T> d_o{call.d_o + at, call.q_stride, queries, dim};
      float s[4][4] = {}, dp[4][4] = {};
      multiply<Along::depth, Along::depth>(s, dim, panels, k, q);
      multiply<Along::depth, Along::depth>(dp, dim, panels, v, d_o);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int query = Tile::column(j);
        const bool valid = query < queries;
        const float lse = valid ? call.lse[head * call.tokens + t0 + query] : 0.0f;
        const float dots = valid ? call.dots[head * call.tokens + t0 + query] : 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool seen = valid && row0 + i < part.rows && part.begin + row0 + i <= t0 + query;
          const float p = seen ? expf(s[i][j] * call.scale - lse) : 0.0f;
          p_queries_keys[query * Tile::stride + row0 + i] = p;
          ds_queries_keys[query * Tile::stride + row0 + i] = seen ? p * (dp[i][j] - dots) * call.scale : 0.0f;
        }
      }
      multiply_shared<Along::rows>(dk_out, queries, panels, ds_queries_keys,
                                   [&](int column, int query) { return q(query, column); });
      multiply_shared<Along::rows>(dv_out, queries, panels, p_queries_keys,
                                   [&](int column, int query) { return d_o(query, column); });
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int c = 0; c < NC; ++c) {
      const int column = Tile::column(c);
      if (row0 + i >= part.rows || column >= dim) continue;
      const int64_t t = part.begin + row0 + i;
      dk[t * call.k_stride + kv_column + column] = store<T>(dk_out[i][c]);
      dv[t * call.v_stride + kv_column + column] = store<T>(dv_out[i][c]);
    }
  }
}

template <class T>
Call<T> make_call(CTensor q_THK, CTensor k_TGK, CTensor proj_TN, const Segments& segments,
                  const AttentionShape& shape) {
  return {pointer<T>(q_THK),
          pointer<T>(k_TGK),
          pointer<T>(proj_TN) + shape.v_column(),
          pointer<int32_t>(segments.chunks),
          pointer<int32_t>(segments.cu_seqlens),
          q_THK.dim(0),
          shape.query_heads * shape.head_dim,
          shape.kv_heads * shape.head_dim,
          shape.columns(),
          static_cast<int>(shape.head_dim),
          static_cast<int>(shape.query_heads / shape.kv_heads),
          1.0f / std::sqrt(static_cast<float>(shape.head_dim))};
}

/// Calls f.operator()<NC>() for the narrowest tile that holds head_dim columns.
template <class F>
void by_head_dim(int64_t head_dim, F&& f) {
  if (head_dim <= 64) return f.template operator()<4>();
  if (head_dim <= 128) return f.template operator()<8>();
  if (head_dim <= 256) return f.template operator()<16>();
  throw Error(ErrorKind::internal, "no CUDA kernel for heads of " + std::to_string(head_dim), "attention",
              "please report it with the command line");
}

}  // namespace

void attention_forward(Stream& stream, Tensor o_THK, Tensor lse_HT, CTensor q_THK, CTensor k_TGK,
                       CTensor proj_TN, const Segments& segments, AttentionShape shape) {
  by_storage(q_THK.dtype, [&](auto zero) {
    using T = decltype(zero);
    by_head_dim(shape.head_dim, [&]<int NC>() {
      launch_shared(
          stream, {"attention_forward", q_THK}, forward_kernel<T, NC>,
          dim3(static_cast<unsigned>(segments.chunks.dim(0)), static_cast<unsigned>(shape.query_heads)),
          dim3(Tile::threads), AttentionShared<NC>::floats(1) * sizeof(float),
          make_call<T>(q_THK, k_TGK, proj_TN, segments, shape), pointer<T>(o_THK), wanted<float>(lse_HT));
    });
  });
}

void attention_backward(Stream& stream, Tensor dq_THK, Tensor dk_TGK, Tensor dproj_TN, CTensor do_THK,
                        CTensor o_THK, CTensor q_THK, CTensor k_TGK, CTensor proj_TN, CTensor lse_HT,
                        const Segments& segments, AttentionShape shape) {
  const int64_t tokens = q_THK.dim(0);
  by_storage(q_THK.dtype, [&](auto zero) {
    using T = decltype(zero);
    float* const dots = reinterpret_cast<float*>(
        stream.scratch(scratch::attention_backward(Target::cuda, q_THK.dtype, tokens, shape)));
    launch(stream, {"attention_backward: dots", q_THK}, dots_kernel<T>,
           dim3(blocks_for(tokens * shape.query_heads * warp_size, Tile::threads)), dim3(Tile::threads), 0,
           dots, pointer<T>(do_THK), pointer<T>(o_THK), tokens, shape.query_heads,
           static_cast<int>(shape.head_dim));
    const BackwardCall<T> call{make_call<T>(q_THK, k_TGK, proj_TN, segments, shape), pointer<T>(do_THK),
                               pointer<float>(lse_HT), dots};
    const unsigned parts = static_cast<unsigned>(segments.chunks.dim(0));
    by_head_dim(shape.head_dim, [&]<int NC>() {
      launch_shared(stream, {"attention_backward: dq", q_THK}, query_kernel<T, NC>,
                    dim3(parts, static_cast<unsigned>(shape.query_heads)), dim3(Tile::threads),
                    AttentionShared<NC>::floats(1) * sizeof(float), call, pointer<T>(dq_THK));
      launch_shared(stream, {"attention_backward: dk, dv", q_THK}, key_kernel<T, NC>,
                    dim3(parts, static_cast<unsigned>(shape.kv_heads)), dim3(Tile::threads),
                    AttentionShared<NC>::floats(2) * sizeof(float), call, pointer<T>(dk_TGK),
                    pointer<T>(dproj_TN) + shape.v_column());
    });
  });
}

}  // namespace deltatune::cuda
