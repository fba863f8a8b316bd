// Global gradient norm, clipping and AdamW (Loshchilov and Hutter 2019; order of operations as PyTorch's).
//
// The gradients are those of the loss sum; the division by the count of targets and the clipping factor are
// one number, gradient_scale, applied where AdamW reads a gradient. Everything that changes from step to step
// lies in scalars_8 on the device (StepScalar), so a captured step can be replayed.
#pragma once

#include "ops/kernels.h"

namespace deltatune::ops {

/// sum[0] (f64 [1]) += sum of x^2, in double.
void sum_squares(Stream&, Tensor sum_1, CTensor x_n);
/// scalars_8: f32 [8]. norm = sqrt(sum[0]) inverse_count; gradient_scale = inverse_count min(1, max_norm /
/// (norm + 1e-6)), without the minimum where max_norm <= 0; nonfinite = 1 (and gradient_scale = 0) where the
/// norm is not finite.
void grad_scale(Stream&, Tensor scalars_8, CTensor sum_1, float max_norm);
/// g = grad gradient_scale;  p = p (1 - lr weight_decay);  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
/// p = p - (lr / bias_correction1) m / (sqrt(v) (1 / sqrt(bias_correction2)) + eps), in fp32 on the master
/// (what is the same for all elements is computed once: a division and a square root an element are left);
/// param = p, rounded. Where nonfinite is set nothing changes. m, v and a parameter without master may be
/// kept in bf16: they are widened, computed in fp32 and rounded as options.rounding says (ops/rounding.h). m
/// and v may be 8-bit codes with a unit per block of 128 elements: the update is computed in fp32 from their
/// values and the new m and v are rounded to codes (ops/moment_codes.h), options.rounding being of the
/// parameter alone. All codes and units zero are moments of zero.
void adamw(Stream&, AdamwTensors, CTensor scalars_8, AdamwOptions);

}  // namespace deltatune::ops
