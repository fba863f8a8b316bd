// qk_norm_rope: per-head RMSNorm and rotary embedding of the q and k columns of the fused projection; and the
// sigmoid gate behind attention.
//
// Cosines and sines are rounded to storage before use; norm and rotation are one expression in compute type
// with one rounding at the store. Gradients of the norm weights are summed over blocks of 64 tokens into
// scratch, then the blocks in order.
#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "cpu/cpu_ops.h"
#include "cpu/vector.h"
#include "ops/scratch.h"

namespace deltatune::cpu {
namespace {

constexpr int64_t token_grain = 4;

/// Cosines in table[0, rotary / 2), sines behind them, of one position.
template <class T>
void rotary_table(compute_t<T>* table, int32_t position, const float* inv_freq, int64_t rotary_dim) {
  using C = compute_t<T>;
  const int64_t half = rotary_dim / 2;
  for (int64_t j = 0; j < half; ++j) {
    const C angle = static_cast<C>(position) * static_cast<C>(inv_freq[j]);
    table[j] = widen(narrow<T>(std::cos(angle)));
    table[half + j] = widen(narrow<T>(std::sin(angle)));
  }
}

/// out = rope(x rstd (1 + w)) of one head; returns rstd.
template <class T>
compute_t<T> head_forward(T* out, const T* x, const T* w, const compute_t<T>* table, int64_t dim,
                          int64_t rotary_dim, compute_t<T> eps) {
  using C = compute_t<T>;
  const C rstd = C{1} / std::sqrt(dot(x, x, dim) / static_cast<C>(dim) + eps);
  const auto normed = [&](int64_t j) { return widen(x[j]) * rstd * (C{1} + widen(w[j])); };
  const int64_t half = rotary_dim / 2;
  for (int64_t j = 0; j < half; ++j) {
    const C low = normed(j);
    const C high = normed(j + half);
    out[j] = narrow<T>(low * table[j] - high * table[half + j]);
    out[j + half] = narrow<T>(high * table[j] + low * table[half + j]);
  }
  for (int64_t j = rotary_dim; j < dim; ++j) out[j] = narrow<T>(normed(j));
  return rstd;
}

/// Rotates dout back into `gradient`, adds gradient x rstd to dw, writes dx (if wanted).
template <class T>
void head_backward(T* dx, compute_t<T>* dw, compute_t<T>* gradient, const T* dout, const T* x, const T* w,
                   compute_t<T> rstd, const compute_t<T>* table, int64_t dim, int64_t rotary_dim) {
  using C = compute_t<T>;
  const int64_t half = rotary_dim / 2;
  load_row(gradient, dout, dim);
  for (int64_t j = 0; j < half; ++j) {
    const C low = gradient[j];
    const C high = gradient[j + half];
    gradient[j] = low * table[j] + high * table[half + j];
    gradient[j + half] = high * table[j] - low * table[half + j];
  }
  for (int64_t j = 0; j < dim; ++j) {
    dw[j] += gradient[j] * (widen(x[j]) * rstd);
    gradient[j] *= C{1} + widen(w[j]);
  }
  if (!dx) return;
  const C mean =
      sum_of<C>(dim, [&](int64_t j) { return gradient[j] * (widen(x[j]) * rstd); }) / static_cast<C>(dim);
  for (int64_t j = 0; j < dim; ++j) dx[j] = narrow<T>(rstd * (gradient[j] - widen(x[j]) * rstd * mean));
}

template <class T>
void forward(Stream& stream, Tensor q_THK, Tensor k_TGK, Tensor q_rstd_TH, Tensor k_rstd_TG, CTensor proj_TN,
             CTensor q_norm_K, CTensor k_norm_K, CTensor positions_T, CTensor inv_freq,
             const AttentionShape& shape, float eps) {
  using C = compute_t<T>;
  const int64_t dim = shape.head_dim;
  const size_t slot = scratch::rope_slot(proj_TN.dtype, shape);
  std::byte* slots = stream.scratch(scratch::qk_norm_rope_forward(Target::cpu, proj_TN.dtype, shape));
  const auto* positions = positions_T.as<int32_t>();
  parallel_for(proj_TN.dim(0), token_grain, [&](int64_t begin, int64_t end, int worker) {
    auto* table = reinterpret_cast<C*>(slots + static_cast<size_t>(worker) * slot);
    for (int64_t t = begin; t < end; ++t) {
      rotary_table<T>(table, positions[t], inv_freq.as<float>(), shape.rotary_dim);
      const T* row = proj_TN.as<T>() + t * shape.columns();
      const auto heads = [&](Tensor out, Tensor rstd, const T* x, int64_t stride, const T* w, int64_t count) {
        for (int64_t h = 0; h < count; ++h) {
          const C value = head_forward(out.as<T>() + (t * count + h) * dim, x + h * stride, w, table, dim,
                                       shape.rotary_dim, static_cast<C>(eps));
          if (!rstd.empty()) rstd.as<C>()[t * count + h] = value;
        }
      };
      heads(q_THK, q_rstd_TH, row, 2 * dim, q_norm_K.as<T>(), shape.query_heads);
      heads(k_TGK, k_rstd_TG, row + shape.k_column(), dim, k_norm_K.as<T>(), shape.kv_heads);
    }
  });
}

template <class T>
void backward(Stream& stream, Tensor dproj_TN, Tensor dq_norm_K, Tensor dk_norm_K, CTensor dq_THK,
              CTensor dk_TGK, CTensor proj_TN, CTensor q_norm_K, CTensor k_norm_K, CTensor q_rstd_TH,
              CTensor k_rstd_TG, CTensor positions_T, CTensor inv_freq, const AttentionShape& shape) {
  using C = compute_t<T>;
  const int64_t tokens = proj_TN.dim(0);
  const int64_t dim = shape.head_dim;
  const int64_t blocks = (tokens + scratch::norm_block - 1) / scratch::norm_block;
  const size_t slot = scratch::rope_slot(proj_TN.dtype, shape);
  std::byte* slots =
      stream.scratch(scratch::qk_norm_rope_backward(Target::cpu, proj_TN.dtype, tokens, shape));
  auto* sums = reinterpret_cast<C*>(slots + static_cast<size_t>(thread_count()) * slot);
  const auto* positions = positions_T.as<int32_t>();
  parallel_for(blocks, 1, [&](int64_t begin, int64_t end, int worker) {
    auto* table = reinterpret_cast<C*>(slots + static_cast<size_t>(worker) * slot);
    C* gradient = table + shape.rotary_dim;
    std::fill(sums + begin * 2 * dim, sums + end * 2 * dim, C{0});
    for (int64_t t = begin * scratch::norm_block; t < std::min(tokens, end * scratch::norm_block); ++t) {
      rotary_table<T>(table, positions[t], inv_freq.as<float>(), shape.rotary_dim);
      const int64_t row = t * shape.columns();
      C* dq_sum = sums + t / scratch::norm_block * 2 * dim;
      const auto heads = [&](C* dw, CTensor dout, CTensor rstd, int64_t column, int64_t stride, const T* w,
                             int64_t count) {
        for (int64_t h = 0; h < count; ++h) {
          const int64_t x = row + column + h * stride;
          head_backward(dproj_TN.empty() ? nullptr : dproj_TN.as<T>() + x, dw, gradient,
                        dout.as<T>() + (t * count + h) * dim, proj_TN.as<T>() + x, w,
                        rstd.as<C>()[t * count + h], table, dim, shape.rotary_dim);
        }
      };
      heads(dq_sum, dq_THK, q_rstd_TH, 0, 2 * dim, q_norm_K.as<T>(), shape.query_heads);
      heads(dq_sum + dim, dk_TGK, k_rstd_TG, shape.k_column(), dim, k_norm_K.as<T>(), shape.kv_heads);
    }
  });
  for (int64_t j = 0; j < 2 * dim; ++j) {
    Tensor dw = j < dim ? dq_norm_K : dk_norm_K;
    if (dw.empty()) continue;
    C total = 0;
    for (int64_t block = 0; block < blocks; ++block) total += sums[block * 2 * dim + j];
    dw.as<C>()[j % dim] += total;
  }
}

/// Calls body(token, head, first element of the head in a [T,H,K] tensor, first gate element in proj).
template <class F>
void for_heads(int64_t tokens, const AttentionShape& shape, F&& body) {
  parallel_for(tokens * shape.query_heads, 32, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / shape.query_heads;
      const int64_t h = i % shape.query_heads;
      body(i * shape.head_dim, t * shape.columns() + (2 * h + 1) * shape.head_dim);
    }
  });
}

}  // namespace

void qk_norm_rope_forward(Stream& stream, Tensor q_THK, Tensor k_TGK, Tensor q_rstd_TH, Tensor k_rstd_TG,
                          CTensor proj_TN, CTensor q_norm_K, CTensor k_norm_K, CTensor positions_T,
                          CTensor inv_freq, AttentionShape shape, float eps) {
  by_float(proj_TN.dtype, [&](auto zero) {
    forward<decltype(zero)>(stream, q_THK, k_TGK, q_rstd_TH, k_rstd_TG, proj_TN, q_norm_K, k_norm_K,
                            positions_T, inv_freq, shape, eps);
  });
}

void qk_norm_rope_backward(Stream& stream, Tensor dproj_TN, Tensor dq_norm_K, Tensor dk_norm_K,
                           CTensor dq_THK, CTensor dk_TGK, CTensor proj_TN, CTensor q_norm_K,
                           CTensor k_norm_K, CTensor q_rstd_TH, CTensor k_rstd_TG, CTensor positions_T,
                           CTensor inv_freq, AttentionShape shape) {
  by_float(proj_TN.dtype, [&](auto zero) {
    backward<decltype(zero)>(stream, dproj_TN, dq_norm_K, dk_norm_K, dq_THK, dk_TGK, proj_TN, q_norm_K,
                             k_norm_K, q_rstd_TH, k_rstd_TG, positions_T, inv_freq, shape);
  });
}

void sigmoid_gate_forward(Stream&, Tensor y_THK, CTensor o_THK, CTensor proj_TN, AttentionShape shape) {
  by_float(o_THK.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_heads(o_THK.dim(0), shape, [&](int64_t first, int64_t gate_first) {
      const T* o = o_THK.as<T>() + first;
      const T* gate = proj_TN.as<T>() + gate_first;
      T* y = y_THK.as<T>() + first;
      for (int64_t j = 0; j < shape.head_dim; ++j) y[j] = narrow<T>(widen(o[j]) * sigmoid(widen(gate[j])));
    });
  });
}

void sigmoid_gate_backward(Stream&, Tensor do_THK, Tensor dproj_TN, CTensor dy_THK, CTensor o_THK,
                           CTensor proj_TN, AttentionShape shape) {
  by_float(o_THK.dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = compute_t<T>;
    for_heads(o_THK.dim(0), shape, [&](int64_t first, int64_t gate_first) {
      const T* dy = dy_THK.as<T>() + first;
      const T* o = o_THK.as<T>() + first;
      const T* gate = proj_TN.as<T>() + gate_first;
      T* d_o = do_THK.as<T>() + first;
      T* dgate = dproj_TN.as<T>() + gate_first;
      for (int64_t j = 0; j < shape.head_dim; ++j) {
        const C s = sigmoid(widen(gate[j]));
        const C d = widen(dy[j]);
        const C value = widen(o[j]);
        d_o[j] = narrow<T>(d * s);
        dgate[j] = narrow<T>(d * value * s * (C{1} - s));
      }
    });
  });
}

}  // namespace deltatune::cpu
