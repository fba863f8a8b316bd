// Rows by index: embedding lookup and its gradient, gather and scatter.
//
// T tokens, D width, V vocabulary, N chosen rows. Indices are i32 and in range. Nothing is rounded in the
// lookups; the gradient of an embedding row is the sum over its positions in order, added once.
#pragma once

#include "ops/kernels.h"

namespace deltatune::ops {

/// y[t] = weight[tokens[t]]. y_TD, weight_VD: storage; tokens_T: i32.
void embedding_forward(Stream&, Tensor y_TD, CTensor tokens_T, CTensor weight_VD);
/// dweight[v] += sum of dy[t] over the t with tokens[t] = v. dweight_VD: compute dtype; order_T (i32): the
/// positions 0 ... T-1 sorted stably by token id.
void embedding_backward(Stream&, Tensor dweight_VD, CTensor dy_TD, CTensor tokens_T, CTensor order_T);

/// y[n] = x[rows[n]]. Any dtype; rows_N: i32.
void gather_rows(Stream&, Tensor y_ND, CTensor x_TD, CTensor rows_N);
/// dx = 0, then dx[rows[n]] = dy[n]; the rows are distinct.
void scatter_rows(Stream&, Tensor dx_TD, CTensor dy_ND, CTensor rows_N);

}  // namespace deltatune::ops
