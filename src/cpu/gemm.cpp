// gemm on OpenBLAS (float) and in plain loops (double).
#include "cpu/gemm.h"

#include "base/error.h"

#ifndef DELTATUNE_PLAIN_MATMUL
#include <cblas.h>
#endif

namespace deltatune::cpu {
namespace {

#ifndef DELTATUNE_PLAIN_MATMUL
blasint blas_size(int64_t size) {
  DELTATUNE_ASSERT(size >= 0 && size <= INT32_MAX);
  return static_cast<blasint>(size);
}

bool limit_threads() {
  openblas_set_num_threads(1);
  return true;
}
#endif

}  // namespace

void gemm(MatmulLayout layout, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
          int64_t ldb, bool accumulate, float* c, int64_t ldc) {
#ifdef DELTATUNE_PLAIN_MATMUL
  plain_gemm(layout, m, n, k, a, lda, b, ldb, accumulate, c, ldc);
#else
  if (m == 0 || n == 0 || k == 0) return plain_gemm(layout, m, n, k, a, lda, b, ldb, accumulate, c, ldc);
  [[maybe_unused]] static const bool limited = limit_threads();
  cblas_sgemm(CblasRowMajor, layout == MatmulLayout::tn ? CblasTrans : CblasNoTrans,
              layout == MatmulLayout::nt ? CblasTrans : CblasNoTrans, blas_size(m), blas_size(n),
              blas_size(k), 1.0f, a, blas_size(lda), b, blas_size(ldb), accumulate ? 1.0f : 0.0f, c,
              blas_size(ldc));
#endif
}

void gemm(MatmulLayout layout, int64_t m, int64_t n, int64_t k, const double* a, int64_t lda, const double* b,
          int64_t ldb, bool accumulate, double* c, int64_t ldc) {
  plain_gemm(layout, m, n, k, a, lda, b, ldb, accumulate, c, ldc);
}

}  // namespace deltatune::cpu
