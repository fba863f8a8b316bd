// Gated DeltaNet: the formulas of its six ops and the scratch that their cpu kernels need.
//
// Yang, Kautz, Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule" (2024); details as in
// transformers' modeling_qwen3_5. T tokens, Hk key heads of dk, Hv value heads of dv, r = Hv / Hk; value head
// h reads key head h / r; W conv_width; all positions are positions inside the document.
//
// gdn_prologue.  x: the q, k and v columns of proj, one channel each c.
//     c_t = sum_j conv[c, j] x_{t-W+1+j}  (taps before the document start are 0: conv[c, W-1] is the current
//     token's),  u = c sigmoid(c);  v = u;  q, k = u rstd with rstd = (sum over the head of u^2 + 1e-6)^-1/2;
//     beta = sigmoid(b);  g = -exp(A_log) softplus(a + dt_bias), softplus the identity above 20 (PyTorch's).
//   Backward (c, x recomputed from proj):  du = rstd (dy - y (y . dy)) for y = q, k, du = dv for v;
//     dc = du sigmoid(c) (1 + c (1 - sigmoid(c)));  dx_t = sum_s conv[c, W-1-s] dc_{t+s} over the t+s < t+W
//     of the same document;  dconv[c, j] += sum_t dc_t x_{t-W+1+j} over taps inside the document; db = dbeta
//     beta (1 - beta);  da = -dg exp(A_log) sigmoid(a + dt_bias);  ddt_bias += sum_t da; dA_log += sum_t dg
//     g.
// gated_delta.  Per value head, S = 0 [dk, dv] at each document start, per token
//     S <- e^g S;  d = beta (v - S^T k);  S <- S + k d^T;  o = dk^-1/2 S^T q.
//   Backward, tokens in reverse, R = dL/dS, R = 0 at each document end, S' = e^g S_{t-1}, S = S' + k d^T:
//     R += dk^-1/2 q do^T;  dq = dk^-1/2 S do;  dd = R^T k;  dv = beta dd;  dbeta = dd . (v - S'^T k);
//     dk = R d - S' dv;  R' = R - k dv^T;  dg = <R', S'>;  R <- e^g R'.
// gated_rmsnorm.  Per value head: n = o rstd, rstd = (mean o^2 + eps)^-1/2, y = n w silu(z).
//   Backward: dn = dy w silu(z);  do = rstd (dn - n mean(n dn));  dw += sum dy n silu(z);
//     dz = dy n w sigmoid(z) (1 + z (1 - sigmoid(z))).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"

namespace deltatune {

/// Added to the sum of squares of a q or k head: a constant of the model family, not rms_norm_eps.
inline constexpr double gdn_l2norm_eps = 1e-6;

/// How the cpu kernels cut their work. None of it shows in the results but through the order of sums.
struct GdnTile {
  static constexpr int64_t panel = 32;          ///< columns of the state that are walked together
  static constexpr int64_t rows = 8;            ///< key_dim is padded to a multiple of this
  static constexpr int64_t tokens_in_sum = 64;  ///< sums over tokens: first inside blocks, then over blocks
};

inline int64_t gdn_padded(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}
inline int64_t gdn_panels(const GdnShape& shape) {
  return (shape.value_dim + GdnTile::panel - 1) / GdnTile::panel;
}

/// Elements (compute dtype) of scratch of one worker of each cpu kernel, a multiple of 64.
inline int64_t gdn_prologue_forward_worker(const GdnShape& shape) {
  return gdn_padded(shape.channels(), 64);
}
inline int64_t gdn_prologue_backward_worker(const GdnShape& shape) {
  return gdn_padded(4 * shape.conv_width * std::max(shape.key_dim, shape.value_dim), 64);
}
inline int64_t gated_delta_forward_worker(const GdnShape& shape) {
  return gdn_padded(gdn_padded(shape.key_dim, GdnTile::rows) * (GdnTile::panel + 2), 64);
}
inline int64_t gated_delta_backward_worker(const GdnShape& shape) {
  const int64_t key_rows = gdn_padded(shape.key_dim, GdnTile::rows);
  const int64_t states = (gdn_chunk + 1 + shape.ratio() * gdn_panels(shape)) * key_rows * GdnTile::panel;
  return states + gdn_chunk * (4 * key_rows + 3 * GdnTile::panel + 4);
}

/// Bytes of Stream::scratch that the cpu kernel of each row uses, for `threads` pool threads; `compute` is
/// the compute dtype. Host-only arithmetic: `plan` gets the same bytes as a run.
inline size_t gdn_prologue_forward_scratch(const GdnShape& shape, DType compute, int threads) {
  const int64_t weights = gdn_padded(shape.conv_width * shape.channels(), 64);
  return static_cast<size_t>(weights + threads * gdn_prologue_forward_worker(shape)) * size_of(compute);
}
inline size_t gdn_prologue_backward_scratch(const GdnShape& shape, DType compute, int threads) {
  return static_cast<size_t>(threads * gdn_prologue_backward_worker(shape)) * size_of(compute);
}
inline size_t gated_delta_forward_scratch(const GdnShape& shape, DType compute, int threads) {
  return static_cast<size_t>(threads * gated_delta_forward_worker(shape)) * size_of(compute);
}
inline size_t gated_delta_backward_scratch(const GdnShape& shape, DType compute, int threads) {
  return static_cast<size_t>(threads * gated_delta_backward_worker(shape)) * size_of(compute);
}
inline size_t gated_rmsnorm_backward_scratch(const GdnShape& shape, DType compute, int64_t tokens) {
  const int64_t blocks = (tokens + GdnTile::tokens_in_sum - 1) / GdnTile::tokens_in_sum;
  return static_cast<size_t>(blocks * shape.value_dim) * size_of(compute);
}

}  // namespace deltatune
