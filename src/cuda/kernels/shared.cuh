// Dynamic shared memory: the one way kernels reach it, and the opt-in that sizes above 48 KiB need.
#pragma once

#include "cuda/launch.cuh"

namespace deltatune::cuda {

/// The dynamic shared memory of the block, 16-byte aligned.
template <class T>
__device__ inline T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];
  return reinterpret_cast<T*>(dynamic_shared_bytes);
}

/// What a block of any sm_80 or later may have (CUDA C++ Programming Guide, "Compute Capabilities"), and what
/// one of the current device may have. Bytes.
inline constexpr size_t least_shared_limit = 99 * 1024;
inline size_t shared_limit() {
  int device = 0, bytes = 0;
  DELTATUNE_CUDA(cudaGetDevice(&device));
  DELTATUNE_CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return static_cast<size_t>(bytes);
}

/// launch() with `shared` bytes of dynamic shared memory, whatever their number. The 48 KiB that need no
/// opt-in are for dynamic and static shared memory together, so it is asked for from 32 KiB on.
template <class... P, class... A>
void launch_shared(const Stream& stream, const Launched& what, void (*kernel)(P...), dim3 grid, dim3 block,
                   size_t shared, A... arguments) {
  if (shared > 32 * 1024) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
          what.op);
  }
  launch(stream, what, kernel, grid, block, shared, arguments...);
}

}  // namespace deltatune::cuda
