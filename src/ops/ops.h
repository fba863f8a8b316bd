// ops::*: the only thing model code calls. Each function checks shapes and dtypes once for all machines (a
// wrong one is our bug: Error{internal} with op and argument), notes its cost and its scratch, and runs the
// row of the stream's table. One header per family, with the formulas.
#pragma once

#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/kernels.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/norms.h"
#include "ops/optimizer.h"

namespace deltatune::ops {

// Gated DeltaNet: formulas in ops/delta_net.h.
void gdn_prologue_forward(Stream&, Tensor q_THK, Tensor k_THK, Tensor v_THV, Tensor g_TH, Tensor beta_TH,
                          Tensor q_rstd_TH, Tensor k_rstd_TH, CTensor proj_TN, CTensor conv_CW,
                          CTensor A_log_H, CTensor dt_bias_H, const Segments&, GdnShape);
void gdn_prologue_backward(Stream&, Tensor dproj_TN, Tensor dconv_CW, Tensor dA_log_H, Tensor ddt_bias_H,
                           CTensor dq_THK, CTensor dk_THK, CTensor dv_THV, CTensor dg_TH, CTensor dbeta_TH,
                           CTensor proj_TN, CTensor conv_CW, CTensor A_log_H, CTensor dt_bias_H,
                           CTensor q_THK, CTensor k_THK, CTensor q_rstd_TH, CTensor k_rstd_TH,
                           const Segments&, GdnShape);
void gated_delta_forward(Stream&, Tensor o_THV, Tensor states_CHKV, CTensor q_THK, CTensor k_THK,
                         CTensor v_THV, CTensor g_TH, CTensor beta_TH, const Segments&, GdnShape);
void gated_delta_backward(Stream&, Tensor dq_THK, Tensor dk_THK, Tensor dv_THV, Tensor dg_TH, Tensor dbeta_TH,
                          CTensor do_THV, CTensor states_CHKV, CTensor q_THK, CTensor k_THK, CTensor v_THV,
                          CTensor g_TH, CTensor beta_TH, const Segments&, GdnShape);
void gated_rmsnorm_forward(Stream&, Tensor y_THV, Tensor rstd_TH, CTensor o_THV, CTensor proj_TN, CTensor w_V,
                           GdnShape, float eps);
void gated_rmsnorm_backward(Stream&, Tensor do_THV, Tensor dproj_TN, Tensor dw_V, CTensor dy_THV,
                            CTensor o_THV, CTensor proj_TN, CTensor w_V, CTensor rstd_TH, GdnShape);

}  // namespace deltatune::ops
