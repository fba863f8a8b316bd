// Matrix products on the GPU: cuBLASLt with one plan per shape, and the plain kernel behind it.
#pragma once

#include <memory>

#include "ops/kernels.h"

namespace deltatune::cuda {

/// cuBLASLt's handle and the plans made so far. One per device; safe to use from several threads.
///
/// A plan is cuBLASLt's first suggestion for (layout, dtypes, shape, alignments) among algorithms that give
/// the same bits every time, so it does not depend on timing. It is made at the first use of a shape.
class MatmulPlans {
 public:
  MatmulPlans();
  ~MatmulPlans();
  MatmulPlans(const MatmulPlans&) = delete;
  MatmulPlans& operator=(const MatmulPlans&) = delete;

  /// Queues c = a b or c += a b; false where cuBLASLt has no algorithm for it.
  bool run(Stream& stream, Tensor c, CTensor a, CTensor b, MatmulSpec spec);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The same product by a tiled kernel in fp32: any shape and alignment, f32 or bf16 operands, sums in order
/// of k. For shapes that cuBLASLt refuses, and to compare with.
void matmul_plain(Stream&, Tensor c, CTensor a, CTensor b, MatmulSpec);

}  // namespace deltatune::cuda
