// Packs: N neighbouring elements that are loaded and stored together, 16 bytes at a time where they are
// aligned.
//
// A kernel is a template over N; its launcher takes the widest N that every pointer and row length allows,
// else 1. N changes which thread works on an element, never the arithmetic of an element.
#pragma once

#include <cuda_fp16.h>

#include "cuda/launch.cuh"

namespace deltatune::cuda {

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T v[N];
};

template <int N, class T>
__device__ inline Pack<T, N> load_pack(const T* x) {
  return *reinterpret_cast<const Pack<T, N>*>(x);
}
template <class T, int N>
__device__ inline void store_pack(T* y, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(y) = pack;
}

/// Elements of T in 16 bytes.
template <class T>
inline constexpr int full_pack = 16 / static_cast<int>(sizeof(T));

/// True when all addresses are multiples of 16 (an empty view counts as aligned).
template <class... P>
bool aligned16(const P*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

/// Calls f(std::integral_constant<int, N>) with N = wide where `whole`, else 1.
template <int wide, class F>
void by_pack(bool whole, F&& f) {
  if (whole) return f(std::integral_constant<int, wide>{});
  return f(std::integral_constant<int, 1>{});
}

}  // namespace deltatune::cuda
