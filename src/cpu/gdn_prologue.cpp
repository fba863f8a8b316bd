// gdn_prologue: short convolution + SiLU, l2norm of q and k, gates; formulas in ops/delta_net.h.
//
// Everything between proj and the stored q, k, v stays in compute dtype: one rounding per value. Forward is
// parallel over tokens. Backward is parallel over heads of channels (and heads of gates): a head walks its
// tokens from last to first and keeps dc of the last W tokens in a ring, so that dx and the sums over tokens
// (dconv, dA_log, ddt_bias: inside blocks of 64 tokens, then over the blocks) have one fixed order.
#include "cpu/gdn_prologue.h"

#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "cpu/cpu_ops.h"
#include "cpu/vector.h"
#include "ops/delta_net.h"
#include "ops/delta_net_scratch.h"

namespace deltatune::cpu {
namespace {

constexpr int64_t block = GdnTile::tokens_in_sum;

/// PyTorch's softplus: the identity above its threshold of 20, and the derivative that goes with it.
template <class C>
C softplus(C x) {
  return x > C(20) ? x : std::log1p(std::exp(x));
}
template <class C>
C softplus_derivative(C x) {
  return x > C(20) ? C(1) : sigmoid(x);
}

/// c_C = convolution of one token, before SiLU.
template <class T>
void convolve(compute_t<T>* c_C, const T* proj, const compute_t<T>* weights_WC, int64_t channels,
              int64_t weight_stride, int64_t width, int64_t columns, int64_t position) {
  std::fill(c_C, c_C + channels, compute_t<T>(0));
  for (int64_t back = std::min(position, width - 1); back >= 0; --back) {
    const T* const x = proj - back * columns;
    const compute_t<T>* const w = weights_WC + (width - 1 - back) * weight_stride;
    for (int64_t c = 0; c < channels; ++c) c_C[c] += w[c] * widen(x[c]);
  }
}

template <class T>
T* wanted(Tensor x) {
  return x.empty() ? nullptr : x.as<T>();
}

}  // namespace

template <class T>
void gdn_conv_silu(compute_t<T>* u_C, const T* proj, const compute_t<T>* weights_WC, int64_t channels,
                   int64_t width, int64_t columns, int64_t position) {
  convolve(u_C, proj, weights_WC, channels, channels, width, columns, position);
  for (int64_t c = 0; c < channels; ++c) u_C[c] *= sigmoid(u_C[c]);
}

template <class T>
compute_t<T> gdn_l2norm(T* y, const compute_t<T>* u, int64_t n) {
  using C = compute_t<T>;
  const C rstd = C(1) / std::sqrt(dot(u, u, n) + static_cast<C>(gdn_l2norm_eps));
  for (int64_t i = 0; y && i < n; ++i) y[i] = narrow<T>(u[i] * rstd);
  return rstd;
}

template <class T>
void gdn_gates(compute_t<T>* g_H, compute_t<T>* beta_H, const T* a_H, const T* b_H,
               const compute_t<T>* A_log_H, const compute_t<T>* dt_bias_H, int64_t heads) {
  for (int64_t h = 0; beta_H && h < heads; ++h) beta_H[h] = sigmoid(widen(b_H[h]));
  for (int64_t h = 0; g_H && h < heads; ++h) {
    g_H[h] = -std::exp(A_log_H[h]) * softplus(widen(a_H[h]) + dt_bias_H[h]);
  }
}

template void gdn_conv_silu<float>(float*, const float*, const float*, int64_t, int64_t, int64_t, int64_t);
template void gdn_conv_silu<bf16>(float*, const bf16*, const float*, int64_t, int64_t, int64_t, int64_t);
template void gdn_conv_silu<double>(double*, const double*, const double*, int64_t, int64_t, int64_t,
                                    int64_t);
template float gdn_l2norm<float>(float*, const float*, int64_t);
template float gdn_l2norm<bf16>(bf16*, const float*, int64_t);
template double gdn_l2norm<double>(double*, const double*, int64_t);
template void gdn_gates<float>(float*, float*, const float*, const float*, const float*, const float*,
                               int64_t);
template void gdn_gates<bf16>(float*, float*, const bf16*, const bf16*, const float*, const float*, int64_t);
template void gdn_gates<double>(double*, double*, const double*, const double*, const double*, const double*,
                                int64_t);

namespace {

/// The outputs of forward; null: not wanted.
template <class T>
struct Forward {
  using C = compute_t<T>;
  GdnShape shape;
  T *q, *k, *v;
  C *g, *beta, *q_rstd, *k_rstd;
  const T* proj;
  const C *weights_WC, *A_log, *dt_bias;
  const int32_t* positions;

  void run_token(C* u_C, int64_t t) const {
    const T* const row = proj + t * shape.columns();
    const int64_t keys = shape.keys(), dk = shape.key_dim;
    if (q || k || v || q_rstd || k_rstd) {
      gdn_conv_silu(u_C, row, weights_WC, shape.channels(), shape.conv_width, shape.columns(), positions[t]);
    }
    for (int64_t h = 0; (q || q_rstd) && h < shape.key_heads; ++h) {
      const C rstd = gdn_l2norm(q ? q + t * keys + h * dk : nullptr, u_C + h * dk, dk);
      if (q_rstd) q_rstd[t * shape.key_heads + h] = rstd;
    }
    for (int64_t h = 0; (k || k_rstd) && h < shape.key_heads; ++h) {
      const C rstd = gdn_l2norm(k ? k + t * keys + h * dk : nullptr, u_C + keys + h * dk, dk);
      if (k_rstd) k_rstd[t * shape.key_heads + h] = rstd;
    }
    for (int64_t i = 0; v && i < shape.values(); ++i) {
      v[t * shape.values() + i] = narrow<T>(u_C[2 * keys + i]);
    }
    gdn_gates(g ? g + t * shape.value_heads : nullptr, beta ? beta + t * shape.value_heads : nullptr,
              row + shape.a_column(), row + shape.b_column(), A_log, dt_bias, shape.value_heads);
  }
};

/// The channels of one head of q, k or v in backward.
template <class T>
struct ChannelHead {
  using C = compute_t<T>;
  int64_t column = 0;     ///< first channel
  int64_t size = 0;       ///< channels
  const T* dy = nullptr;  ///< gradient of the stored output, rows dy_stride apart
  int64_t dy_stride = 0;
  const T* y = nullptr;  ///< normalised output in dy's layout; null for v
  const C* rstd = nullptr;
  int64_t rstd_stride = 0;
};

template <class T>
struct Backward {
  using C = compute_t<T>;
  GdnShape shape;
  int64_t tokens;
  T* dproj;
  C *dconv, *dA_log, *ddt_bias;
  const T *dq, *dk, *dv;
  const C *dg, *dbeta;
  const T *proj, *conv;
  const C *A_log, *dt_bias;
  const T *q, *k;
  const C *q_rstd, *k_rstd;
  const int32_t* positions;

  int64_t channel_heads() const { return 2 * shape.key_heads + shape.value_heads; }

  ChannelHead<T> channel_head(int64_t index) const {
    const int64_t Hk = shape.key_heads, d = shape.key_dim, keys = shape.keys();
    if (index < 2 * Hk) {
      const int64_t h = index % Hk;
      const bool is_q = index < Hk;
      return {
          index * d, d, (is_q ? dq : dk) + h * d, keys, (is_q ? q : k) + h * d, (is_q ? q_rstd : k_rstd) + h,
          Hk};
    }
    const int64_t h = index - 2 * Hk;
    return {2 * keys + h * shape.value_dim,
            shape.value_dim,
            dv + h * shape.value_dim,
            shape.values(),
            nullptr,
            nullptr,
            0};
  }

  /// dc (gradient before SiLU) of token t: c is recomputed in place.
  void preactivation_gradient(C* dc, const ChannelHead<T>& head, const C* weights_WC, int64_t t) const {
    convolve(dc, proj + t * shape.columns() + head.column, weights_WC, head.size, head.size, shape.conv_width,
             shape.columns(), positions[t]);
    const T* const dy = head.dy + t * head.dy_stride;
    const auto silu_derivative = [](C c) {
      const C sig = sigmoid(c);
      return sig * (C(1) + c * (C(1) - sig));
    };
    if (!head.y) {
      for (int64_t i = 0; i < head.size; ++i) dc[i] = widen(dy[i]) * silu_derivative(dc[i]);
      return;
    }
    const T* const y = head.y + t * head.dy_stride;
    const C rstd = head.rstd[t * head.rstd_stride];
    const C along = dot(y, dy, head.size);
    for (int64_t i = 0; i < head.size; ++i) {
      dc[i] = rstd * (widen(dy[i]) - widen(y[i]) * along) * silu_derivative(dc[i]);
    }
  }

  /// dx and dconv of one head of channels.
  void run_channels(C* scratch, const ChannelHead<T>& head) const {
    const int64_t W = shape.conv_width, n = head.size;
    C* const weights_WC = scratch;
    C* const ring_WC = weights_WC + W * n;  // dc of token t in row t % W
    C* const block_WC = ring_WC + W * n;    // dconv of this block of tokens
    C* const total_WC = block_WC + W * n;
    C* const dx_C = total_WC + W * n;
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t j = 0; j < W; ++j) weights_WC[j * n + c] = widen(conv[(head.column + c) * W + j]);
    }
    std::fill(block_WC, block_WC + 2 * W * n, C(0));
    for (int64_t t = tokens - 1; t >= 0; --t) {
      C* const dc = ring_WC + t % W * n;
      preactivation_gradient(dc, head, weights_WC, t);
      const T* const x = proj + t * shape.columns() + head.column;
      for (int64_t back = 0; back < W && back <= positions[t]; ++back) {
        C* const sum = block_WC + (W - 1 - back) * n;
        const T* const tap = x - back * shape.columns();
        for (int64_t c = 0; c < n; ++c) sum[c] += dc[c] * widen(tap[c]);
      }
      if (dproj) store_input_gradient(dx_C, head, weights_WC, ring_WC, t);
      if (t % block == 0) {
        for (int64_t i = 0; i < W * n; ++i) total_WC[i] += block_WC[i];
        std::fill(block_WC, block_WC + W * n, C(0));
      }
    }
    for (int64_t c = 0; dconv && c < n; ++c) {
      for (int64_t j = 0; j < W; ++j) dconv[(head.column + c) * W + j] += total_WC[j * n + c];
    }
  }

  /// dx_t from dc of t and of the up to W-1 tokens after it in the same document: those whose position is not
  /// smaller than their distance from t.
  void store_input_gradient(C* dx_C, const ChannelHead<T>& head, const C* weights_WC, const C* ring_WC,
                            int64_t t) const {
    const int64_t W = shape.conv_width, n = head.size;
    std::fill(dx_C, dx_C + n, C(0));
    for (int64_t s = 0; s < W && t + s < tokens && positions[t + s] >= s; ++s) {
      const C* const dc = ring_WC + (t + s) % W * n;
      const C* const w = weights_WC + (W - 1 - s) * n;
      for (int64_t c = 0; c < n; ++c) dx_C[c] += w[c] * dc[c];
    }
    store_row(dproj + t * shape.columns() + head.column, dx_C, n);
  }

  /// da, db, dA_log and ddt_bias of value head h.
  void run_gates(int64_t h) const {
    const int64_t Hv = shape.value_heads;
    const C rate = -std::exp(A_log[h]);
    C A_log_total = 0, bias_total = 0;
    for (int64_t begin = 0; begin < tokens; begin += block) {
      C A_log_sum = 0, bias_sum = 0;
      for (int64_t t = begin; t < std::min(begin + block, tokens); ++t) {
        const T* const row = proj + t * shape.columns();
        const C x = widen(row[shape.a_column() + h]) + dt_bias[h];
        const C beta = sigmoid(widen(row[shape.b_column() + h]));
        const C da = dg[t * Hv + h] * rate * softplus_derivative(x);
        A_log_sum += dg[t * Hv + h] * (rate * softplus(x));
        bias_sum += da;
        if (!dproj) continue;
        T* const out = dproj + t * shape.columns();
        out[shape.a_column() + h] = narrow<T>(da);
        out[shape.b_column() + h] = narrow<T>(dbeta[t * Hv + h] * beta * (C(1) - beta));
      }
      A_log_total += A_log_sum;
      bias_total += bias_sum;
    }
    if (dA_log) dA_log[h] += A_log_total;
    if (ddt_bias) ddt_bias[h] += bias_total;
  }
};

}  // namespace

void gdn_prologue_forward(Stream& stream, Tensor q_THK, Tensor k_THK, Tensor v_THV, Tensor g_TH,
                          Tensor beta_TH, Tensor q_rstd_TH, Tensor k_rstd_TH, CTensor proj_TN,
                          CTensor conv_CW, CTensor A_log_H, CTensor dt_bias_H, const Segments& segments,
                          GdnShape shape) {
  by_float(proj_TN.dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = compute_t<T>;
    const int64_t channels = shape.channels(), W = shape.conv_width;
    C* const weights_WC = reinterpret_cast<C*>(
        stream.scratch(gdn_prologue_forward_scratch(shape, dtype_of<C>, thread_count())));
    C* const workers = weights_WC + gdn_padded(W * channels, 64);
    const T* const conv = conv_CW.as<T>();
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t j = 0; j < W; ++j) weights_WC[j * channels + c] = widen(conv[c * W + j]);
    }
    const Forward<T> call{shape,
                          wanted<T>(q_THK),
                          wanted<T>(k_THK),
                          wanted<T>(v_THV),
                          wanted<C>(g_TH),
                          wanted<C>(beta_TH),
                          wanted<C>(q_rstd_TH),
                          wanted<C>(k_rstd_TH),
                          proj_TN.as<T>(),
                          weights_WC,
                          A_log_H.as<C>(),
                          dt_bias_H.as<C>(),
                          segments.positions_T.as<int32_t>()};
    parallel_for(proj_TN.dim(0), 16, [&](int64_t begin, int64_t end, int worker) {
      C* const u_C = workers + worker * gdn_prologue_forward_worker(shape);
      for (int64_t t = begin; t < end; ++t) call.run_token(u_C, t);
    });
  });
}

void gdn_prologue_backward(Stream& stream, Tensor dproj_TN, Tensor dconv_CW, Tensor dA_log_H,
                           Tensor ddt_bias_H, CTensor dq_THK, CTensor dk_THK, CTensor dv_THV, CTensor dg_TH,
                           CTensor dbeta_TH, CTensor proj_TN, CTensor conv_CW, CTensor A_log_H,
                           CTensor dt_bias_H, CTensor q_THK, CTensor k_THK, CTensor q_rstd_TH,
                           CTensor k_rstd_TH, const Segments& segments, GdnShape shape) {
  by_float(proj_TN.dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = compute_t<T>;
    const Backward<T> call{shape,
                           proj_TN.dim(0),
                           wanted<T>(dproj_TN),
                           wanted<C>(dconv_CW),
                           wanted<C>(dA_log_H),
                           wanted<C>(ddt_bias_H),
                           dq_THK.as<T>(),
                           dk_THK.as<T>(),
                           dv_THV.as<T>(),
                           dg_TH.as<C>(),
                           dbeta_TH.as<C>(),
                           proj_TN.as<T>(),
                           conv_CW.as<T>(),
                           A_log_H.as<C>(),
                           dt_bias_H.as<C>(),
                           q_THK.as<T>(),
                           k_THK.as<T>(),
                           q_rstd_TH.as<C>(),
                           k_rstd_TH.as<C>(),
                           segments.positions_T.as<int32_t>()};
    C* const scratch = reinterpret_cast<C*>(
        stream.scratch(gdn_prologue_backward_scratch(shape, dtype_of<C>, thread_count())));
    const int64_t channel_heads = call.channel_heads();
    parallel_for(channel_heads + shape.value_heads, 1, [&](int64_t begin, int64_t end, int worker) {
      C* const mine = scratch + worker * gdn_prologue_backward_worker(shape);
      for (int64_t task = begin; task < end; ++task) {
        if (task < channel_heads) {
          call.run_channels(mine, call.channel_head(task));
        } else {
          call.run_gates(task - channel_heads);
        }
      }
    });
  });
}

}  // namespace deltatune::cpu
