// mbarriers in shared memory (sm_80 and later): a thread says that its part is done and goes on; another asks
// later whether all have. Elsewhere the functions compile to nothing.
#pragma once

#include <cstdint>

namespace deltatune::cuda::ptx {

/// Makes the 8 bytes at `barrier` a barrier of `arrivals` arrivals per phase; the block needs a barrier after
/// it.
__device__ inline void mbarrier_init(uint32_t barrier, int arrivals) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#endif
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
/// Arrives: what this thread wrote before is seen by who waits for the phase.
__device__ inline void mbarrier_arrive(uint32_t barrier) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "{.reg .b64 state;\n"
      "mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(barrier)
      : "memory");
#endif
}
/// Waits for the end of the phase of this parity: 0 the first, 1 the second, 0 the third, ...
__device__ inline void mbarrier_wait(uint32_t barrier, int parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#elif __CUDA_ARCH__ >= 800
  asm volatile(
      "{.reg .pred done;\n"
      "again: mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

}  // namespace deltatune::cuda::ptx
