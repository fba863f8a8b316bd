// SwiGLU, fill, fill_normal, cast, add.
//
// T tokens, F width. Arithmetic in compute dtype, one rounding at the store.
#pragma once

#include "ops/kernels.h"

namespace deltatune::ops {

/// y = gate sigmoid(gate) up, gate_up_T2F = [gate | up].
void swiglu_forward(Stream&, Tensor y_TF, CTensor gate_up_T2F);
/// With s = sigmoid(gate): dgate = dy up s (1 + gate (1 - s)), dup = dy gate s. dgate_up_T2F may be gate_up's
/// own memory.
void swiglu_backward(Stream&, Tensor dgate_up_T2F, CTensor dy_TF, CTensor gate_up_T2F);

/// y = value, rounded to y's dtype (any); integers: towards zero.
void fill(Stream&, Tensor y, double value);
/// y[i] = deviation times value `first` + i of the normal stream `which` (ops/random_normal.h), rounded to
/// y's dtype: f32, bf16 or f64. The same bits on every device.
void fill_normal(Stream&, Tensor y, double deviation, NormalStream which);
/// y = x, rounded; f32, bf16, f16 or f64 on either side, the same shape.
void cast(Stream&, Tensor y, CTensor x);
/// y += x, rounded once; f32, bf16 or f64 on either side, the same shape.
void add(Stream&, Tensor y, CTensor x);

}  // namespace deltatune::ops
