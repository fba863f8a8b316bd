// Loops that vectorise without -ffast-math: reductions over a fixed number of lanes, exp as a branch-free
// polynomial, rows converted between storage and compute type.
//
// The order of every sum depends on the length alone, so results repeat bit for bit on any number of threads
// and with any vector width. No intrinsics: the compiler turns the lane arrays into registers.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tensor/dtype.h"

namespace deltatune::cpu {

inline constexpr int64_t lanes = 16;

/// Sum of term(0) ... term(n - 1): element i goes to lane i mod 16, the lanes are added as a tree.
template <class C, class F>
inline C sum_of(int64_t n, F&& term) {
  C lane[lanes] = {};
  const int64_t whole = n / lanes * lanes;
  for (int64_t i = 0; i < whole; i += lanes) {
    for (int64_t l = 0; l < lanes; ++l) lane[l] += term(i + l);
  }
  for (int64_t i = whole; i < n; ++i) lane[i - whole] += term(i);
  for (int64_t half = lanes / 2; half > 0; half /= 2) {
    for (int64_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}

/// Largest of term(0) ... term(n - 1), n >= 1; NaN is passed over (it shows in the sums that follow).
template <class C, class F>
inline C max_of(int64_t n, F&& term) {
  C lane[lanes];
  for (C& value : lane) value = term(0);
  const int64_t whole = n / lanes * lanes;
  for (int64_t i = 0; i < whole; i += lanes) {
    for (int64_t l = 0; l < lanes; ++l) {
      const C value = term(i + l);
      lane[l] = value > lane[l] ? value : lane[l];
    }
  }
  for (int64_t i = whole; i < n; ++i) {
    const C value = term(i);
    lane[0] = value > lane[0] ? value : lane[0];
  }
  for (int64_t l = 1; l < lanes; ++l) lane[0] = lane[l] > lane[0] ? lane[l] : lane[0];
  return lane[0];
}

/// Dot product of n values, each widened to compute type.
template <class T>
inline compute_t<T> dot(const T* a, const T* b, int64_t n) {
  return sum_of<compute_t<T>>(n, [&](int64_t i) { return widen(a[i]) * widen(b[i]); });
}

/// e^x within 2 ulp (measured 1.0): x = n ln 2 + r with |r| <= ln 2 / 2, Taylor polynomial of degree 7 in r,
/// then the exponent in two steps, so that results near overflow and below 2^-126 are right as well. NaN
/// stays NaN, -inf gives 0, +inf gives inf.
inline float exp_of(float x) {
  const float low = x < -104.0f ? -104.0f : x;
  const float clamped = low > 89.0f ? 89.0f : low;
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low mantissa bits.
  constexpr float magic = 12582912.0f;
  const float shifted = clamped * 1.44269504088896341f + magic;
  const float n = shifted - magic;
  // ln 2 in two parts; the first has 9 significant bits, so n times it is exact.
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9841270e-4f;
  p = p * r + 1.3888889e-3f;
  p = p * r + 8.3333333e-3f;
  p = p * r + 4.1666667e-2f;
  p = p * r + 1.6666667e-1f;
  p = p * r + 0.5f;
  p = p * r * r + r;
  p = p + 1.0f;
  const auto exponent = static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - 0x4b400000u);
  const int32_t half = exponent >> 1;
  const float scale1 = std::bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
  const float scale2 = std::bit_cast<float>(static_cast<uint32_t>(exponent - half + 127) << 23);
  return p * scale1 * scale2;
}
inline double exp_of(double x) {
  return std::exp(x);
}

/// 1 / (1 + e^-x).
template <class C>
inline C sigmoid(C x) {
  return C{1} / (C{1} + exp_of(-x));
}

/// Widens a row of n values.
template <class T>
inline void load_row(compute_t<T>* to, const T* from, int64_t n) {
  if constexpr (std::is_same_v<T, compute_t<T>>) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = widen(from[i]);
  }
}

/// Rounds a row of n values to storage.
template <class T>
inline void store_row(T* to, const compute_t<T>* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = narrow<T>(from[i]);
}

/// A matrix as gemm wants it: compute type, rows `stride` apart.
template <class C>
struct Panel {
  const C* data;
  int64_t stride;
};

/// The rows in compute type: where they lie if they are stored so, else a widened copy in `scratch`
/// (rows x columns).
template <class T>
inline Panel<compute_t<T>> panel_of(const T* from, int64_t rows, int64_t columns, int64_t stride,
                                    compute_t<T>* scratch) {
  if constexpr (std::is_same_v<T, compute_t<T>>) {
    return {from, stride};
  } else {
    for (int64_t row = 0; row < rows; ++row) load_row(scratch + row * columns, from + row * stride, columns);
    return {scratch, columns};
  }
}

}  // namespace deltatune::cpu
