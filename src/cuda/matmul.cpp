// matmul by cuBLASLt: fp32 sums (never TF32), one rounding at the store.
//
// cuBLASLt is column-major: a row-major matrix is its transpose there, so c[M,N] = op(a) op(b) is computed as
// c^T[N,M] = op(b)^T op(a)^T with b as the first operand. Split sums over k are allowed only where the
// partial sums are kept in fp32 in the workspace and added by a second kernel: no atomics, no second
// rounding. The workspace is the op's scratch.
#include "cuda/matmul.h"

#include <cublasLt.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>

#include "cuda/check.h"
#include "cuda/cuda_ops.h"
#include "cuda/device.h"
#include "ops/scratch.h"

namespace deltatune::cuda {
namespace {

void check_blas(cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(
      ErrorKind::internal,
      std::string("cuBLASLt: ") + cublasLtGetStatusName(status) + ", " + cublasLtGetStatusString(status),
      what, "please report it with the command line");
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    default:
      throw Error(ErrorKind::internal, std::string("matmul: no CUDA kernel for dtype ") + name_of(dtype));
  }
}

/// Largest power of two, up to 256, that divides the address.
uint32_t alignment_of(const std::byte* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | 256;
  return static_cast<uint32_t>(address & (~address + 1));
}

/// Everything a plan depends on.
struct Key {
  MatmulLayout layout;
  DType in, out;
  int64_t m, n, k;
  std::array<uint32_t, 3> alignment;  ///< of a, b and c
  auto operator<=>(const Key&) const = default;
};

Key key_of(CTensor c, CTensor a, CTensor b, MatmulSpec spec) {
  return {spec.layout,
          a.dtype,
          c.dtype,
          c.dim(0),
          c.dim(1),
          spec.layout == MatmulLayout::tn ? a.dim(0) : a.dim(1),
          {alignment_of(a.data), alignment_of(b.data), alignment_of(c.data)}};
}

std::string describe(const Key& key) {
  static constexpr const char* layouts[] = {"nt", "nn", "tn"};
  return std::string("matmul ") + layouts[static_cast<int>(key.layout)] + " " + name_of(key.in) + " to " +
         name_of(key.out) + ", m " + std::to_string(key.m) + ", n " + std::to_string(key.n) + ", k " +
         std::to_string(key.k);
}

struct Destroy {
  void operator()(cublasLtMatmulDesc_t x) const { cublasLtMatmulDescDestroy(x); }
  void operator()(cublasLtMatrixLayout_t x) const { cublasLtMatrixLayoutDestroy(x); }
  void operator()(cublasLtMatmulPreference_t x) const { cublasLtMatmulPreferenceDestroy(x); }
};
template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;

/// Owns what `create`(&handle) makes.
template <class Handle, class F>
Owned<Handle> made(const std::string& what, F&& create) {
  Handle handle = nullptr;
  check_blas(create(&handle), what);
  return Owned<Handle>(handle);
}

/// Descriptors and algorithm of one key; usable says whether there is one.
class Plan {
 public:
  Plan(cublasLtHandle_t handle, const Key& key) {
    const bool b_transposed = key.layout == MatmulLayout::nt;
    const bool a_transposed = key.layout == MatmulLayout::tn;
    const std::string what = describe(key);
    operation_ = made<cublasLtMatmulDesc_t>(what, [](cublasLtMatmulDesc_t* x) {
      return cublasLtMatmulDescCreate(x, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    });
    // Operand A of cuBLASLt is our b, operand B our a; without a transposition they are what they seem to
    // column-major eyes.
    const cublasOperation_t op_b = b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_a = a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    set_transposition(CUBLASLT_MATMUL_DESC_TRANSA, op_b, what);
    set_transposition(CUBLASLT_MATMUL_DESC_TRANSB, op_a, what);
    b_ = layout_of(key.in, b_transposed ? key.k : key.n, b_transposed ? key.n : key.k, what);
    a_ = layout_of(key.in, a_transposed ? key.m : key.k, a_transposed ? key.k : key.m, what);
    c_ = layout_of(key.out, key.n, key.m, what);
    choose(handle, key, what);
  }

  bool usable() const { return usable_; }

  void run(cublasLtHandle_t handle, Stream& stream, Tensor c, CTensor a, CTensor b, MatmulSpec spec,
           const Key& key) const {
    const float alpha = 1;
    const float beta = spec.accumulate ? 1.0f : 0.0f;
    std::byte* workspace = stream.scratch(scratch::matmul(Target::cuda, a.dtype));
    const cublasStatus_t status =
        cublasLtMatmul(handle, operation_.get(), &alpha, b.data, b_.get(), a.data, a_.get(), &beta, c.data,
                       c_.get(), c.data, c_.get(), &algorithm_, workspace, workspace_bytes_, native(stream));
    if (status != CUBLAS_STATUS_SUCCESS) check_blas(status, describe(key) + ", stream " + stream.name());
  }

 private:
  void set_transposition(cublasLtMatmulDescAttributes_t name, cublasOperation_t value,
                         const std::string& what) {
    check_blas(cublasLtMatmulDescSetAttribute(operation_.get(), name, &value, sizeof value), what);
  }

  /// A column-major matrix without gaps.
  static Owned<cublasLtMatrixLayout_t> layout_of(DType dtype, int64_t rows, int64_t columns,
                                                 const std::string& what) {
    return made<cublasLtMatrixLayout_t>(what, [&](cublasLtMatrixLayout_t* x) {
      return cublasLtMatrixLayoutCreate(x, type_of(dtype), static_cast<uint64_t>(rows),
                                        static_cast<uint64_t>(columns), rows);
    });
  }

  void choose(cublasLtHandle_t handle, const Key& key, const std::string& what) {
    const auto preference = made<cublasLtMatmulPreference_t>(
        what, [](cublasLtMatmulPreference_t* x) { return cublasLtMatmulPreferenceCreate(x); });
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
      check_blas(cublasLtMatmulPreferenceSetAttribute(preference.get(), name, &value, sizeof value), what);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{scratch::cuda_library_cap});
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignment[1]);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignment[0]);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignment[2]);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignment[2]);
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(),
                                       preference.get(), 1, &result, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return;
    check_blas(status, what);
    usable_ = found == 1 && result.state == CUBLAS_STATUS_SUCCESS;
    algorithm_ = result.algo;
    workspace_bytes_ = result.workspaceSize;
  }

  Owned<cublasLtMatmulDesc_t> operation_;
  Owned<cublasLtMatrixLayout_t> a_, b_, c_;
  cublasLtMatmulAlgo_t algorithm_{};
  size_t workspace_bytes_ = 0;
  bool usable_ = false;
};

}  // namespace

struct MatmulPlans::Impl {
  std::mutex mutex;
  cublasLtHandle_t handle = nullptr;
  std::map<Key, Plan> plans;  // a plan never moves and is never removed

  const Plan& plan_of(const Key& key) {
    const std::lock_guard lock(mutex);
    if (!handle) check_blas(cublasLtCreate(&handle), "cublasLtCreate");
    return plans.try_emplace(key, handle, key).first->second;
  }
};

MatmulPlans::MatmulPlans() : impl_(std::make_unique<Impl>()) {}

MatmulPlans::~MatmulPlans() {
  impl_->plans.clear();
  if (impl_->handle) cublasLtDestroy(impl_->handle);
}

bool MatmulPlans::run(Stream& stream, Tensor c, CTensor a, CTensor b, MatmulSpec spec) {
  const Key key = key_of(c, a, b, spec);
  const Plan& plan = impl_->plan_of(key);
  if (!plan.usable()) return false;
  plan.run(impl_->handle, stream, c, a, b, spec, key);
  return true;
}

void matmul(Stream& stream, Tensor c, CTensor a, CTensor b, MatmulSpec spec) {
  if (c.count() == 0) return;
  // An empty sum is no product to cuBLASLt.
  const bool some = a.count() > 0;
  auto& device = static_cast<CudaDevice&>(stream.device());
  if (!some || !device.matmul_plans().run(stream, c, a, b, spec)) matmul_plain(stream, c, a, b, spec);
}

}  // namespace deltatune::cuda
