// Full attention, as in transformers' `Qwen3_5Attention`, cut into three pairs of ops around the fused
// projection proj_TN (columns: see AttentionShape).
//
// qk_norm_rope. Per head x of K = head_dim: n = x rstd (1 + w), rstd = (mean x^2 + eps)^-1/2; then with
//   theta_j = position inv_freq[j] (fp32), c = cos, s = sin rounded to storage, j < R/2, R = rotary_dim:
//     out[j] = n[j] c_j - n[j + R/2] s_j,  out[j + R/2] = n[j + R/2] c_j + n[j] s_j,  the rest out = n.
//   Backward: dn is dout rotated by -theta; then the RMSNorm backward of norms.h; dw is summed over tokens
//   and heads.
// attention. s_ij = K^-1/2 q_i . k_j for j <= i in one document; P = softmax(s); o_i = sum_j P_ij v_j;
//   lse_i = log sum_j e^s_ij. Query head h reads key/value head floor(h / (H / G)).
//   Backward: dP_ij = do_i . v_j;  D_i = do_i . o_i;  dS = P (dP - D);  dq_i = K^-1/2 sum_j dS_ij k_j;
//   dk_j = K^-1/2 sum_i dS_ij q_i;  dv_j = sum_i P_ij do_i, dk and dv also over the query heads of a group.
// sigmoid_gate. y = o sigmoid(gate);  do = dy sigmoid(gate);  dgate = dy o s (1 - s), s = sigmoid(gate).
//
// T tokens, H query heads, G kv heads. proj, q, k, o, w and their gradients: storage; rstd, lse and the
// gradients of norm weights: compute dtype; positions_T: i32; inv_freq: f32 [R/2].
#pragma once

#include "ops/kernels.h"

namespace deltatune::ops {

/// The rstd outputs may be empty.
void qk_norm_rope_forward(Stream&, Tensor q_THK, Tensor k_TGK, Tensor q_rstd_TH, Tensor k_rstd_TG,
                          CTensor proj_TN, CTensor q_norm_K, CTensor k_norm_K, CTensor positions_T,
                          CTensor inv_freq, AttentionShape, float eps);
/// Writes the q and k columns of dproj_TN; any of the first three may be empty.
void qk_norm_rope_backward(Stream&, Tensor dproj_TN, Tensor dq_norm_K, Tensor dk_norm_K, CTensor dq_THK,
                           CTensor dk_TGK, CTensor proj_TN, CTensor q_norm_K, CTensor k_norm_K,
                           CTensor q_rstd_TH, CTensor k_rstd_TG, CTensor positions_T, CTensor inv_freq,
                           AttentionShape);

/// lse_HT may be empty. The documents of the segments must cover all T tokens.
void attention_forward(Stream&, Tensor o_THK, Tensor lse_HT, CTensor q_THK, CTensor k_TGK, CTensor proj_TN,
                       const Segments&, AttentionShape);
/// Writes dq, dk and the v columns of dproj_TN.
void attention_backward(Stream&, Tensor dq_THK, Tensor dk_TGK, Tensor dproj_TN, CTensor do_THK, CTensor o_THK,
                        CTensor q_THK, CTensor k_TGK, CTensor proj_TN, CTensor lse_HT, const Segments&,
                        AttentionShape);

/// y_THK may be o's memory.
void sigmoid_gate_forward(Stream&, Tensor y_THK, CTensor o_THK, CTensor proj_TN, AttentionShape);
/// Writes do and the gate columns of dproj_TN; do_THK may be dy's memory.
void sigmoid_gate_backward(Stream&, Tensor do_THK, Tensor dproj_TN, CTensor dy_THK, CTensor o_THK,
                           CTensor proj_TN, AttentionShape);

}  // namespace deltatune::ops
