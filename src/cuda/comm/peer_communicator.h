// The communicator of ranks whose GPUs can read each other's memory.
#pragma once

#include <memory>

#include "comm/cuda_communicator.h"

namespace deltatune::cuda {

/// Meets the others. Throws Error{resource} where memory cannot be mapped.
std::unique_ptr<Communicator> make_peer_communicator(Device& device, std::unique_ptr<HostGroup> group,
                                                     const CommOptions& options);

}  // namespace deltatune::cuda
