// Rows by index: embedding lookup and its gradient, gather and scatter.
//
// T tokens, D width, V vocabulary, N chosen rows. Indices are i32 and in range. Nothing is rounded in the
// lookups; the gradient of an embedding row is the sum over its positions in order, added once.
//
// Where the table is cut over ranks, one of them has a stretch of N of its V D elements, which may begin and
// end inside of a row, and looks up what R ranks want of that. ids_R2T has each rank's tokens_T and order_T.
#pragma once

#include "ops/kernels.h"

namespace deltatune::ops {

/// y[t] = weight[tokens[t]]. y_TD, weight_VD: storage; tokens_T: i32.
void embedding_forward(Stream&, Tensor y_TD, CTensor tokens_T, CTensor weight_VD);
/// dweight[v] += sum of dy[t] over the t with tokens[t] = v. dweight_VD: compute dtype; order_T (i32): the
/// positions 0 ... T-1 sorted stably by token id.
void embedding_backward(Stream&, Tensor dweight_VD, CTensor dy_TD, CTensor tokens_T, CTensor order_T);

/// y[r][t][j] = element (ids[r][0][t], j) of the table where that is in part_N, which begins with the table's
/// element `first`; else zero. y_RTD, part_N: storage.
void embedding_part_forward(Stream&, Tensor y_RTD, CTensor ids_R2T, CTensor part_N, int64_t first);
/// dpart += what of the table's gradient is in it: over the ranks in order the sum of each rank's sum over
/// its positions in order, which is what embedding_backward on each and a sum over the ranks give, to the
/// bit. dpart_N: compute dtype.
void embedding_part_backward(Stream&, Tensor dpart_N, CTensor dy_RTD, CTensor ids_R2T, int64_t first);

/// y[n] = x[rows[n]]. Any dtype; rows_N: i32.
void gather_rows(Stream&, Tensor y_ND, CTensor x_TD, CTensor rows_N);
/// dx = 0, then dx[rows[n]] = dy[n]; the rows are distinct.
void scatter_rows(Stream&, Tensor dx_TD, CTensor dy_ND, CTensor rows_N);

}  // namespace deltatune::ops
