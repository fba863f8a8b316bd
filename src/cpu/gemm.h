// One matrix product on one thread: the inner piece of matmul, attention and the delta rule.
//
// float goes to OpenBLAS, which is told to use one thread: the callers split the work into blocks whose sizes
// depend on the shapes alone, so the bits do not depend on the number of threads. double, and float in builds
// with DELTATUNE_PLAIN_MATMUL (ThreadSanitizer cannot see into OpenBLAS), are plain loops.
#pragma once

#include <cstdint>

#include "cpu/vector.h"
#include "ops/kernels.h"

namespace deltatune::cpu {

/// c[m,n] = or += the product of `layout` (see MatmulLayout) over k; row-major, rows ld* elements apart.
void gemm(MatmulLayout layout, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
          int64_t ldb, bool accumulate, float* c, int64_t ldc);
void gemm(MatmulLayout layout, int64_t m, int64_t n, int64_t k, const double* a, int64_t lda, const double* b,
          int64_t ldb, bool accumulate, double* c, int64_t ldc);

/// The same in plain loops, with operands and result in storage types: sums in compute type, one rounding.
/// Each result is a sum over k in a fixed order that depends on k alone.
template <class T, class R>
void plain_gemm(MatmulLayout layout, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b,
                int64_t ldb, bool accumulate, R* c, int64_t ldc) {
  using C = compute_t<T>;
  constexpr int64_t columns = 64;
  for (int64_t i = 0; i < m; ++i) {
    R* row = c + i * ldc;
    if (layout == MatmulLayout::nt) {
      for (int64_t j = 0; j < n; ++j) {
        const C sum = dot(a + i * lda, b + j * ldb, k);
        row[j] = narrow<R>(accumulate ? static_cast<C>(widen(row[j])) + sum : sum);
      }
      continue;
    }
    for (int64_t j0 = 0; j0 < n; j0 += columns) {
      const int64_t width = n - j0 < columns ? n - j0 : columns;
      C sum[columns] = {};
      for (int64_t l = 0; l < k; ++l) {
        const C factor = widen(layout == MatmulLayout::nn ? a[i * lda + l] : a[l * lda + i]);
        const T* values = b + l * ldb + j0;
        for (int64_t j = 0; j < width; ++j) sum[j] += factor * widen(values[j]);
      }
      for (int64_t j = 0; j < width; ++j)
        row[j0 + j] = narrow<R>(accumulate ? static_cast<C>(widen(row[j0 + j])) + sum[j] : sum[j]);
    }
  }
}

}  // namespace deltatune::cpu
