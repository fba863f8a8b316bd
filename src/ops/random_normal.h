// Normally distributed values as a pure function of their place: one definition for the cpu row and the
// kernel.
//
// Box and Muller ("A note on the generation of random normal deviates", 1958) on Philox, with a logarithm and
// a cosine of our own: only +, -, *, / and sqrt of doubles, each rounded by itself, so the bits are the same
// with every C library, compiler and device (no contraction to FMA: see the build files). Both are within a
// few units of the last place of a double, far below what f32 keeps.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"
#include "base/rng.h"

namespace deltatune {

/// Which values: element i of a tensor takes number `first` + i of the stream (seed, stream).
struct NormalStream {
  uint64_t seed = 0;
  uint64_t stream = 0;
  uint64_t first = 0;
};

namespace normal {

/// ln x of a positive normal double: with x = m 2^e and m in [sqrt 1/2, sqrt 2], e ln 2 + 2 artanh((m - 1) /
/// (m + 1)) by its power series.
DELTATUNE_HOST_DEVICE inline double log_positive(double x) {
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  double e = static_cast<double>(static_cast<int>(bits >> 52) - 1023);
  bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
  double m = 0;
  std::memcpy(&m, &bits, sizeof m);
  if (m > 1.4142135623730951) {
    m = m * 0.5;
    e = e + 1;
  }
  const double s = (m - 1) / (m + 1);
  const double z = s * s;  // at most 0.0295: the first term left out is below 1e-17
  double sum = 1.0 / 21;
  sum = sum * z + 1.0 / 19;
  sum = sum * z + 1.0 / 17;
  sum = sum * z + 1.0 / 15;
  sum = sum * z + 1.0 / 13;
  sum = sum * z + 1.0 / 11;
  sum = sum * z + 1.0 / 9;
  sum = sum * z + 1.0 / 7;
  sum = sum * z + 1.0 / 5;
  sum = sum * z + 1.0 / 3;
  sum = sum * z + 1;
  return e * 0.6931471805599453 + 2 * s * sum;
}

/// cos 2 pi v, v in [0, 1): the nearest quarter turn and a power series over an eighth to either side.
DELTATUNE_HOST_DEVICE inline double cos_turn(double v) {
  const int quarter = static_cast<int>(4 * v + 0.5);
  const double a = 6.283185307179586 * (v - 0.25 * quarter);
  const double z = a * a;  // at most 0.617
  double cosine = 1.0 / 20922789888000.0;
  cosine = cosine * z - 1.0 / 87178291200.0;
  cosine = cosine * z + 1.0 / 479001600.0;
  cosine = cosine * z - 1.0 / 3628800.0;
  cosine = cosine * z + 1.0 / 40320.0;
  cosine = cosine * z - 1.0 / 720.0;
  cosine = cosine * z + 1.0 / 24.0;
  cosine = cosine * z - 0.5;
  cosine = cosine * z + 1;
  double sine = 1.0 / 355687428096000.0;
  sine = sine * z - 1.0 / 1307674368000.0;
  sine = sine * z + 1.0 / 6227020800.0;
  sine = sine * z - 1.0 / 39916800.0;
  sine = sine * z + 1.0 / 362880.0;
  sine = sine * z - 1.0 / 5040.0;
  sine = sine * z + 1.0 / 120.0;
  sine = sine * z - 1.0 / 6.0;
  sine = (sine * z + 1) * a;
  const double value = (quarter & 1) == 0 ? cosine : sine;
  // Quarter turns 0..4: cos a, -sin a, -cos a, sin a, cos a.
  return ((quarter + 1) & 2) == 0 ? value : -value;
}

/// A uniform value in [0, 1) with 53 bits.
DELTATUNE_HOST_DEVICE inline double uniform(uint32_t high, uint32_t low) {
  return static_cast<double>((uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
}

}  // namespace normal

/// Standard normal value `index` of a stream.
DELTATUNE_HOST_DEVICE inline double normal_value(uint64_t seed, uint64_t stream, uint64_t index) {
  const Philox4 r = philox(seed, stream, index);
  const double u = normal::uniform(r.x[0], r.x[1]);
  const double v = normal::uniform(r.x[2], r.x[3]);
  return std::sqrt(-2 * normal::log_positive(1 - u)) * normal::cos_turn(v);
}

}  // namespace deltatune
