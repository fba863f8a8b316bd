// Rounding of optimizer results to bf16, nearest or stochastic, and the random numbers of that: one
// definition for the cpu row and the kernel. Codes of 8 bits: moment_codes.h.
//
// Stochastic rounding goes up with a probability of the distance from the bf16 value below, in units of the
// gap between neighbours, so that the mean is the value itself: updates far below half a gap still move a
// weight as far on average (Gupta et al., "Deep Learning with Limited Numerical Precision", ICML 2015). The
// random bits are a pure function of (seed, group, step, element): launch shapes and ranks do not show.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "base/rng.h"

namespace deltatune {

/// The 16 random bits of one element's parameter, first and second moment.
struct RoundingBits {
  uint32_t param, m, v;
};

/// The random words of elements 8 pack to 8 pack + 7 of a group in a step: eight numbers of 16 bits. Element
/// j rounds its parameter with number j, m with j + 3 and v with j + 5 (modulo 8): a number serves three
/// elements, but the three of one element are independent of each other.
DELTATUNE_HOST_DEVICE inline Philox4 rounding_words(uint64_t seed, uint32_t group, uint32_t step,
                                                    uint64_t pack) {
  return philox(seed, uint64_t{group} << 32 | step, pack);
}
DELTATUNE_HOST_DEVICE inline uint32_t rounding_number(const Philox4& words, int k) {
  return words.x[k % 8 / 2] >> (k % 2 * 16) & 0xffffu;
}
DELTATUNE_HOST_DEVICE inline RoundingBits rounding_bits(const Philox4& words, int j) {
  return {rounding_number(words, j), rounding_number(words, j + 3), rounding_number(words, j + 5)};
}

/// The bits of a bf16 next to the float with bits x, `random` in [0, 2^16). Infinities and NaN keep what they
/// are.
DELTATUNE_HOST_DEVICE inline uint16_t round_stochastic(uint32_t x, uint32_t random) {
  if ((x & 0x7f800000u) == 0x7f800000u) {
    const uint32_t quiet = (x & 0x7fffffu) != 0 ? 0x40u : 0u;
    return static_cast<uint16_t>(x >> 16 | quiet);
  }
  return static_cast<uint16_t>((x + random) >> 16);
}

}  // namespace deltatune
