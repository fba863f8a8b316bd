// Launching kernels: grid sizing and error checks in one place, and conversions between storage and fp32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/check.h"
#include "cuda/device.h"
#include "tensor/tensor.h"

namespace deltatune::cuda {

/// Blocks that cover n items with `per_block` each; at least 1.
inline unsigned blocks_for(int64_t n, int64_t per_block) {
  const int64_t blocks = (n + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks);
}

/// What a launch is for: the op and, for its error message, the tensor that says the size.
struct Launched {
  const char* op;
  Shape shape;
  Launched(const char* name, Shape size = {})
      : op(name), shape(size) {}  // NOLINT(google-explicit-constructor)
  Launched(const char* name, const CTensor& x) : op(name), shape(x.shape) {}
};

/// Throws what check() throws; the message names op, shape and stream.
inline void check_launch(cudaError_t status, const Stream& stream, const Launched& what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or the next launch would report it
  check(status, (std::string(what.op) + " " + to_string(what.shape) + ", stream " + stream.name()).c_str());
}

/// kernel<<<grid, block, shared, stream>>>(arguments...). A launch error names op, shape and stream.
template <class... P, class... A>
void launch(const Stream& stream, const Launched& what, void (*kernel)(P...), dim3 grid, dim3 block,
            size_t shared, A... arguments) {
  kernel<<<grid, block, shared, native(stream)>>>(static_cast<P>(arguments)...);
  check_launch(cudaGetLastError(), stream, what);
}

/// launch() of a kernel that calls ptx::wait_for_kernel_before() before it touches memory. It may come onto
/// the multiprocessors while the kernel before it still runs, which spares the time between the two.
template <auto kernel, class... A>
void launch_early(const Stream& stream, const Launched& what, dim3 grid, dim3 block, A... arguments) {
  static const int code_for = [&] {
    cudaFuncAttributes code{};
    check_launch(cudaFuncGetAttributes(&code, kernel), stream, what);
    return code.ptxVersion;
  }();
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = native(stream);
  config.attrs = &early;
  config.numAttrs = code_for >= 90 ? 1 : 0;  // code for an older one does not wait
  check_launch(cudaLaunchKernelEx(&config, kernel, arguments...), stream, what);
}

/// The device-side twin of a storage dtype.
using device_bf16 = __nv_bfloat16;

__device__ inline float load(float x) {
  return x;
}
__device__ inline float load(device_bf16 x) {
  return __bfloat162float(x);
}
template <class T>
__device__ T store(float x);
template <>
__device__ inline float store<float>(float x) {
  return x;
}
template <>
__device__ inline device_bf16 store<device_bf16>(float x) {
  return __float2bfloat16_rn(x);
}

/// Calls f with a value of the device type behind a storage dtype.
template <class F>
void by_storage(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(device_bf16{});
    default:
      throw Error(ErrorKind::internal, std::string("no CUDA kernel for dtype ") + name_of(dtype));
  }
}

template <class T>
T* pointer(Tensor x) {
  return reinterpret_cast<T*>(x.data);
}
template <class T>
const T* pointer(CTensor x) {
  return reinterpret_cast<const T*>(x.data);
}

}  // namespace deltatune::cuda
