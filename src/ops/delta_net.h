// Gated DeltaNet: its six ops and their formulas.
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

#include "ops/kernels.h"

namespace deltatune {

namespace ops {

/// Any output may be empty. q, k: [T, Hk, dk], v: [T, Hv, dv], proj: [T, columns], conv: [channels, W]:
/// storage. g, beta: [T, Hv], rstd: [T, Hk], A_log, dt_bias: [Hv]: compute dtype. q is not scaled by dk^-1/2.
void gdn_prologue_forward(Stream&, Tensor q_THK, Tensor k_THK, Tensor v_THV, Tensor g_TH, Tensor beta_TH,
                          Tensor q_rstd_TH, Tensor k_rstd_TH, CTensor proj_TN, CTensor conv_CW,
                          CTensor A_log_H, CTensor dt_bias_H, const Segments&, GdnShape);

/// Writes the q, k, v, b and a columns of dproj, not z. dconv, dA_log and ddt_bias (compute dtype)
/// accumulate. Any output may be empty. q, k and their rstd: the outputs of forward.
void gdn_prologue_backward(Stream&, Tensor dproj_TN, Tensor dconv_CW, Tensor dA_log_H, Tensor ddt_bias_H,
                           CTensor dq_THK, CTensor dk_THK, CTensor dv_THV, CTensor dg_TH, CTensor dbeta_TH,
                           CTensor proj_TN, CTensor conv_CW, CTensor A_log_H, CTensor dt_bias_H,
                           CTensor q_THK, CTensor k_THK, CTensor q_rstd_TH, CTensor k_rstd_TH,
                           const Segments&, GdnShape);

/// o: [T, Hv, dv]. states: S entering each chunk, [C, Hv, dk, dv], C at least the chunks of the row; only the
/// entries of those are written, rounded to storage: S itself is carried in compute dtype. Either may be
/// empty.
void gated_delta_forward(Stream&, Tensor o_THV, Tensor states_CHKV, CTensor q_THK, CTensor k_THK,
                         CTensor v_THV, CTensor g_TH, CTensor beta_TH, const Segments&, GdnShape);

/// states: those of forward. Any output may be empty. dq, dk: [T, Hk, dk], storage; dg, dbeta: compute dtype.
void gated_delta_backward(Stream&, Tensor dq_THK, Tensor dk_THK, Tensor dv_THV, Tensor dg_TH, Tensor dbeta_TH,
                          CTensor do_THV, CTensor states_CHKV, CTensor q_THK, CTensor k_THK, CTensor v_THV,
                          CTensor g_TH, CTensor beta_TH, const Segments&, GdnShape);

/// y, o: [T, Hv, dv]; rstd: [T, Hv] and w: [dv] in compute dtype. y or rstd may be empty.
void gated_rmsnorm_forward(Stream&, Tensor y_THV, Tensor rstd_TH, CTensor o_THV, CTensor proj_TN, CTensor w_V,
                           GdnShape, float eps);

/// Writes the z columns of dproj; dw accumulates. Any output may be empty. do may not be the memory of dy or
/// o.
void gated_rmsnorm_backward(Stream&, Tensor do_THV, Tensor dproj_TN, Tensor dw_V, CTensor dy_THV,
                            CTensor o_THV, CTensor proj_TN, CTensor w_V, CTensor rstd_TH, GdnShape);

}  // namespace ops

}  // namespace deltatune
