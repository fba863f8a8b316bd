// Zero-centred RMSNorm (transformers `Qwen3_5RMSNorm`): y = x rstd (1 + w), rstd = (mean x^2 + eps)^-1/2,
// everything in compute dtype, one rounding. The weight is stored around 0.
//
// Backward, with u = x rstd and g = dy (1 + w):  dx = rstd (g - u mean(g u)),  dw += sum over tokens dy u.
// T tokens, D width. x, y, w, dx, dy: storage; rstd_T and dw_D: compute dtype.
#pragma once

#include "ops/kernels.h"

namespace deltatune::ops {

/// y_TD or rstd_T may be empty.
void rmsnorm_forward(Stream&, Tensor y_TD, Tensor rstd_T, CTensor x_TD, CTensor w_D, float eps);
/// dx_TD or dw_D may be empty; dx_TD may be dy's memory.
void rmsnorm_backward(Stream&, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor x_TD, CTensor w_D,
                      CTensor rstd_T);

/// sum = x + delta, rounded to storage; y and rstd of the rounded sum. y_TD or rstd_T may be empty; sum_TD
/// may be the memory of x or of delta.
void add_rmsnorm_forward(Stream&, Tensor sum_TD, Tensor y_TD, Tensor rstd_T, CTensor x_TD, CTensor delta_TD,
                         CTensor w_D, float eps);
/// dx = dsum + the dx of rmsnorm_backward at sum: the gradient of x and of delta alike. dx_TD or dw_D may be
/// empty; dx_TD may be the memory of dy or of dsum.
void add_rmsnorm_backward(Stream&, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor dsum_TD, CTensor sum_TD,
                          CTensor w_D, CTensor rstd_T);

}  // namespace deltatune::ops
