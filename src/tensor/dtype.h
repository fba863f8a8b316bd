// Element types and their host-side conversions.
//
// Storage is bf16 or f32 (f64 only in gradient checks); arithmetic is fp32 (f64 for f64), with one rounding
// to nearest-even at each store: the rounding contract of docs/numerics.md.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace deltatune {

enum class DType : uint8_t { f32, bf16, f16, f64, i32, i64, u8 };

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

template <class T>
inline constexpr DType dtype_of = DType::u8;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<f16> = DType::f16;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<int64_t> = DType::i64;

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::u8:
      return 1;
  }
  return 0;
}

/// "f32", "bf16", ...: for messages and reports.
constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::f64:
      return "f64";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::u8:
      return "u8";
  }
  return "?";
}

/// The dtype in which values stored as `storage` are computed and in which statistics, gradients, gates and
/// other never-rounded values are kept: f64 for f64, else f32.
constexpr DType compute_dtype(DType storage) {
  return storage == DType::f64 ? DType::f64 : DType::f32;
}

/// The same for C++ types: compute_t<bf16> is float.
template <class T>
struct Compute {
  using type = float;
};
template <>
struct Compute<double> {
  using type = double;
};
template <class T>
using compute_t = typename Compute<T>::type;

inline float widen(bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
inline float widen(float x) {
  return x;
}
inline double widen(double x) {
  return x;
}
/// IEEE half to single, all 65,536 patterns.
float widen(f16 x);

/// Round to nearest, ties to even; NaN stays NaN (quiet), overflow goes to infinity.
template <class T>
T narrow(compute_t<T> x);
template <>
inline float narrow<float>(float x) {
  return x;
}
template <>
inline double narrow<double>(double x) {
  return x;
}
template <>
inline bf16 narrow<bf16>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>(bits >> 16 | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
template <>
f16 narrow<f16>(float x);

/// Converts `count` elements between any two of f32, bf16, f16, f64. Other dtypes: assertion.
void convert(void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count);

}  // namespace deltatune
