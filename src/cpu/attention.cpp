// Causal attention inside each document, with grouped key/value heads, in blocks of 64 queries x 128 keys.
//
// Forward: streaming softmax (Milakov and Gimelshein 2018; Dao et al. 2022) - per block of keys the running
// maximum m, sum l and output are rescaled by e^(m_old - m_new). Backward: P = e^(s - lse) is recomputed;
// dS = P o (dO V^T - D), D = sum dO o O; one pass over query blocks gives dq, another over key blocks gives
// dk and dv. No atomics: each output row belongs to one task, and its sums run in a fixed order.
// Blocks count from the start of their document, so a document's bits depend on nothing outside it.
// Scores, probabilities and sums stay in compute type.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/thread_pool.h"
#include "cpu/cpu_ops.h"
#include "cpu/gemm.h"
#include "ops/scratch.h"

namespace deltatune::cpu {
namespace {

using Tile = scratch::AttentionTile;

/// Part of a document: tokens [begin, begin + rows) of the document [document_begin, document_end).
struct Block {
  int64_t document_begin, document_end, begin, rows;
};

int64_t count_blocks(std::span<const int32_t> starts, int64_t size) {
  int64_t count = 0;
  for (size_t i = 0; i + 1 < starts.size(); ++i) count += (starts[i + 1] - starts[i] + size - 1) / size;
  return count;
}

Block find_block(std::span<const int32_t> starts, int64_t size, int64_t index) {
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    const int64_t blocks = (starts[i + 1] - starts[i] + size - 1) / size;
    if (index < blocks) {
      const int64_t begin = starts[i] + index * size;
      return {starts[i], starts[i + 1], begin, std::min<int64_t>(size, starts[i + 1] - begin)};
    }
    index -= blocks;
  }
  DELTATUNE_ASSERT(false && "attention: no such block");
  return {};
}

/// Where the pieces of one call lie.
template <class T>
struct Call {
  using C = compute_t<T>;
  const T* q;
  const T* k;
  const T* v;  ///< first v column of proj
  int64_t q_stride, k_stride, v_stride;
  int64_t dim, group;
  C scale;

  Call(CTensor q_THK, CTensor k_TGK, CTensor proj_TN, const AttentionShape& shape)
      : q(q_THK.as<T>()),
        k(k_TGK.as<T>()),
        v(proj_TN.as<T>() + shape.v_column()),
        q_stride(shape.query_heads * shape.head_dim),
        k_stride(shape.kv_heads * shape.head_dim),
        v_stride(shape.columns()),
        dim(shape.head_dim),
        group(shape.query_heads / shape.kv_heads),
        scale(C{1} / std::sqrt(static_cast<C>(shape.head_dim))) {}

  Panel<C> query_rows(const T* from, int64_t head, int64_t row, int64_t rows, C* widened) const {
    return panel_of(from + row * q_stride + head * dim, rows, dim, q_stride, widened);
  }
  Panel<C> key_rows(int64_t kv_head, int64_t row, int64_t rows, C* widened) const {
    return panel_of(k + row * k_stride + kv_head * dim, rows, dim, k_stride, widened);
  }
  Panel<C> value_rows(int64_t kv_head, int64_t row, int64_t rows, C* widened) const {
    return panel_of(v + row * v_stride + kv_head * dim, rows, dim, v_stride, widened);
  }
};

/// Keys of the block [k0, k0 + keys) that query row t may see.
int64_t visible(int64_t t, int64_t k0, int64_t keys) {
  return std::clamp<int64_t>(t - k0 + 1, 0, keys);
}

/// One block of queries of one head.
template <class T>
void forward_block(const Call<T>& call, const Block& block, int64_t head, compute_t<T>* slot, T* o,
                   compute_t<T>* lse) {
  using C = compute_t<T>;
  const int64_t dim = call.dim;
  C* q_wide = slot;
  C* k_wide = q_wide + Tile::queries * dim;
  C* v_wide = k_wide + Tile::keys * dim;
  C* out = v_wide + Tile::keys * dim;
  C* scores = out + Tile::queries * dim;
  C top[Tile::queries];
  C sum[Tile::queries];
  std::fill(top, top + Tile::queries, -std::numeric_limits<C>::infinity());
  std::fill(sum, sum + Tile::queries, C{0});
  const auto q = call.query_rows(call.q, head, block.begin, block.rows, q_wide);
  const int64_t end = block.begin + block.rows;
  for (int64_t k0 = block.document_begin; k0 < end; k0 += Tile::keys) {
    const int64_t keys = std::min(Tile::keys, end - k0);
    const auto k = call.key_rows(head / call.group, k0, keys, k_wide);
    gemm(MatmulLayout::nt, block.rows, keys, dim, q.data, q.stride, k.data, k.stride, false, scores, keys);
    for (int64_t i = 0; i < block.rows; ++i) {
      C* p = scores + i * keys;
      const int64_t seen = visible(block.begin + i, k0, keys);
      std::fill(p + seen, p + keys, C{0});
      if (seen == 0) continue;
      for (int64_t j = 0; j < seen; ++j) p[j] *= call.scale;
      const C old_top = top[i];
      top[i] = std::max(old_top, max_of<C>(seen, [&](int64_t j) { return p[j]; }));
      const C shift = exp_of(old_top - top[i]);
      for (int64_t j = 0; j < seen; ++j) p[j] = exp_of(p[j] - top[i]);
      sum[i] = sum[i] * shift + sum_of<C>(seen, [&](int64_t j) { return p[j]; });
      if (k0 > block.document_begin && shift != C{1}) {
        for (int64_t j = 0; j < dim; ++j) out[i * dim + j] *= shift;
      }
    }
    const auto v = call.value_rows(head / call.group, k0, keys, v_wide);
    gemm(MatmulLayout::nn, block.rows, dim, keys, scores, keys, v.data, v.stride, k0 > block.document_begin,
         out, dim);
  }
  for (int64_t i = 0; i < block.rows; ++i) {
    T* row = o + (block.begin + i) * call.q_stride + head * dim;
    const C inverse = C{1} / sum[i];
    for (int64_t j = 0; j < dim; ++j) row[j] = narrow<T>(out[i * dim + j] * inverse);
    if (lse) lse[block.begin + i] = top[i] + std::log(sum[i]);
  }
}

template <class T>
void forward(Stream& stream, Tensor o_THK, Tensor lse_HT, CTensor q_THK, CTensor k_TGK, CTensor proj_TN,
             const Segments& segments, const AttentionShape& shape) {
  using C = compute_t<T>;
  const Call<T> call(q_THK, k_TGK, proj_TN, shape);
  const size_t slot = scratch::attention_forward_slot(q_THK.dtype, shape);
  std::byte* slots = stream.scratch(scratch::attention_forward(Target::cpu, q_THK.dtype, shape));
  const int64_t tokens = q_THK.dim(0);
  const int64_t blocks = count_blocks(segments.host_cu_seqlens, Tile::queries);
  parallel_for(blocks * shape.query_heads, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task % shape.query_heads;
      forward_block(call, find_block(segments.host_cu_seqlens, Tile::queries, task / shape.query_heads), head,
                    reinterpret_cast<C*>(slots + static_cast<size_t>(worker) * slot), o_THK.as<T>(),
                    lse_HT.empty() ? nullptr : lse_HT.as<C>() + head * tokens);
    }
  });
}

/// What backward needs beyond a Call; lse and row_dots are [H,T].
template <class T>
struct BackwardCall : Call<T> {
  using C = compute_t<T>;
  const T* d_o;
  const C* lse;
  const C* row_dots;
  int64_t tokens;
};

/// The pieces of a backward slot.
template <class C>
struct BackwardSlot {
  C *q, *d_o, *k, *v, *sum1, *sum2, *scores, *dscores;

  BackwardSlot(std::byte* memory, int64_t dim) {
    q = reinterpret_cast<C*>(memory);
    d_o = q + Tile::queries * dim;
    k = d_o + Tile::queries * dim;
    v = k + Tile::keys * dim;
    sum1 = v + Tile::keys * dim;
    sum2 = sum1 + Tile::keys * dim;
    scores = sum2 + Tile::keys * dim;
    dscores = scores + Tile::queries * Tile::keys;
  }
};

/// scores = P and dscores = scale P o (dO V^T - D), [rows, keys], zero where the key is not visible.
template <class T>
void probabilities(const BackwardCall<T>& call, int64_t head, int64_t t0, int64_t rows, int64_t k0,
                   int64_t keys, const Panel<compute_t<T>>& q, const Panel<compute_t<T>>& d_o,
                   const Panel<compute_t<T>>& k, const Panel<compute_t<T>>& v,
                   const BackwardSlot<compute_t<T>>& slot) {
  using C = compute_t<T>;
  gemm(MatmulLayout::nt, rows, keys, call.dim, q.data, q.stride, k.data, k.stride, false, slot.scores, keys);
  gemm(MatmulLayout::nt, rows, keys, call.dim, d_o.data, d_o.stride, v.data, v.stride, false, slot.dscores,
       keys);
  for (int64_t i = 0; i < rows; ++i) {
    C* p = slot.scores + i * keys;
    C* ds = slot.dscores + i * keys;
    const int64_t seen = visible(t0 + i, k0, keys);
    const C lse = call.lse[head * call.tokens + t0 + i];
    const C dots = call.row_dots[head * call.tokens + t0 + i];
    for (int64_t j = 0; j < seen; ++j) {
      p[j] = exp_of(p[j] * call.scale - lse);
      ds[j] = p[j] * (ds[j] - dots) * call.scale;
    }
    std::fill(p + seen, p + keys, C{0});
    std::fill(ds + seen, ds + keys, C{0});
  }
}

/// dq of one block of queries of one head.
template <class T>
void query_block(const BackwardCall<T>& call, const Block& block, int64_t head,
                 const BackwardSlot<compute_t<T>>& slot, T* dq) {
  const int64_t dim = call.dim;
  const auto q = call.query_rows(call.q, head, block.begin, block.rows, slot.q);
  const auto d_o = call.query_rows(call.d_o, head, block.begin, block.rows, slot.d_o);
  const int64_t end = block.begin + block.rows;
  for (int64_t k0 = block.document_begin; k0 < end; k0 += Tile::keys) {
    const int64_t keys = std::min(Tile::keys, end - k0);
    const auto k = call.key_rows(head / call.group, k0, keys, slot.k);
    const auto v = call.value_rows(head / call.group, k0, keys, slot.v);
    probabilities(call, head, block.begin, block.rows, k0, keys, q, d_o, k, v, slot);
    gemm(MatmulLayout::nn, block.rows, dim, keys, slot.dscores, keys, k.data, k.stride,
         k0 > block.document_begin, slot.sum1, dim);
  }
  for (int64_t i = 0; i < block.rows; ++i)
    store_row(dq + (block.begin + i) * call.q_stride + head * dim, slot.sum1 + i * dim, dim);
}

/// dk and dv of one block of keys of one key/value head: over the query heads of its group, then over the
/// query blocks that can see it.
template <class T>
void key_block(const BackwardCall<T>& call, const Block& block, int64_t kv_head,
               const BackwardSlot<compute_t<T>>& slot, T* dk, T* dv) {
  const int64_t dim = call.dim;
  const auto k = call.key_rows(kv_head, block.begin, block.rows, slot.k);
  const auto v = call.value_rows(kv_head, block.begin, block.rows, slot.v);
  bool started = false;
  for (int64_t head = kv_head * call.group; head < (kv_head + 1) * call.group; ++head) {
    for (int64_t t0 = block.begin; t0 < block.document_end; t0 += Tile::queries) {
      const int64_t rows = std::min(Tile::queries, block.document_end - t0);
      const auto q = call.query_rows(call.q, head, t0, rows, slot.q);
      const auto d_o = call.query_rows(call.d_o, head, t0, rows, slot.d_o);
      probabilities(call, head, t0, rows, block.begin, block.rows, q, d_o, k, v, slot);
      gemm(MatmulLayout::tn, block.rows, dim, rows, slot.dscores, block.rows, q.data, q.stride, started,
           slot.sum1, dim);
      gemm(MatmulLayout::tn, block.rows, dim, rows, slot.scores, block.rows, d_o.data, d_o.stride, started,
           slot.sum2, dim);
      started = true;
    }
  }
  for (int64_t i = 0; i < block.rows; ++i) {
    store_row(dk + (block.begin + i) * call.k_stride + kv_head * dim, slot.sum1 + i * dim, dim);
    store_row(dv + (block.begin + i) * call.v_stride + kv_head * dim, slot.sum2 + i * dim, dim);
  }
}

template <class T>
void backward(Stream& stream, Tensor dq_THK, Tensor dk_TGK, Tensor dproj_TN, CTensor do_THK, CTensor o_THK,
              CTensor q_THK, CTensor k_TGK, CTensor proj_TN, CTensor lse_HT, const Segments& segments,
              const AttentionShape& shape) {
  using C = compute_t<T>;
  const int64_t tokens = q_THK.dim(0);
  const int64_t heads = shape.query_heads;
  const int64_t dim = shape.head_dim;
  const size_t slot = scratch::attention_backward_slot(q_THK.dtype, shape);
  std::byte* slots = stream.scratch(scratch::attention_backward(Target::cpu, q_THK.dtype, tokens, shape));
  auto* dots = reinterpret_cast<C*>(slots + static_cast<size_t>(thread_count()) * slot);
  parallel_for(tokens * heads, 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i)
      dots[i % heads * tokens + i / heads] = dot(do_THK.as<T>() + i * dim, o_THK.as<T>() + i * dim, dim);
  });
  const BackwardCall<T> call{Call<T>(q_THK, k_TGK, proj_TN, shape), do_THK.as<T>(), lse_HT.as<C>(), dots,
                             tokens};
  const auto starts = segments.host_cu_seqlens;
  const auto slot_of = [&](int worker) {
    return BackwardSlot<C>(slots + static_cast<size_t>(worker) * slot, dim);
  };
  parallel_for(count_blocks(starts, Tile::queries) * heads, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t task = begin; task < end; ++task)
      query_block(call, find_block(starts, Tile::queries, task / heads), task % heads, slot_of(worker),
                  dq_THK.as<T>());
  });
  const int64_t kv_heads = shape.kv_heads;
  parallel_for(count_blocks(starts, Tile::keys) * kv_heads, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t task = begin; task < end; ++task)
      key_block(call, find_block(starts, Tile::keys, task / kv_heads), task % kv_heads, slot_of(worker),
                dk_TGK.as<T>(), dproj_TN.as<T>() + shape.v_column());
  });
}

}  // namespace

void attention_forward(Stream& stream, Tensor o_THK, Tensor lse_HT, CTensor q_THK, CTensor k_TGK,
                       CTensor proj_TN, const Segments& segments, AttentionShape shape) {
  by_float(q_THK.dtype, [&](auto zero) {
    forward<decltype(zero)>(stream, o_THK, lse_HT, q_THK, k_TGK, proj_TN, segments, shape);
  });
}

void attention_backward(Stream& stream, Tensor dq_THK, Tensor dk_TGK, Tensor dproj_TN, CTensor do_THK,
                        CTensor o_THK, CTensor q_THK, CTensor k_TGK, CTensor proj_TN, CTensor lse_HT,
                        const Segments& segments, AttentionShape shape) {
  by_float(q_THK.dtype, [&](auto zero) {
    backward<decltype(zero)>(stream, dq_THK, dk_TGK, dproj_TN, do_THK, o_THK, q_THK, k_TGK, proj_TN, lse_HT,
                             segments, shape);
  });
}

}  // namespace deltatune::cpu
