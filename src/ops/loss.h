// Cross-entropy of a block of rows, fused with its gradient.
#pragma once

#include "ops/kernels.h"

namespace deltatune::ops {

/// loss_sum[0] (f64 [1]) += sum over rows n of log sum_v e^logits[n,v] - logits[n, target[n]], in row order;
/// dlogits = softmax(logits) - onehot(target), the gradient of the sum (no division by a count).
/// N rows, V vocabulary; logits and dlogits: storage; targets_N: i32, a negative one makes the row count
/// nothing and its gradient 0. dlogits_NV may be logits' own memory, or empty (evaluation).
void cross_entropy(Stream&, Tensor loss_sum_1, Tensor dlogits_NV, CTensor logits_NV, CTensor targets_N);

}  // namespace deltatune::ops
