// The communicator between GPUs, which the CUDA plug-in makes (ops/cuda_plugin.h: make_communicator).
//
// The ranks have met on the host; the plug-in takes that group over and uses it for what the devices need to
// know of each other, for exchange() and collect(), and to notice a rank that is gone.
#pragma once

#include <chrono>

#include "comm/communicator.h"
#include "comm/host_group.h"

namespace deltatune {

/// How the devices' memory travels.
enum class CommTransport {
  automatic,  ///< peer where all ranks are on one host whose GPUs reach each other, else nccl
  peer,       ///< copies between the GPUs of one host
  nccl,       ///< NCCL, on one host or many
};

struct CommOptions {
  std::chrono::milliseconds timeout{std::chrono::seconds(1800)};  ///< of every collective
  CommTransport transport = CommTransport::automatic;
};

}  // namespace deltatune
