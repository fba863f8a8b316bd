// Memory operations between GPUs: one function an instruction.
#pragma once

#include <cstdint>

namespace deltatune::cuda::ptx {

/// Writes a word of any GPU of the system after all earlier writes of this thread.
__device__ inline void store_release_system(uint64_t* to, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

/// Reads a word that any GPU of the system may write, before all later reads of this thread.
__device__ inline uint64_t load_acquire_system(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

/// Nanoseconds of a clock that all of a GPU's multiprocessors share.
__device__ inline uint64_t nanoseconds() {
  uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}

}  // namespace deltatune::cuda::ptx
