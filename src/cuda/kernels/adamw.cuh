// One step of AdamW for some elements, in registers: the arithmetic of all optimizer kernels. What changes
// from step to step is read on the device. Files that include this are compiled without contraction to FMA,
// so that they give the bits of the cpu row.
#pragma once

#include "cuda/cuda_ops.h"
#include "cuda/math.cuh"
#include "cuda/pack.cuh"
#include "ops/rounding.h"

namespace deltatune::cuda {

/// Moments as 8-bit codes (u8), with a unit a block of 128. param empty: it is the master itself.
void adamw_8bit(Stream& stream, const AdamwTensors& tensors, Tensor param, Tensor master, CTensor scalars_8,
                const AdamwOptions& options);

/// What is the same for all elements.
struct Step {
  float scale, decay, beta1, beta2, rate, inverse_root, eps;  // rate, inverse_root: bias-corrected
  bool usual;                                                 // what UsualRange wants of these
};

__device__ inline bool between(float low, float x, float high) {
  return low <= x && x <= high;
}

__device__ inline Step step_of(const float* scalars, const AdamwOptions& options) {
  const auto learning_rate = static_cast<double>(scalars[StepScalar::learning_rate]);
  const float rate = scalars[StepScalar::learning_rate] / scalars[StepScalar::bias_correction1];
  const float inverse_root = 1.0f / sqrtf(scalars[StepScalar::bias_correction2]);
  const bool usual = between(0.0f, rate, 0x1p10f) && between(1.0f, inverse_root, 0x1p7f) &&
                     between(0x1p-28f, options.eps, 1.0f);
  return {scalars[StepScalar::gradient_scale],
          static_cast<float>(1.0 - learning_rate * static_cast<double>(options.weight_decay)),
          options.beta1,
          options.beta2,
          rate,
          inverse_root,
          options.eps,
          usual};
}

/// m and v: what is kept of the moments, beta1 m and beta2 v; the new ones afterwards.
__device__ inline void update_moments(float& m, float& v, float gradient, const Step& step) {
  const float g = gradient * step.scale;
  m += (1.0f - step.beta1) * g;
  v += (1.0f - step.beta2) * g * g;
}

/// The new value of a parameter whose moments are updated.
__device__ inline float updated(float p, float m, float v, const Step& step) {
  return p * step.decay - step.rate * m / (sqrtf(v) * step.inverse_root + step.eps);
}

/// Roots and quotients as IEEE 754 rounds them, by the hardware's approximations and Newton's steps
/// (Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990): what the
/// compiler makes of sqrtf and `/`, less its branch and call for operands at the ends of the range. Whether
/// some element has such operands is seen once for all. In range are v = 0 and [2^-101, 2^40], rate m = +0
/// (of -0 the quotient would lose its sign) and magnitudes of 2^-98 and more, m up to 2^60, and what
/// Step::usual says: then no intermediate result leaves the normal numbers, and a divisor lies between 2^-28
/// and 2^28. For v = 0 the root is taken of 2^-126: eps, of 2^-28 and more, swallows it.
class UsualRange {
  static constexpr uint32_t lowest_v = 0x0d000000u, lowest_along = 0x0e800000u;  // 2^-101, 2^-98
  uint32_t v_ = ~0u, along_ = ~0u, highest_m_ = 0, highest_v_ = 0;
  float zero_ = 0;

 public:
  /// As updated() where holds() says so at the end.
  __device__ float updated(float p, float m, float v, const Step& step) {
    const float along = step.rate * m;
    // One less, so that zero is above all; of `along` with the sign behind the last bit.
    v_ = min(v_, __float_as_uint(v) - 1);
    along_ = min(along_, __funnelshift_l(__float_as_uint(along), __float_as_uint(along), 1) - 1);
    highest_m_ = max(highest_m_, __float_as_uint(m) & 0x7fffffffu);
    highest_v_ = max(highest_v_, __float_as_uint(v));
    const float divisor = root(fmaxf(v, 0x1p-126f)) * step.inverse_root + step.eps;
    const float value = p * step.decay - quotient(along, divisor);
    zero_ = __fmaf_rn(value, 0.0f, zero_);  // NaN from the first value on that is not finite
    return value;
  }
  __device__ bool holds(const Step& step) const {
    return step.usual && v_ >= lowest_v - 1 && along_ >= 2 * lowest_along - 1 && highest_m_ <= 0x5d800000u &&
           highest_v_ <= 0x53800000u && zero_ == 0;  // 2^60, 2^40
  }
  /// Bits of the largest magnitudes.
  __device__ uint32_t highest_m() const { return highest_m_; }
  __device__ uint32_t highest_v() const { return highest_v_; }

 private:
  static __device__ float root(float x) {
    float inverse;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    const float s = x * inverse;
    return __fmaf_rn(__fmaf_rn(-s, s, x), 0.5f * inverse, s);
  }
  static __device__ float quotient(float x, float y) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(y));
    inverse = __fmaf_rn(inverse, __fmaf_rn(-y, inverse, 1.0f), inverse);
    const float q = x * inverse;
    return __fmaf_rn(inverse, __fmaf_rn(-y, q, x), q);
  }
};

/// A step of N elements: p, m and v become what they are after it; m and v are beta1 m and beta2 v before.
/// True where all of them are known to be finite.
template <int N>
__device__ inline bool update(float (&p)[N], float (&m)[N], float (&v)[N], const Pack<float, N>& gradient,
                              const Step& step, UsualRange& range) {
  float value[N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    update_moments(m[j], v[j], gradient.v[j], step);
    value[j] = range.updated(p[j], m[j], v[j], step);
  }
  const bool usual = range.holds(step);
  if (!usual) {
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] = updated(p[j], m[j], v[j], step);
  }
#pragma unroll
  for (int j = 0; j < N; ++j) p[j] = value[j];
  return usual;
}

/// finite: x is.
template <class T, bool finite>
__device__ inline T rounded(float x, bool stochastic, uint32_t random) {
  if constexpr (std::is_same_v<T, device_bf16>) {
    const uint32_t bits = __float_as_uint(x);
    if (stochastic)
      return __ushort_as_bfloat16(finite ? static_cast<uint16_t>((bits + random) >> 16)
                                         : round_stochastic(bits, random));
  }
  return store<T>(x);
}

/// The N elements of a pack as floats.
template <class T, int N>
__device__ inline void widen(float (&out)[N], const Pack<T, N>& pack) {
#pragma unroll
  for (int j = 0; j < N; ++j) out[j] = load(pack.v[j]);
}

}  // namespace deltatune::cuda
