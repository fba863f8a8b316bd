// The CUDA kernels' host functions, one declaration per row of the op table; definitions in kernels/*.cu and
// matmul.cpp. Each queues work on the stream and returns. What each computes is said in ops/kernels.h.
#pragma once

#include "ops/kernels.h"

namespace deltatune::cuda {

void embedding_forward(Stream&, Tensor y_TD, CTensor tokens_T, CTensor weight_VD);
void embedding_backward(Stream&, Tensor dweight_VD, CTensor dy_TD, CTensor tokens_T, CTensor order_T);
void embedding_part_forward(Stream&, Tensor y_RTD, CTensor ids_R2T, CTensor part_N, int64_t first);
void embedding_part_backward(Stream&, Tensor dpart_N, CTensor dy_RTD, CTensor ids_R2T, int64_t first);
void rmsnorm_forward(Stream&, Tensor y_TD, Tensor rstd_T, CTensor x_TD, CTensor w_D, float eps);
void rmsnorm_backward(Stream&, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor x_TD, CTensor w_D,
                      CTensor rstd_T);
void add_rmsnorm_forward(Stream&, Tensor sum_TD, Tensor y_TD, Tensor rstd_T, CTensor x_TD, CTensor delta_TD,
                         CTensor w_D, float eps);
void add_rmsnorm_backward(Stream&, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor dsum_TD, CTensor sum_TD,
                          CTensor w_D, CTensor rstd_T);
void matmul(Stream&, Tensor c, CTensor a, CTensor b, MatmulSpec);
void qk_norm_rope_forward(Stream&, Tensor q_THK, Tensor k_TGK, Tensor q_rstd_TH, Tensor k_rstd_TG,
                          CTensor proj_TN, CTensor q_norm_K, CTensor k_norm_K, CTensor positions_T,
                          CTensor inv_freq, AttentionShape, float eps);
void qk_norm_rope_backward(Stream&, Tensor dproj_TN, Tensor dq_norm_K, Tensor dk_norm_K, CTensor dq_THK,
                           CTensor dk_TGK, CTensor proj_TN, CTensor q_norm_K, CTensor k_norm_K,
                           CTensor q_rstd_TH, CTensor k_rstd_TG, CTensor positions_T, CTensor inv_freq,
                           AttentionShape);
/// For bf16, heads of 256, a rotary part of a multiple of 16; sm_90.
void qk_norm_rope_forward_spread(Stream&, Tensor q_THK, Tensor k_TGK, Tensor q_rstd_TH, Tensor k_rstd_TG,
                                 CTensor proj_TN, CTensor q_norm_K, CTensor k_norm_K, CTensor positions_T,
                                 CTensor inv_freq, AttentionShape, float eps);
void qk_norm_rope_backward_spread(Stream&, Tensor dproj_TN, Tensor dq_norm_K, Tensor dk_norm_K,
                                  CTensor dq_THK, CTensor dk_TGK, CTensor proj_TN, CTensor q_norm_K,
                                  CTensor k_norm_K, CTensor q_rstd_TH, CTensor k_rstd_TG, CTensor positions_T,
                                  CTensor inv_freq, AttentionShape);
void attention_forward(Stream&, Tensor o_THK, Tensor lse_HT, CTensor q_THK, CTensor k_TGK, CTensor proj_TN,
                       const Segments&, AttentionShape);
void attention_backward(Stream&, Tensor dq_THK, Tensor dk_TGK, Tensor dproj_TN, CTensor do_THK, CTensor o_THK,
                        CTensor q_THK, CTensor k_TGK, CTensor proj_TN, CTensor lse_HT, const Segments&,
                        AttentionShape);
/// attention on tensor cores: bf16, heads of 64, 128 or 256, sm_80 or later; deterministic.
void attention_forward_mma(Stream&, Tensor o_THK, Tensor lse_HT, CTensor q_THK, CTensor k_TGK,
                           CTensor proj_TN, const Segments&, AttentionShape);
void attention_backward_mma(Stream&, Tensor dq_THK, Tensor dk_TGK, Tensor dproj_TN, CTensor do_THK,
                            CTensor o_THK, CTensor q_THK, CTensor k_TGK, CTensor proj_TN, CTensor lse_HT,
                            const Segments&, AttentionShape);
/// The same on sm_90a with wgmma, heads of 256.
void attention_forward_wgmma(Stream&, Tensor o_THK, Tensor lse_HT, CTensor q_THK, CTensor k_TGK,
                             CTensor proj_TN, const Segments&, AttentionShape);
void attention_backward_wgmma(Stream&, Tensor dq_THK, Tensor dk_TGK, Tensor dproj_TN, CTensor do_THK,
                              CTensor o_THK, CTensor q_THK, CTensor k_TGK, CTensor proj_TN, CTensor lse_HT,
                              const Segments&, AttentionShape);
/// Forward by cuDNN 9.18 or later: sm_90, up to cudnn_max_documents documents a row; not deterministic.
void attention_forward_cudnn(Stream&, Tensor o_THK, Tensor lse_HT, CTensor q_THK, CTensor k_TGK,
                             CTensor proj_TN, const Segments&, AttentionShape);
void sigmoid_gate_forward(Stream&, Tensor y_THK, CTensor o_THK, CTensor proj_TN, AttentionShape);
void sigmoid_gate_backward(Stream&, Tensor do_THK, Tensor dproj_TN, CTensor dy_THK, CTensor o_THK,
                           CTensor proj_TN, AttentionShape);
void gdn_prologue_forward(Stream&, Tensor q_THK, Tensor k_THK, Tensor v_THV, Tensor g_TH, Tensor beta_TH,
                          Tensor q_rstd_TH, Tensor k_rstd_TH, CTensor proj_TN, CTensor conv_CW,
                          CTensor A_log_H, CTensor dt_bias_H, const Segments&, GdnShape);
void gdn_prologue_backward(Stream&, Tensor dproj_TN, Tensor dconv_CW, Tensor dA_log_H, Tensor ddt_bias_H,
                           CTensor dq_THK, CTensor dk_THK, CTensor dv_THV, CTensor dg_TH, CTensor dbeta_TH,
                           CTensor proj_TN, CTensor conv_CW, CTensor A_log_H, CTensor dt_bias_H,
                           CTensor q_THK, CTensor k_THK, CTensor q_rstd_TH, CTensor k_rstd_TH,
                           const Segments&, GdnShape);
/// For bf16, heads of 128, a convolution of 4, rows of proj of a multiple of 16 bytes; sm_90.
void gdn_prologue_forward_bulk(Stream&, Tensor q_THK, Tensor k_THK, Tensor v_THV, Tensor g_TH, Tensor beta_TH,
                               Tensor q_rstd_TH, Tensor k_rstd_TH, CTensor proj_TN, CTensor conv_CW,
                               CTensor A_log_H, CTensor dt_bias_H, const Segments&, GdnShape);
void gdn_prologue_backward_bulk(Stream&, Tensor dproj_TN, Tensor dconv_CW, Tensor dA_log_H, Tensor ddt_bias_H,
                                CTensor dq_THK, CTensor dk_THK, CTensor dv_THV, CTensor dg_TH,
                                CTensor dbeta_TH, CTensor proj_TN, CTensor conv_CW, CTensor A_log_H,
                                CTensor dt_bias_H, CTensor q_THK, CTensor k_THK, CTensor q_rstd_TH,
                                CTensor k_rstd_TH, const Segments&, GdnShape);
void gated_delta_forward(Stream&, Tensor o_THV, Tensor states_CHKV, CTensor q_THK, CTensor k_THK,
                         CTensor v_THV, CTensor g_TH, CTensor beta_TH, const Segments&, GdnShape);
/// For bf16, dk = dv = 128 and 1 to 3 value heads per key head.
void gated_delta_forward_mma(Stream&, Tensor o_THV, Tensor states_CHKV, CTensor q_THK, CTensor k_THK,
                             CTensor v_THV, CTensor g_TH, CTensor beta_TH, const Segments&, GdnShape);
void gated_delta_backward(Stream&, Tensor dq_THK, Tensor dk_THK, Tensor dv_THV, Tensor dg_TH, Tensor dbeta_TH,
                          CTensor do_THV, CTensor states_CHKV, CTensor q_THK, CTensor k_THK, CTensor v_THV,
                          CTensor g_TH, CTensor beta_TH, const Segments&, GdnShape);
/// For bf16, dk = dv = 128 and 1 to 3 value heads per key head.
void gated_delta_backward_mma(Stream&, Tensor dq_THK, Tensor dk_THK, Tensor dv_THV, Tensor dg_TH,
                              Tensor dbeta_TH, CTensor do_THV, CTensor states_CHKV, CTensor q_THK,
                              CTensor k_THK, CTensor v_THV, CTensor g_TH, CTensor beta_TH, const Segments&,
                              GdnShape);
void gated_rmsnorm_forward(Stream&, Tensor y_THV, Tensor rstd_TH, CTensor o_THV, CTensor proj_TN, CTensor w_V,
                           GdnShape, float eps);
void gated_rmsnorm_backward(Stream&, Tensor do_THV, Tensor dproj_TN, Tensor dw_V, CTensor dy_THV,
                            CTensor o_THV, CTensor proj_TN, CTensor w_V, CTensor rstd_TH, GdnShape);
void swiglu_forward(Stream&, Tensor y_TF, CTensor gate_up_T2F);
void swiglu_backward(Stream&, Tensor dgate_up_T2F, CTensor dy_TF, CTensor gate_up_T2F);
void gather_rows(Stream&, Tensor y_ND, CTensor x_TD, CTensor rows_N);
void scatter_rows(Stream&, Tensor dx_TD, CTensor dy_ND, CTensor rows_N);
void cross_entropy(Stream&, Tensor loss_sum_1, Tensor dlogits_NV, CTensor logits_NV, CTensor targets_N);
void sum_squares(Stream&, Tensor sum_1, CTensor x_n);
void grad_scale(Stream&, Tensor scalars_8, CTensor sum_1, float max_norm);
void adamw(Stream&, AdamwTensors, CTensor scalars_8, AdamwOptions);
void fill(Stream&, Tensor y, double value);
void fill_normal(Stream&, Tensor y, double deviation, NormalStream which);
void cast(Stream&, Tensor y, CTensor x);
void add(Stream&, Tensor y, CTensor x);

}  // namespace deltatune::cuda
