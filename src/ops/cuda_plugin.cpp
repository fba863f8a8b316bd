// Opening the CUDA plug-in.
#include "ops/cuda_plugin.h"

#include "base/error.h"
#include "base/format.h"
#include "base/plugin.h"

namespace deltatune {
namespace {

struct Opened {
  const CudaPlugin* plugin = nullptr;
  std::string why;
};

Opened open_once() {
  Opened out;
  out.plugin = static_cast<const CudaPlugin*>(
      open_plugin("libdeltatune_cuda.so", cuda_plugin_symbol, cuda_plugin_abi, out.why));
  return out;
}

}  // namespace

const CudaPlugin* cuda_plugin(std::string& why) {
  static const Opened opened = open_once();
  why = opened.why;
  return opened.plugin;
}

GpuIdentity gpu_identity(const Device& device) {
  std::string why;
  const CudaPlugin* plugin = device.is_null() || device.target() != Target::cuda ? nullptr : cuda_plugin(why);
  return plugin ? plugin->identity(device) : GpuIdentity{};
}

std::unique_ptr<Device> make_cuda_device(int index) {
  std::string why;
  const CudaPlugin* plugin = cuda_plugin(why);
  if (plugin && plugin->device_count(why) > index) return plugin->make_device(index);
  throw Error(ErrorKind::resource, "no CUDA device: " + why, format("device: cuda, index {}", index),
              "run on the CPU with device: cpu, or see `deltatune doctor`");
}

}  // namespace deltatune
