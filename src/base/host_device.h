// Functions that a kernel may call too: one definition for the cpu row and the device.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define DELTATUNE_HOST_DEVICE __host__ __device__
#else
#define DELTATUNE_HOST_DEVICE
#endif

namespace deltatune {

/// The upper half of a 64-bit product. On a device by its own instruction: of a product in 64 bits
/// the compiler makes three.
DELTATUNE_HOST_DEVICE inline uint32_t product_high(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  return __umulhi(a, b);
#else
  return static_cast<uint32_t>(uint64_t{a} * b >> 32);
#endif
}

}  // namespace deltatune
