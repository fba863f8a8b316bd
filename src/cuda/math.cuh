// The logistic function, by the accuracy that the storage dtype of its op can show.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/ptx/math.cuh"

namespace deltatune::cuda {

inline constexpr float log2_of_e = 1.44269504088896340736f;

/// e^x to about |x| 2^-24: for results that are rounded to bf16.
__device__ inline float fast_exp(float x) {
  return ptx::exp2(x * log2_of_e);
}

/// 1 / (1 + e^-x) to fp32's accuracy.
__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

/// 1 / (1 + e^-x) of an op on storage T. What is rounded to bf16 afterwards has 2^-9 to lose and gets the
/// version of two special-function instructions (error about |x| 2^-24): byte-bound kernels have no room for
/// a full division.
template <class T>
__device__ inline float sigmoid_for(float x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return sigmoid(x);
  } else {
    return ptx::reciprocal(1.0f + ptx::exp2(x * -log2_of_e));
  }
}

}  // namespace deltatune::cuda
