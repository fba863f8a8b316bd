// bf16 two to a 32-bit word, widened by one instruction an element.
//
// For kernels whose time is instructions: element by element the compiler takes each 16-bit value out of its
// word before it shifts it.
#pragma once

#include <cstring>

#include "cuda/pack.cuh"

namespace deltatune::cuda {

/// The elements of a pack in fp32.
template <class T, int N>
__device__ inline void widen(float (&x)[N], const Pack<T, N>& pack) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    uint32_t words[N / 2];
    memcpy(words, &pack, sizeof(words));
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = load(pack.v[i]);
  }
}
/// The pack of rounded elements.
template <class T, int N>
__device__ inline Pack<T, N> narrow(const float (&x)[N]) {
  Pack<T, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) out.v[i] = store<T>(x[i]);
  return out;
}

}  // namespace deltatune::cuda
