// Matrix products on the GPU: cuBLASLt with one plan per shape, and the plain kernel behind it.
#pragma once

#include <memory>
#include <string>

#include "ops/kernels.h"
#include "ops/matmul_tuning.h"

namespace deltatune::cuda {

/// cuBLASLt's handle and the plans made so far. One per device; safe to use from several threads.
///
/// A plan's algorithm is one that gives the same bits every time: for shapes that prepare() has seen the
/// fastest of the library's suggestions, stored so that later runs take the same; for others the first
/// suggestion, taken at the first use of the shape.
class MatmulPlans {
 public:
  MatmulPlans();
  ~MatmulPlans();
  MatmulPlans(const MatmulPlans&) = delete;
  MatmulPlans& operator=(const MatmulPlans&) = delete;

  /// Chooses for every shape of tuning.calls. Overwrites their operands. `gpu` names the model of the device.
  void prepare(Stream& stream, const std::string& gpu, MatmulTuning& tuning);
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
