// Opening the device of a run.
#include "cli/device.h"

#include "base/log.h"
#include "cpu/device.h"
#include "ops/cuda_plugin.h"

namespace deltatune::cli {

int gpu_count() {
  std::string why;
  const CudaPlugin* plugin = cuda_plugin(why);
  return plugin ? plugin->device_count(why) : 0;
}

bool wants_gpu(const Config& config) {
  if (config.device != "auto") return config.device == "cuda";
  std::string why;
  const CudaPlugin* plugin = cuda_plugin(why);
  if (plugin && plugin->device_count(why) > 0) return true;
  log::debug("device auto: the CPU, because {}", why);
  return false;
}

std::unique_ptr<Device> open_device(const Config& config, int local_rank) {
  if (!wants_gpu(config)) return make_cpu_device();
  return make_cuda_device(gpu_count() == 1 ? 0 : local_rank);
}

}  // namespace deltatune::cli
