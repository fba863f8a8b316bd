// Bulk copies of sm_90 (the tensor memory accelerator), which tell mbarriers of their end. Elsewhere the
// functions compile to nothing.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"

namespace deltatune::cuda::ptx {

/// Arrives, and adds `bytes` that copies of this phase will bring.
__device__ inline void mbarrier_expect(uint32_t barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}

/// Copies the box at (x, y, z) of the tensor to shared memory at `to`; the bytes count at `barrier`.
__device__ inline void copy_box(uint32_t to, const void* tensor_map, int x, int y, int z, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(tensor_map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
#endif
}

/// Copies the box at (x, y) of a tensor of two dimensions, else the same.
__device__ inline void copy_box(uint32_t to, const void* tensor_map, int x, int y, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];" ::"r"(to),
      "l"(tensor_map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
#endif
}

/// Copies `bytes` (a multiple of 16) of neighbouring memory; both ends 16-byte aligned.
__device__ inline void copy_bytes(uint32_t to, const void* from, int bytes, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}
/// Orders this thread's loads and stores of shared memory before bulk copies that are queued behind the
/// block's (or, for memory of one warp, the warp's) next barrier. For loads it is needed behind __syncwarp():
/// that lets a warp go on while its loads are still under way, and the copy engine does not queue behind
/// them.
__device__ inline void fence_bulk_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// The compiler reads memory anew behind this instead of keeping what it has read in registers.
__device__ inline void read_anew() {
  asm volatile("" ::: "memory");
}

}  // namespace deltatune::cuda::ptx
