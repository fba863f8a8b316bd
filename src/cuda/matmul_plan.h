// One matrix product of cuBLASLt: the key that everything depends on, descriptors, and an algorithm.
//
// cuBLASLt is column-major: a row-major matrix is its transpose there, so c[M,N] = op(a) op(b) is computed as
// c^T[N,M] = op(b)^T op(a)^T with b as the first operand. Sums are fp32 (never TF32), rounded once at the
// store. Split sums over k are allowed only where the partial sums are kept in fp32 in the workspace and
// added by a second kernel: no atomics, no second rounding.
#pragma once

#include <cublasLt.h>

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "ops/kernels.h"

namespace deltatune::cuda {

/// Throws Error{internal} naming `what` for anything but success.
void check_blas(cublasStatus_t status, const std::string& what);

/// Everything an algorithm depends on, but for the machine and the library.
struct MatmulKey {
  MatmulLayout layout;
  DType in, out;
  int64_t m, n, k;
  std::array<uint32_t, 3> alignment;  ///< of a, b and c: the largest power of two, up to 256, in the address
  bool accumulate;
  auto operator<=>(const MatmulKey&) const = default;
};
MatmulKey key_of(CTensor c, CTensor a, CTensor b, MatmulSpec spec);
/// "nt bf16 bf16 8192 5120 6144 256 256 256 =": one word per member ("+" accumulates), unique.
std::string to_string(const MatmulKey& key);

/// An algorithm with the workspace it wants: what is timed, stored and used.
struct MatmulAlgorithm {
  cublasLtMatmulAlgo_t algo{};
  size_t workspace_bytes = 0;
};

struct DestroyBlas {
  void operator()(cublasLtMatmulDesc_t x) const { cublasLtMatmulDescDestroy(x); }
  void operator()(cublasLtMatrixLayout_t x) const { cublasLtMatrixLayoutDestroy(x); }
  void operator()(cublasLtMatmulPreference_t x) const { cublasLtMatmulPreferenceDestroy(x); }
};
template <class Handle>
using OwnedBlas = std::unique_ptr<std::remove_pointer_t<Handle>, DestroyBlas>;

class MatmulPlan {
 public:
  /// With the library's first suggestion.
  MatmulPlan(cublasLtHandle_t handle, const MatmulKey& key);

  /// False: cuBLASLt has nothing for this key.
  bool usable() const { return usable_; }
  const MatmulAlgorithm& algorithm() const { return algorithm_; }
  void use(const MatmulAlgorithm& algorithm) { algorithm_ = algorithm; }

  /// The library's suggestions, best first by its own estimate, all allowed by the rules above.
  std::vector<MatmulAlgorithm> suggestions(cublasLtHandle_t handle, int most) const;
  /// Whether an algorithm from elsewhere (a file) is one for this key and obeys the rules; if so with the
  /// workspace that the library says it wants.
  bool accepts(cublasLtHandle_t handle, MatmulAlgorithm& algorithm) const;

  /// Queues the product. `workspace`: at least algorithm.workspace_bytes. A failure is Error{internal} naming
  /// shape and stream.
  void run(cublasLtHandle_t handle, Stream& stream, const MatmulAlgorithm& algorithm, std::byte* workspace,
           Tensor c, CTensor a, CTensor b) const;

 private:
  void set_transposition(cublasLtMatmulDescAttributes_t name, cublasOperation_t value);

  MatmulKey key_;
  std::string what_;
  OwnedBlas<cublasLtMatmulDesc_t> operation_;
  OwnedBlas<cublasLtMatrixLayout_t> a_, b_, c_;
  MatmulAlgorithm algorithm_;
  bool usable_ = false;
};

}  // namespace deltatune::cuda
