// Eight numbers that are worked on together: explicit SIMD through the vector extension that GCC and clang
// share, so that the order of every sum is written in the source and does not depend on the compiler's mood.
//
// Loads and stores need only the alignment of the element. Vectors are never passed or returned by value
// (that would depend on the instruction set the caller is compiled for).
#pragma once

#include <cstdint>

namespace deltatune::cpu {

template <class C>
struct Lanes;
template <>
struct Lanes<float> {
  typedef float type __attribute__((vector_size(32), may_alias, aligned(4)));
};
template <>
struct Lanes<double> {
  typedef double type __attribute__((vector_size(64), may_alias, aligned(8)));
};
template <class C>
using lanes_t = typename Lanes<C>::type;
inline constexpr int64_t lane_count = 8;

/// out[i] += sum over the lanes of rows[i], i = 0..7, as ((0+1)+(2+3)) + ((4+5)+(6+7)).
template <class C>
inline void add_lane_sums(C* out, const lanes_t<C> (&rows)[8]) {
  using V = lanes_t<C>;
  V pairs[4];
  for (int i = 0; i < 4; ++i) {
    const V& a = rows[2 * i];
    const V& b = rows[2 * i + 1];
    pairs[i] = __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14) +
               __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
  }
  V quads[2];
  for (int i = 0; i < 2; ++i) {
    const V& a = pairs[2 * i];
    const V& b = pairs[2 * i + 1];
    quads[i] = __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14) +
               __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
  }
  *reinterpret_cast<V*>(out) += __builtin_shufflevector(quads[0], quads[1], 0, 1, 2, 3, 8, 9, 10, 11) +
                                __builtin_shufflevector(quads[0], quads[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

/// Sum of the lanes, ((0+1)+(2+3)) + ((4+5)+(6+7)).
template <class C>
inline C lane_sum(const lanes_t<C>& x) {
  return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

}  // namespace deltatune::cpu
