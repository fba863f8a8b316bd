// Which NCCL this process has loaded, if any. It is opened at run time, like cuDNN; nccl.h, which is needed
// to build, is looked for by cmake/cuda.cmake.
#pragma once

#include <memory>
#include <string>

#include "comm/cuda_communicator.h"

namespace deltatune::cuda {

struct NcclLibrary {
  int version = 0;  ///< 22809: 2.28.9; 0: none
  std::string path;
  std::string why;  ///< reason for none
};
/// Opens libnccl once: in the folders of DELTATUNE_CUDA_LIB_PATH, where the loader looks, and beside Python's
/// nvidia packages.
const NcclLibrary& nccl_library();

/// Ranks on one host or many, by NCCL. Throws Error{resource} where there is none, Error{distributed} where
/// the ranks cannot connect.
std::unique_ptr<Communicator> make_nccl_communicator(Device& device, std::unique_ptr<HostGroup> group,
                                                     const CommOptions& options);

}  // namespace deltatune::cuda
