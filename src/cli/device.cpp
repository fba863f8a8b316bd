// Opening the device of a run.
#include "cli/device.h"

#include "base/log.h"
#include "cpu/device.h"
#include "ops/cuda_plugin.h"

namespace deltatune::cli {

std::unique_ptr<Device> open_device(const Config& config) {
  if (config.device == "cuda") return make_cuda_device(0);
  if (config.device == "auto") {
    std::string why;
    const CudaPlugin* plugin = cuda_plugin(why);
    if (plugin && plugin->device_count(why) > 0) return plugin->make_device(0);
    log::debug("device auto: the CPU, because {}", why);
  }
  return make_cpu_device();
}

}  // namespace deltatune::cli
