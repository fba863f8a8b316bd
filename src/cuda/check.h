// CUDA errors as Error: which call, which op.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/error.h"

namespace deltatune::cuda {

/// Throws Error{resource} for out of memory, Error{internal} otherwise.
inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  const bool memory = status == cudaErrorMemoryAllocation;
  throw Error(
      memory ? ErrorKind::resource : ErrorKind::internal,
      std::string("CUDA: ") + cudaGetErrorName(status) + ", " + cudaGetErrorString(status), what,
      memory ? "lower max_tokens, or see `deltatune plan`" : "please report it with the command line");
}

}  // namespace deltatune::cuda

/// Checks the status of one CUDA runtime call.
#define DELTATUNE_CUDA(call) ::deltatune::cuda::check((call), #call)
