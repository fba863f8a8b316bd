// The seam to the CUDA plug-in (libdeltatune_cuda.so): one C function that returns a table of functions.
//
// The plug-in links none of our libraries; it resolves against the program that opens it, so globals (log
// sink, counters) exist once and exceptions are caught by type. No CUDA header is needed on this side.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tensor/activity.h"
#include "tensor/device.h"

namespace deltatune {

// Of src/comm, which this folder does not see: comm/cuda_communicator.h.
class Communicator;
class HostGroup;
struct CommOptions;

/// Which GPU a device is, for whoever asks the driver about it by other ways than CUDA's numbers, which
/// CUDA_VISIBLE_DEVICES reorders.
struct GpuIdentity {
  std::string product;     ///< "NVIDIA H200"; empty: not known
  std::string pci_bus_id;  ///< "0000:1b:00.0", as cudaDeviceGetPCIBusId writes it
};

struct CudaPlugin {
  /// Number of visible devices; 0 with a reason in `why`.
  int (*device_count)(std::string& why);
  /// Opens device `index`. Throws Error{resource}.
  std::unique_ptr<Device> (*make_device)(int index);
  /// One line per library really loaded: name, version, path.
  std::string (*versions)();
  /// Names of the kernels it has a function for: those of ops/kernel_list.h.
  std::vector<std::string> (*kernel_names)();
  /// Device activity of the whole process, by CUPTI. start() says why where the plug-in was built without its
  /// headers or the library is not there.
  ActivityTracer activity;
  /// The communicator of this process, whose device is one of the plug-in's: comm/cuda_communicator.h.
  std::unique_ptr<Communicator> (*make_communicator)(Device&, std::unique_ptr<HostGroup>, const CommOptions&);
  /// Of a device of the plug-in's.
  GpuIdentity (*identity)(const Device&);
};

inline constexpr int cuda_plugin_abi = 6;
/// The plug-in's only exported symbol: `const CudaPlugin* deltatune_cuda_plugin(int abi)`; nullptr: other
/// ABI.
inline constexpr const char* cuda_plugin_symbol = "deltatune_cuda_plugin";

/// Opens the plug-in beside the running program (or in its ../lib) once. nullptr when it is not there or
/// cannot be loaded; `why` then says which.
const CudaPlugin* cuda_plugin(std::string& why);

/// Of a device that is a GPU; empty for others.
GpuIdentity gpu_identity(const Device& device);

/// A CUDA device, or Error{resource} that says what is missing.
std::unique_ptr<Device> make_cuda_device(int index);

}  // namespace deltatune
