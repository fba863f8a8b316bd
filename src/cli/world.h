// The device of a rank and its way to the others.
#pragma once

#include <memory>

#include "cli/load.h"
#include "comm/communicator.h"
#include "comm/launch.h"
#include "tensor/device.h"

namespace deltatune::cli {

struct World {
  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> comm;  ///< ends before the device
};

/// One rank alone; ranks of the CPU, which MPI connects; or GPUs, whose ranks meet at
/// MASTER_ADDR:MASTER_PORT. Throws Error{usage, resource, distributed}.
World open_world(const Loaded& loaded, const Launch& launch);

/// The lines of a configuration that have to be the same on all ranks: all keys but paths, which may differ
/// from machine to machine, and what only one rank looks at.
std::string agreement_of(const Loaded& loaded);

}  // namespace deltatune::cli
