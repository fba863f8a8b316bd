// Descriptors, suggestions and the call.
#include "cuda/matmul_plan.h"

#include "base/error.h"
#include "cuda/device.h"
#include "ops/scratch.h"

namespace deltatune::cuda {
namespace {

constexpr uint32_t allowed_reductions =
    CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

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

uint32_t alignment_of(const std::byte* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | 256;
  return static_cast<uint32_t>(address & (~address + 1));
}

/// Owns what `create`(&handle) makes.
template <class Handle, class F>
OwnedBlas<Handle> made(const std::string& what, F&& create) {
  Handle handle = nullptr;
  check_blas(create(&handle), what);
  return OwnedBlas<Handle>(handle);
}

/// A column-major matrix without gaps.
OwnedBlas<cublasLtMatrixLayout_t> layout_of(DType dtype, int64_t rows, int64_t columns,
                                            const std::string& what) {
  return made<cublasLtMatrixLayout_t>(what, [&](cublasLtMatrixLayout_t* x) {
    return cublasLtMatrixLayoutCreate(x, type_of(dtype), static_cast<uint64_t>(rows),
                                      static_cast<uint64_t>(columns), rows);
  });
}

}  // namespace

void check_blas(cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(
      ErrorKind::internal,
      std::string("cuBLASLt: ") + cublasLtGetStatusName(status) + ", " + cublasLtGetStatusString(status),
      what, "please report it with the command line");
}

MatmulKey key_of(CTensor c, CTensor a, CTensor b, MatmulSpec spec) {
  return {spec.layout,
          a.dtype,
          c.dtype,
          c.dim(0),
          c.dim(1),
          spec.layout == MatmulLayout::tn ? a.dim(0) : a.dim(1),
          {alignment_of(a.data), alignment_of(b.data), alignment_of(c.data)},
          spec.accumulate};
}

std::string to_string(const MatmulKey& key) {
  static constexpr const char* layouts[] = {"nt", "nn", "tn"};
  std::string out = layouts[static_cast<int>(key.layout)];
  for (const DType dtype : {key.in, key.out}) out += std::string(" ") + name_of(dtype);
  for (const int64_t size : {key.m, key.n, key.k}) out += " " + std::to_string(size);
  for (const uint32_t bytes : key.alignment) out += " " + std::to_string(bytes);
  return out + (key.accumulate ? " +" : " =");
}

MatmulPlan::MatmulPlan(cublasLtHandle_t handle, const MatmulKey& key)
    : key_(key), what_("matmul " + to_string(key)) {
  const bool b_transposed = key.layout == MatmulLayout::nt;
  const bool a_transposed = key.layout == MatmulLayout::tn;
  operation_ = made<cublasLtMatmulDesc_t>(what_, [](cublasLtMatmulDesc_t* x) {
    return cublasLtMatmulDescCreate(x, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  });
  // Operand A of cuBLASLt is our b, operand B our a; without a transposition they are what they seem to
  // column-major eyes.
  set_transposition(CUBLASLT_MATMUL_DESC_TRANSA, b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set_transposition(CUBLASLT_MATMUL_DESC_TRANSB, a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  b_ = layout_of(key.in, b_transposed ? key.k : key.n, b_transposed ? key.n : key.k, what_);
  a_ = layout_of(key.in, a_transposed ? key.m : key.k, a_transposed ? key.k : key.m, what_);
  c_ = layout_of(key.out, key.n, key.m, what_);
  const std::vector<MatmulAlgorithm> first = suggestions(handle, 1);
  usable_ = !first.empty();
  if (usable_) algorithm_ = first[0];
}

void MatmulPlan::set_transposition(cublasLtMatmulDescAttributes_t name, cublasOperation_t value) {
  check_blas(cublasLtMatmulDescSetAttribute(operation_.get(), name, &value, sizeof value), what_);
}

std::vector<MatmulAlgorithm> MatmulPlan::suggestions(cublasLtHandle_t handle, int most) const {
  const auto preference = made<cublasLtMatmulPreference_t>(
      what_, [](cublasLtMatmulPreference_t* x) { return cublasLtMatmulPreferenceCreate(x); });
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
    check_blas(cublasLtMatmulPreferenceSetAttribute(preference.get(), name, &value, sizeof value), what_);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{scratch::cuda_library_cap});
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, allowed_reductions);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key_.alignment[1]);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key_.alignment[0]);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key_.alignment[2]);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key_.alignment[2]);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(),
                                     preference.get(), most, results.data(), &found);
  std::vector<MatmulAlgorithm> out;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return out;
  check_blas(status, what_);
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= scratch::cuda_library_cap)
      out.push_back({result.algo, result.workspaceSize});
  }
  return out;
}

bool MatmulPlan::accepts(cublasLtHandle_t handle, MatmulAlgorithm& algorithm) const {
  uint32_t reduction = 0;
  size_t written = 0;
  if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                           sizeof reduction, &written) != CUBLAS_STATUS_SUCCESS ||
      (reduction & ~allowed_reductions) != 0)
    return false;
  cublasLtMatmulHeuristicResult_t result{};
  if (cublasLtMatmulAlgoCheck(handle, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(),
                              &algorithm.algo, &result) != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > scratch::cuda_library_cap)
    return false;
  algorithm.workspace_bytes = result.workspaceSize;
  return true;
}

void MatmulPlan::run(cublasLtHandle_t handle, Stream& stream, const MatmulAlgorithm& algorithm,
                     std::byte* workspace, Tensor c, CTensor a, CTensor b) const {
  const float alpha = 1;
  const float beta = key_.accumulate ? 1.0f : 0.0f;
  const cublasStatus_t status = cublasLtMatmul(
      handle, operation_.get(), &alpha, b.data, b_.get(), a.data, a_.get(), &beta, c.data, c_.get(), c.data,
      c_.get(), &algorithm.algo, workspace, algorithm.workspace_bytes, native(stream));
  if (status != CUBLAS_STATUS_SUCCESS) check_blas(status, what_ + ", stream " + stream.name());
}

}  // namespace deltatune::cuda
