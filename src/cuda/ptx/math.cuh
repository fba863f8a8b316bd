// Approximate functions of one instruction.
#pragma once

namespace deltatune::cuda::ptx {

/// 2^x to 2 units in the last place; 0 for -infinity, and results below 2^-126 are 0.
__device__ inline float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace deltatune::cuda::ptx
