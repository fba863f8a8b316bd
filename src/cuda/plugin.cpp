// The plug-in's only exported function.
#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdio>

#include "cuda/activity.h"
#include "cuda/check.h"
#include "cuda/comm/nccl.h"
#include "cuda/comm/transport.h"
#include "cuda/cudnn/library.h"
#include "cuda/device.h"
#include "cuda/kernel_functions.h"
#include "ops/cuda_plugin.h"

namespace deltatune::cuda {

namespace {

int device_count(std::string& why) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    why = std::string(cudaGetErrorName(status)) + ", " + cudaGetErrorString(status);
    return 0;
  }
  if (count == 0) why = "the driver shows no GPU";
  return count;
}

std::unique_ptr<Device> make_device(int index) {
  return std::make_unique<CudaDevice>(index);
}

std::string versions() {
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&cublasLtCreate), &info);
  const CudnnLibrary& cudnn = cudnn_library();
  const CuptiLibrary& cupti = cupti_library();
  const NcclLibrary& nccl = nccl_library();
  return "CUDA driver " + std::to_string(driver) + ", runtime " + std::to_string(runtime) + "\ncuBLASLt " +
         std::to_string(cublasLtGetVersion()) + " " + (info.dli_fname ? info.dli_fname : "?") + "\ncuDNN " +
         (cudnn.version ? std::to_string(cudnn.version) + " " + cudnn.path : "none: " + cudnn.why) +
         "\nCUPTI " +
         (cupti.version ? std::to_string(cupti.version) + " " + cupti.path : "none: " + cupti.why) +
         "\nNCCL " + (nccl.version ? std::to_string(nccl.version) + " " + nccl.path : "none: " + nccl.why);
}

GpuIdentity identity(const Device& device) {
  const cudaDeviceProp& properties = static_cast<const CudaDevice&>(device).properties();
  char bus[32] = "";
  std::snprintf(bus, sizeof bus, "%04x:%02x:%02x.0", static_cast<unsigned>(properties.pciDomainID),
                static_cast<unsigned>(properties.pciBusID), static_cast<unsigned>(properties.pciDeviceID));
  return {properties.name, bus};
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const KernelFunction& function : kernel_functions()) names.emplace_back(function.name);
  return names;
}

}  // namespace
}  // namespace deltatune::cuda

extern "C" __attribute__((visibility("default"))) const deltatune::CudaPlugin* deltatune_cuda_plugin(
    int abi) {
  static const deltatune::CudaPlugin plugin{
      deltatune::cuda::device_count, deltatune::cuda::make_device,       deltatune::cuda::versions,
      deltatune::cuda::kernel_names, deltatune::cuda::activity_tracer(), deltatune::cuda::make_communicator,
      deltatune::cuda::identity};
  return abi == deltatune::cuda_plugin_abi ? &plugin : nullptr;
}
