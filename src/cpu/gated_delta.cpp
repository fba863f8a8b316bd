// gated_delta: the recurrence of ops/delta_net.h as it stands, token by token. This is the specification that
// the chunked kernels of other machines are held to; it deliberately has no chunked arithmetic itself.
//
// The columns of the state S [dk, dv] never mix, so S is walked in panels of 32 columns: a panel stays in the
// L1 cache and its sums over rows in registers. Forward is parallel over (document, value head, panel);
// backward over (document, key head), because dq and dk are sums over the value heads of a key head (in head
// order, panels inside). The stored chunk states serve only as starting points: backward walks the chunks in
// reverse and recomputes the 64 states of one chunk and panel into scratch.
//
// Panels are padded with zero columns and, in backward, zero rows up to a multiple of 8; padding stays 0
// through every formula and is never stored.
#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "cpu/cpu_ops.h"
#include "cpu/lanes.h"
#include "ops/delta_net_scratch.h"

namespace deltatune::cpu {
namespace {

constexpr int64_t panel = GdnTile::panel;
constexpr int panel_lanes = static_cast<int>(panel / lane_count);

/// The chunk table [C, 4] of Segments, looked up by document.
struct Chunks {
  const int32_t* table;
  int64_t count;

  explicit Chunks(const Segments& segments)
      : table(segments.chunks.as<int32_t>()), count(segments.num_chunks) {}
  int64_t document(int64_t c) const { return table[4 * c]; }
  int64_t first_token(int64_t c) const { return table[4 * c + 1]; }
  int64_t length(int64_t c) const { return table[4 * c + 2]; }
  /// First chunk of `document` or of a later one.
  int64_t begin(int64_t wanted) const {
    int64_t low = 0;
    int64_t high = count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (document(middle) < wanted) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

template <class T>
void widen_row(compute_t<T>* to, const T* from, int64_t n, int64_t padded) {
  for (int64_t i = 0; i < n; ++i) to[i] = widen(from[i]);
  for (int64_t i = n; i < padded; ++i) to[i] = 0;
}

/// Columns [column, column + width) of a [dk, dv] matrix <-> a panel of `rows` rows, padded with zeros.
template <class T>
void load_panel(compute_t<T>* to_KP, const T* from_KV, int64_t dk, int64_t rows, int64_t dv, int64_t column,
                int64_t width) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < panel; ++j) {
      to_KP[i * panel + j] = i < dk && j < width ? widen(from_KV[i * dv + column + j]) : 0;
    }
  }
}
template <class T>
void store_panel(T* to_KV, const compute_t<T>* from_KP, int64_t dk, int64_t dv, int64_t column,
                 int64_t width) {
  for (int64_t i = 0; i < dk; ++i) {
    for (int64_t j = 0; j < width; ++j) to_KV[i * dv + column + j] = narrow<T>(from_KP[i * panel + j]);
  }
}

/// One token of the recurrence on one panel: S = alpha S; d = beta (v - S^T k); S += k d^T; o = S^T (scale
/// q).
template <class C>
void step(C* state_KP, C* o_P, const C* k_K, const C* q_K, const C* v_P, C alpha, C beta, C scale,
          int64_t dk) {
  using V = lanes_t<C>;
  V* const state = reinterpret_cast<V*>(state_KP);
  V read[panel_lanes] = {};
  for (int64_t i = 0; i < dk; ++i) {
    for (int l = 0; l < panel_lanes; ++l) {
      V& s = state[i * panel_lanes + l];
      s = s * alpha;
      read[l] += s * k_K[i];
    }
  }
  V d[panel_lanes];
  for (int l = 0; l < panel_lanes; ++l) d[l] = (reinterpret_cast<const V*>(v_P)[l] - read[l]) * beta;
  V o[panel_lanes] = {};
  for (int64_t i = 0; i < dk; ++i) {
    for (int l = 0; l < panel_lanes; ++l) {
      V& s = state[i * panel_lanes + l];
      s += d[l] * k_K[i];
      o[l] += s * q_K[i];
    }
  }
  for (int l = 0; l < panel_lanes; ++l) reinterpret_cast<V*>(o_P)[l] = o[l] * scale;
}

template <class T>
void forward(Stream& stream, Tensor o_THV, Tensor states_CHKV, CTensor q_THK, CTensor k_THK, CTensor v_THV,
             CTensor g_TH, CTensor beta_TH, const Segments& segments, const GdnShape& shape) {
  using C = compute_t<T>;
  const int64_t dk = shape.key_dim, dv = shape.value_dim, Hv = shape.value_heads;
  const int64_t panels = gdn_panels(shape);
  const Chunks chunks(segments);
  const T *q = q_THK.as<T>(), *k = k_THK.as<T>(), *v = v_THV.as<T>();
  const C *g = g_TH.as<C>(), *beta = beta_TH.as<C>();
  T* const o = o_THV.empty() ? nullptr : o_THV.as<T>();
  T* const states = states_CHKV.empty() ? nullptr : states_CHKV.as<T>();
  const C scale = C(1) / std::sqrt(static_cast<C>(dk));
  C* const scratch =
      reinterpret_cast<C*>(stream.scratch(gated_delta_forward_scratch(shape, dtype_of<C>, thread_count())));

  parallel_for(segments.documents() * Hv * panels, 1, [&](int64_t begin, int64_t end, int worker) {
    C* const state_KP = scratch + worker * gated_delta_forward_worker(shape);
    C* const k_K = state_KP + dk * panel;
    C* const q_K = k_K + dk;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t document = task / (Hv * panels);
      const int64_t h = task / panels % Hv;
      const int64_t column = task % panels * panel;
      const int64_t width = std::min(panel, dv - column);
      std::fill(state_KP, state_KP + dk * panel, C(0));
      for (int64_t c = chunks.begin(document); c < chunks.count && chunks.document(c) == document; ++c) {
        if (states) store_panel(states + (c * Hv + h) * dk * dv, state_KP, dk, dv, column, width);
        for (int64_t t = chunks.first_token(c); t < chunks.first_token(c) + chunks.length(c); ++t) {
          const int64_t key_row = (t * shape.key_heads + h / shape.ratio()) * dk;
          const int64_t value_row = (t * Hv + h) * dv + column;
          C v_P[panel], o_P[panel];
          widen_row(k_K, k + key_row, dk, dk);
          widen_row(q_K, q + key_row, dk, dk);
          widen_row(v_P, v + value_row, width, panel);
          step(state_KP, o_P, k_K, q_K, v_P, std::exp(g[t * Hv + h]), beta[t * Hv + h], scale, dk);
          for (int64_t j = 0; o && j < width; ++j) o[value_row + j] = narrow<T>(o_P[j]);
        }
      }
    }
  });
}

/// What backward keeps of one chunk; n <= 64 tokens, K key_dim padded to 8, P one panel.
template <class C>
struct ChunkScratch {
  C* decayed_nKP;  ///< S' = alpha S_{t-1} of each token
  C* state_KP;     ///< S entering the chunk
  C* k_nK;
  C* q_nK;
  C* dk_nK;  ///< sums over value heads and panels
  C* dq_nK;
  C* error_nP;  ///< v - S'^T k
  C* d_nP;      ///< beta error
  C* do_nP;
  C* alpha_n;  ///< e^g
  C* beta_n;
  C* dg_n;  ///< sums over the panels of one value head
  C* dbeta_n;
  C* gradients_HKP;  ///< R of each (value head of the key head, panel), carried from chunk to chunk

  ChunkScratch(C* memory, int64_t rows) {
    const auto take = [&](int64_t count) {
      C* const begin = memory;
      memory += count;
      return begin;
    };
    decayed_nKP = take(gdn_chunk * rows * panel);
    state_KP = take(rows * panel);
    k_nK = take(gdn_chunk * rows);
    q_nK = take(gdn_chunk * rows);
    dk_nK = take(gdn_chunk * rows);
    dq_nK = take(gdn_chunk * rows);
    error_nP = take(gdn_chunk * panel);
    d_nP = take(gdn_chunk * panel);
    do_nP = take(gdn_chunk * panel);
    alpha_n = take(gdn_chunk);
    beta_n = take(gdn_chunk);
    dg_n = take(gdn_chunk);
    dbeta_n = take(gdn_chunk);
    gradients_HKP = memory;
  }
};

/// Recomputes S', error and d of the n tokens of a chunk; error_nP holds v on entry.
template <class C>
void recompute(const ChunkScratch<C>& x, int64_t n, int64_t rows) {
  using V = lanes_t<C>;
  const V* before = reinterpret_cast<const V*>(x.state_KP);
  V added[panel_lanes] = {};  // d of the token before
  for (int64_t t = 0; t < n; ++t) {
    V* const decayed = reinterpret_cast<V*>(x.decayed_nKP + t * rows * panel);
    const C* const k_K = x.k_nK + t * rows;
    const C* const k_before_K = t ? k_K - rows : k_K;  // times d = 0 at the start of the chunk
    const C alpha = x.alpha_n[t];
    V read[panel_lanes] = {};
    for (int64_t i = 0; i < rows; ++i) {
      for (int l = 0; l < panel_lanes; ++l) {
        const V s = (before[i * panel_lanes + l] + added[l] * k_before_K[i]) * alpha;
        decayed[i * panel_lanes + l] = s;
        read[l] += s * k_K[i];
      }
    }
    V* const error = reinterpret_cast<V*>(x.error_nP + t * panel);
    V* const d = reinterpret_cast<V*>(x.d_nP + t * panel);
    for (int l = 0; l < panel_lanes; ++l) {
      error[l] -= read[l];
      d[l] = error[l] * x.beta_n[t];
      added[l] = d[l];
    }
    before = decayed;
  }
}

/// Token t in reverse on one panel: takes R of the state after it to R of the state before it, adds to dq,
/// dk, dg and dbeta of the chunk and writes dv_P.
template <class C>
void step_back(const ChunkScratch<C>& x, C* gradient_KP, C* dv_P, int64_t t, int64_t rows, C scale) {
  using V = lanes_t<C>;
  V* const gradient = reinterpret_cast<V*>(gradient_KP);
  const V* const decayed = reinterpret_cast<const V*>(x.decayed_nKP + t * rows * panel);
  const V* const error = reinterpret_cast<const V*>(x.error_nP + t * panel);
  V d[panel_lanes], dout[panel_lanes], dd[panel_lanes] = {}, dvalue[panel_lanes];
  V dot = {};
  for (int l = 0; l < panel_lanes; ++l) {
    d[l] = reinterpret_cast<const V*>(x.d_nP + t * panel)[l];
    dout[l] = reinterpret_cast<const V*>(x.do_nP + t * panel)[l] * scale;
    dot += d[l] * dout[l];
  }
  const C d_dot_do = lane_sum<C>(dot);
  const C* const k_K = x.k_nK + t * rows;
  const C* const q_K = x.q_nK + t * rows;
  for (int64_t i0 = 0; i0 < rows; i0 += GdnTile::rows) {
    V partial[GdnTile::rows];
    for (int64_t i = 0; i < GdnTile::rows; ++i) {
      V sum = {};
      for (int l = 0; l < panel_lanes; ++l) {
        V& r = gradient[(i0 + i) * panel_lanes + l];
        r += dout[l] * q_K[i0 + i];
        dd[l] += r * k_K[i0 + i];
        sum += decayed[(i0 + i) * panel_lanes + l] * dout[l];
      }
      partial[i] = sum;
    }
    C* const dq = x.dq_nK + t * rows + i0;
    add_lane_sums<C>(dq, partial);  // S do = S' do + k (d . do)
    for (int64_t i = 0; i < GdnTile::rows; ++i) dq[i] += k_K[i0 + i] * d_dot_do;
  }
  V beta_sum = {}, decay_sum = {};
  for (int l = 0; l < panel_lanes; ++l) {
    dvalue[l] = dd[l] * x.beta_n[t];
    beta_sum += dd[l] * error[l];
    reinterpret_cast<V*>(dv_P)[l] = dvalue[l];
  }
  const C alpha = x.alpha_n[t];
  for (int64_t i0 = 0; i0 < rows; i0 += GdnTile::rows) {
    V partial[GdnTile::rows];
    for (int64_t i = 0; i < GdnTile::rows; ++i) {
      V sum = {};
      for (int l = 0; l < panel_lanes; ++l) {
        V& r = gradient[(i0 + i) * panel_lanes + l];
        const V s = decayed[(i0 + i) * panel_lanes + l];
        sum += r * d[l] - s * dvalue[l];
        const V before = r - dvalue[l] * k_K[i0 + i];
        decay_sum += before * s;
        r = before * alpha;
      }
      partial[i] = sum;
    }
    add_lane_sums<C>(x.dk_nK + t * rows + i0, partial);
  }
  x.dbeta_n[t] += lane_sum<C>(beta_sum);
  x.dg_n[t] += lane_sum<C>(decay_sum);
}

/// The tensors of one backward call, as pointers; an output that is not wanted is null.
template <class T>
struct Backward {
  using C = compute_t<T>;
  GdnShape shape;
  const T *do_, *q, *k, *v, *states;
  const C *g, *beta;
  T *dq, *dk, *dv;
  C *dg, *dbeta;

  void load_gates(const ChunkScratch<C>& x, int64_t first, int64_t n, int64_t h) const {
    for (int64_t t = 0; t < n; ++t) {
      x.alpha_n[t] = std::exp(g[(first + t) * shape.value_heads + h]);
      x.beta_n[t] = beta[(first + t) * shape.value_heads + h];
      x.dg_n[t] = 0;
      x.dbeta_n[t] = 0;
    }
  }
  /// One panel of one value head of one chunk.
  void run_panel(const ChunkScratch<C>& x, C* gradient_KP, int64_t chunk, int64_t first, int64_t n, int64_t h,
                 int64_t column) const {
    const int64_t Hv = shape.value_heads, kd = shape.key_dim, vd = shape.value_dim;
    const int64_t rows = gdn_padded(kd, GdnTile::rows);
    const int64_t width = std::min(panel, vd - column);
    load_panel(x.state_KP, states + (chunk * Hv + h) * kd * vd, kd, rows, vd, column, width);
    for (int64_t t = 0; t < n; ++t) {
      const int64_t row = ((first + t) * Hv + h) * vd + column;
      widen_row(x.error_nP + t * panel, v + row, width, panel);
      widen_row(x.do_nP + t * panel, do_ + row, width, panel);
    }
    recompute(x, n, rows);
    const C scale = C(1) / std::sqrt(static_cast<C>(kd));
    for (int64_t t = n - 1; t >= 0; --t) {
      C dv_P[panel];
      step_back(x, gradient_KP, dv_P, t, rows, scale);
      if (!dv) continue;
      T* const out = dv + ((first + t) * Hv + h) * vd + column;
      for (int64_t j = 0; j < width; ++j) out[j] = narrow<T>(dv_P[j]);
    }
  }
  void run_chunk(const ChunkScratch<C>& x, int64_t chunk, int64_t first, int64_t n, int64_t key_head) const {
    const int64_t kd = shape.key_dim, ratio = shape.ratio();
    const int64_t rows = gdn_padded(kd, GdnTile::rows), panels = gdn_panels(shape);
    for (int64_t t = 0; t < n; ++t) {
      const int64_t row = ((first + t) * shape.key_heads + key_head) * kd;
      widen_row(x.k_nK + t * rows, k + row, kd, rows);
      widen_row(x.q_nK + t * rows, q + row, kd, rows);
    }
    std::fill(x.dk_nK, x.dk_nK + n * rows, C(0));
    std::fill(x.dq_nK, x.dq_nK + n * rows, C(0));
    for (int64_t i = 0; i < ratio; ++i) {
      const int64_t h = key_head * ratio + i;
      load_gates(x, first, n, h);
      for (int64_t p = 0; p < panels; ++p) {
        C* const gradient_KP = x.gradients_HKP + (i * panels + p) * rows * panel;
        run_panel(x, gradient_KP, chunk, first, n, h, p * panel);
      }
      for (int64_t t = 0; t < n; ++t) {
        if (dg) dg[(first + t) * shape.value_heads + h] = x.dg_n[t];
        if (dbeta) dbeta[(first + t) * shape.value_heads + h] = x.dbeta_n[t];
      }
    }
    for (int64_t t = 0; t < n; ++t) {
      const int64_t row = ((first + t) * shape.key_heads + key_head) * kd;
      for (int64_t i = 0; dk && i < kd; ++i) dk[row + i] = narrow<T>(x.dk_nK[t * rows + i]);
      for (int64_t i = 0; dq && i < kd; ++i) dq[row + i] = narrow<T>(x.dq_nK[t * rows + i]);
    }
  }
};

template <class T>
T* wanted(Tensor x) {
  return x.empty() ? nullptr : x.as<T>();
}

}  // namespace

void gated_delta_forward(Stream& stream, Tensor o_THV, Tensor states_CHKV, CTensor q_THK, CTensor k_THK,
                         CTensor v_THV, CTensor g_TH, CTensor beta_TH, const Segments& segments,
                         GdnShape shape) {
  by_float(q_THK.dtype, [&](auto zero) {
    forward<decltype(zero)>(stream, o_THV, states_CHKV, q_THK, k_THK, v_THV, g_TH, beta_TH, segments, shape);
  });
}

void gated_delta_backward(Stream& stream, Tensor dq_THK, Tensor dk_THK, Tensor dv_THV, Tensor dg_TH,
                          Tensor dbeta_TH, CTensor do_THV, CTensor states_CHKV, CTensor q_THK, CTensor k_THK,
                          CTensor v_THV, CTensor g_TH, CTensor beta_TH, const Segments& segments,
                          GdnShape shape) {
  by_float(q_THK.dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = compute_t<T>;
    const Backward<T> call{shape,
                           do_THV.as<T>(),
                           q_THK.as<T>(),
                           k_THK.as<T>(),
                           v_THV.as<T>(),
                           states_CHKV.as<T>(),
                           g_TH.as<C>(),
                           beta_TH.as<C>(),
                           wanted<T>(dq_THK),
                           wanted<T>(dk_THK),
                           wanted<T>(dv_THV),
                           wanted<C>(dg_TH),
                           wanted<C>(dbeta_TH)};
    const Chunks chunks(segments);
    const int64_t rows = gdn_padded(shape.key_dim, GdnTile::rows);
    const int64_t carried = shape.ratio() * gdn_panels(shape) * rows * panel;
    C* const scratch = reinterpret_cast<C*>(
        stream.scratch(gated_delta_backward_scratch(shape, dtype_of<C>, thread_count())));
    const int64_t tasks = segments.documents() * shape.key_heads;
    parallel_for(tasks, 1, [&](int64_t begin, int64_t end, int worker) {
      const ChunkScratch<C> x(scratch + worker * gated_delta_backward_worker(shape), rows);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t document = task / shape.key_heads;
        const int64_t first = chunks.begin(document);
        std::fill(x.gradients_HKP, x.gradients_HKP + carried, C(0));
        for (int64_t c = chunks.begin(document + 1) - 1; c >= first; --c) {
          call.run_chunk(x, c, chunks.first_token(c), chunks.length(c), task % shape.key_heads);
        }
      }
    });
  });
}

}  // namespace deltatune::cpu
