// Which transport serves the ranks of a run.
#pragma once

#include <memory>

#include "comm/cuda_communicator.h"

namespace deltatune::cuda {

/// The plug-in's make_communicator. All ranks decide alike. Throws Error{usage} where two ranks have one GPU
/// or the transport that was asked for does not serve these ranks, Error{resource} where there is none.
std::unique_ptr<Communicator> make_communicator(Device& device, std::unique_ptr<HostGroup> group,
                                                const CommOptions& options);

}  // namespace deltatune::cuda
