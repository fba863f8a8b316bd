// Tensor maps come from the driver, whose library the plug-in is not linked with: the runtime finds the
// function.
#include "cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/check.h"

namespace deltatune::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  DELTATUNE_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                  cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || !function) {
    throw Error(ErrorKind::internal, "the driver has no cuTensorMapEncodeTiled", "tensor maps",
                "update the driver to one of CUDA 12 or later");
  }
  return reinterpret_cast<Encode>(function);
}

CUtensorMap encode_map(const CTensor& x, cuuint32_t dimensions, const cuuint64_t* sizes,
                       const cuuint64_t* strides, const cuuint32_t* box, CUtensorMapSwizzle swizzle) {
  static const Encode encode = find_encode();
  const cuuint32_t steps[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, dimensions, const_cast<std::byte*>(x.data), sizes,
             strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Error(ErrorKind::internal,
                "CUDA: tensor map refused with status " + std::to_string(static_cast<int>(status)),
                "tensor of shape " + to_string(x.shape), "please report it with the command line");
  }
  return map;
}

}  // namespace

CUtensorMap head_tiles(const CTensor& x_THD) {
  const auto size = [&](int i) { return static_cast<cuuint64_t>(x_THD.dim(i)); };
  const cuuint64_t sizes[] = {size(2), size(1), size(0)};
  const cuuint64_t strides[] = {2 * size(2), 2 * size(2) * size(1)};  // bytes
  const cuuint32_t box[] = {64, 1, 64};
  return encode_map(x_THD, 3, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap row_tiles(const CTensor& x_TN, int columns, int rows) {
  const auto tokens = static_cast<cuuint64_t>(x_TN.dim(0)),
             width = static_cast<cuuint64_t>(x_TN.count()) / tokens;
  const cuuint64_t sizes[] = {width, tokens}, strides[] = {2 * width};  // bytes
  const cuuint32_t box[] = {static_cast<cuuint32_t>(columns), static_cast<cuuint32_t>(rows)};
  return encode_map(x_TN, 2, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_NONE);
}

}  // namespace deltatune::cuda
