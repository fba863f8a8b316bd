// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011). A value is a pure function of (seed, stream, index): no state, the same on every machine, thread
// count and rank count. Plain C++, so device code can share it.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace deltatune {

struct Philox4 {
  uint32_t x[4];
};

/// Ten rounds on counter (index, stream) with key `seed`.
DELTATUNE_HOST_DEVICE inline Philox4 philox(uint64_t seed, uint64_t stream, uint64_t index) {
  uint32_t c0 = static_cast<uint32_t>(index);
  uint32_t c1 = static_cast<uint32_t>(index >> 32);
  uint32_t c2 = static_cast<uint32_t>(stream);
  uint32_t c3 = static_cast<uint32_t>(stream >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed);
  uint32_t k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint32_t n0 = product_high(0xCD9E8D57u, c2) ^ c1 ^ k0;
    const uint32_t n2 = product_high(0xD2511F53u, c0) ^ c3 ^ k1;
    c1 = 0xCD9E8D57u * c2;
    c3 = 0xD2511F53u * c0;
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// A sequential view of one Philox stream, for shuffles, initialisers and test inputs.
class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  uint32_t next_u32() {
    if (used_ == 4) {
      block_ = philox(seed_, stream_, index_++);
      used_ = 0;
    }
    return block_.x[used_++];
  }
  uint64_t next_u64() {
    const uint64_t high = next_u32();
    return high << 32 | next_u32();
  }
  /// Uniform in [0, 1) with 53 bits.
  double uniform() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// Uniform integer in [0, n); n >= 1. Unbiased (rejection).
  uint64_t below(uint64_t n) {
    const uint64_t limit = UINT64_MAX - UINT64_MAX % n;
    uint64_t value = next_u64();
    while (value >= limit) value = next_u64();
    return value % n;
  }
  /// Standard normal by Box and Muller.
  double normal() {
    const double u = 1.0 - uniform();
    const double v = uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586476925 * v);
  }

 private:
  uint64_t seed_;
  uint64_t stream_;
  uint64_t index_ = 0;
  Philox4 block_{};
  int used_ = 4;
};

}  // namespace deltatune
