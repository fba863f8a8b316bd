// Opening the device of a run.
#include "cli/device.h"

#include "base/error.h"
#include "cpu/device.h"

namespace deltatune::cli {

std::unique_ptr<Device> open_device(const Config& config) {
  if (config.device == "cuda") {
    throw Error(ErrorKind::resource, "no CUDA device: this build has no CUDA plug-in", "device: cuda",
                "run on the CPU with device: cpu");
  }
  return make_cpu_device();
}

}  // namespace deltatune::cli
