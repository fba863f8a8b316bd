// A plug-in built without NCCL's header: one host only, and the reason.
#include "base/error.h"
#include "cuda/comm/nccl.h"

namespace deltatune::cuda {

const NcclLibrary& nccl_library() {
  static const NcclLibrary none{0, "", "this plug-in was built without nccl.h"};
  return none;
}

std::unique_ptr<Communicator> make_nccl_communicator(Device&, std::unique_ptr<HostGroup>,
                                                     const CommOptions&) {
  throw Error(ErrorKind::resource, "no NCCL: " + nccl_library().why, "communication between GPUs",
              "build where nccl.h is found, or train on GPUs of one host that reach each other");
}

}  // namespace deltatune::cuda
