// Adam's moments in 8 bits: blocks of 128 elements, each with one power of two in fp32 for m and one for v
// (block-wise scaling as Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022; the
// codes are ours). One definition for the cpu row and the kernel.
//
// A code is the upper end of a float, made small enough that its exponent fits:
//   m: sign, 4 bits of exponent, 3 of mantissa (the bits of e4m3, Micikevicius et al., "FP8 Formats for Deep
//      Learning", 2022, without NaN);   v: 5 bits of exponent, 3 of mantissa, no sign.
//   value = float(code << 20) unit,  code = bits(value / unit) >> 20 after rounding; unit = 2^k such that the
//   block's largest magnitude lies in the highest binade, 15 or 31. Exponent 0 is gradual underflow, as in
//   the float itself. m reaches 2^17 below its largest element, v 2^34: the same for m and the root of v.
// Why a power of two: whatever the unit, the grid is that of floats with 3 bits of mantissa. A value that
// does not change is not rounded again when its block's unit moves.
// Why stochastic (rounding.h): a step changes v by (1 - beta2) of the distance to g^2, at beta2 = 0.999 one
// hundredth of the gap between codes. Rounded to nearest it would freeze; rounded up with the probability of
// the distance in gaps, of which 16 random bits resolve 1/65536, its mean is exact. The variance of a step
// is gap times change, so that of the sum over a memory of 1 / (1 - beta2) steps, about gap v / 2, does not
// grow with beta2: some 20 % of v, 10 % of its root.
// A v above zero never gets code 0: m / sqrt(v) stays bounded where m is rounded up from below its range.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace deltatune {

/// Elements that share a unit. Block b of a group has its elements [128 b, 128 b + 128).
inline constexpr int64_t moment_block = 128;
DELTATUNE_HOST_DEVICE constexpr int64_t moment_blocks(int64_t elements) {
  return (elements + moment_block - 1) / moment_block;
}

/// The highest exponent of the codes of m and of v.
inline constexpr uint32_t moment1_top = 15;
inline constexpr uint32_t moment2_top = 31;

/// Exponent of a block: that of its largest magnitude (given as bits of a float), rounded up to the grid.
/// Beyond 2^(top - 1) - m of 2^14, v of 2^30 - codes saturate: that run has diverged.
DELTATUNE_HOST_DEVICE inline uint32_t block_exponent(uint32_t largest, uint32_t top) {
  const uint32_t exponent = (largest + 0xfffffu) >> 23;
  return exponent < 126u + top ? exponent : 126u + top;
}
/// No code of such a block saturates: its largest magnitude lies far enough below the next binade that it
/// may be rounded up.
DELTATUNE_HOST_DEVICE constexpr bool none_saturates(uint32_t exponent, uint32_t top) {
  return exponent < 126u + top;
}
/// Bits of the float unit = 2^(exponent - top), and of its inverse.
DELTATUNE_HOST_DEVICE inline uint32_t unit_bits(uint32_t exponent, uint32_t top) {
  return (127u + exponent - top) << 23;
}
DELTATUNE_HOST_DEVICE inline uint32_t inverse_unit_bits(uint32_t exponent, uint32_t top) {
  return (127u + top - exponent) << 23;
}

/// The code of a float's bits without sign; `random` in [0, 2^16). The last of the 20 bits that are rounded
/// off are random around their middle.
DELTATUNE_HOST_DEVICE inline uint32_t rounded_code(uint32_t magnitude, uint32_t random, uint32_t largest) {
  const uint32_t code = (magnitude + (random << 4 | 8u)) >> 20;
  return code < largest ? code : largest;
}
/// m: `bits` of m times the inverse unit.
DELTATUNE_HOST_DEVICE inline uint8_t moment1_code(uint32_t bits, uint32_t random) {
  return static_cast<uint8_t>(rounded_code(bits & 0x7fffffffu, random, 0x7fu) | (bits >> 24 & 0x80u));
}
/// v: `bits` of v times the inverse unit, v >= 0.
DELTATUNE_HOST_DEVICE inline uint8_t moment2_code(uint32_t bits, uint32_t random) {
  const uint32_t code = rounded_code(bits & 0x7fffffffu, random, 0xffu);
  return static_cast<uint8_t>(code == 0 && bits != 0 ? 1u : code);
}
/// The same of blocks in which none saturates, with fewer instructions: words whose top byte is the code.
/// noise: random << 4 | 8.
DELTATUNE_HOST_DEVICE inline uint32_t moment1_word_in_range(uint32_t bits, uint32_t noise) {
  const uint32_t x = bits + noise;  // the sign stays: a magnitude has room above it
  return (x << 4) + (x & 0x80000000u);
}
DELTATUNE_HOST_DEVICE inline uint32_t moment2_word_in_range(uint32_t bits, uint32_t noise) {
  uint32_t x = bits + noise;
  if (bits != 0) x = x < 1u << 20 ? 1u << 20 : x;
  return x << 4;
}
/// Bits of the float that, times the unit, is the value of a code.
DELTATUNE_HOST_DEVICE inline uint32_t moment1_bits(uint32_t code) {
  return (code & 0x7fu) << 20 | (code & 0x80u) << 24;
}
DELTATUNE_HOST_DEVICE inline uint32_t moment2_bits(uint32_t code) {
  return code << 20;
}
/// moment1_bits() of a word whose top byte is the code and whose others are 0.
DELTATUNE_HOST_DEVICE inline uint32_t moment1_bits_of_word(uint32_t word) {
  return static_cast<uint32_t>(static_cast<int32_t>(word) >> 4) & 0x87f00000u;
}

}  // namespace deltatune
