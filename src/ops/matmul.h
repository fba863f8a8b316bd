// Matrix products in the three layouts of a linear layer y = x W^T:
//   nt: c[M,N] = a[M,K] b[N,K]^T   (forward: x, W)
//   nn: c[M,N] = a[M,K] b[K,N]     (dx: dy, W)
//   tn: c[M,N] = a[K,M]^T b[K,N]   (dW: dy, x)
// a and b share a storage dtype; c has it too, or the compute dtype. Sums over all of K in compute dtype, one
// rounding at the store; with accumulate the old value is added before that rounding.
#pragma once

#include "ops/kernels.h"

namespace deltatune::ops {

void matmul(Stream&, Tensor c, CTensor a, CTensor b, MatmulSpec);

}  // namespace deltatune::ops
