// Approximate functions of one instruction. Denormal arguments and results count as 0.
#pragma once

namespace deltatune::cuda::ptx {

/// 2^x to 2 units in the last place; 0 for -infinity, infinity on overflow.
__device__ inline float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x to 1 unit in the last place; 0 for infinity.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace deltatune::cuda::ptx
