// Programmatic dependent launch of sm_90: a kernel may be put on the multiprocessors while the one before it
// in the stream still runs (CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization").
// Elsewhere the functions compile to nothing.
#pragma once

namespace deltatune::cuda::ptx {

/// Lets the next kernel of the stream come onto the multiprocessors once every block of this one has called
/// this or ended, if that kernel was launched by launch_early(). No promise about memory goes with it.
__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Waits until the kernel before this one in the stream has ended and its writes are seen.
__device__ inline void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace deltatune::cuda::ptx
