// Half precision and bulk conversion.
#include "tensor/dtype.h"

#include "base/error.h"

namespace deltatune {

float widen(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  uint32_t exponent = x.bits >> 10 & 31u;
  uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0) {
    if (mantissa == 0) return std::bit_cast<float>(sign);
    // Subnormal: mantissa * 2^-24 is exact in single precision.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

template <>
f16 narrow<f16>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x47800000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // 65536 and above
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 aligns the value so that the addition itself rounds to a multiple of 2^-24.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u;
  return {static_cast<uint16_t>(sign | rounded >> 13)};
}

namespace {

template <class To, class From>
void convert_as(void* to, const void* from, int64_t count) {
  auto* out = static_cast<To*>(to);
  const auto* in = static_cast<const From*>(from);
  for (int64_t i = 0; i < count; ++i) out[i] = narrow<To>(static_cast<compute_t<To>>(widen(in[i])));
}

template <class To>
void convert_to(void* to, const void* from, DType from_dtype, int64_t count) {
  switch (from_dtype) {
    case DType::f32:
      return convert_as<To, float>(to, from, count);
    case DType::bf16:
      return convert_as<To, bf16>(to, from, count);
    case DType::f16:
      return convert_as<To, f16>(to, from, count);
    case DType::f64:
      return convert_as<To, double>(to, from, count);
    default:
      DELTATUNE_ASSERT(false && "convert: floating dtypes only");
  }
}

}  // namespace

void convert(void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count) {
  if (to_dtype == from_dtype) {
    std::memcpy(to, from, static_cast<size_t>(count) * size_of(to_dtype));
    return;
  }
  switch (to_dtype) {
    case DType::f32:
      return convert_to<float>(to, from, from_dtype, count);
    case DType::bf16:
      return convert_to<bf16>(to, from, from_dtype, count);
    case DType::f16:
      return convert_to<f16>(to, from, from_dtype, count);
    case DType::f64:
      return convert_to<double>(to, from, from_dtype, count);
    default:
      DELTATUNE_ASSERT(false && "convert: floating dtypes only");
  }
}

}  // namespace deltatune
