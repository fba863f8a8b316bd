// Opening the CUDA plug-in.
#include "ops/cuda_plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "base/error.h"
#include "base/format.h"

namespace deltatune {
namespace {

struct Opened {
  const CudaPlugin* plugin = nullptr;
  std::string why;
};

std::filesystem::path program_folder() {
  std::array<char, 4096> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  return length > 0 ? std::filesystem::path(path.data()).parent_path() : std::filesystem::path(".");
}

Opened open_plugin() {
  const std::filesystem::path folder = program_folder();
  for (const auto& path : {folder / "libdeltatune_cuda.so", folder / "../lib/libdeltatune_cuda.so",
                           folder / "../libdeltatune_cuda.so"}) {
    if (!std::filesystem::exists(path)) continue;
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) return {nullptr, format("{} cannot be loaded: {}", path.string(), ::dlerror())};
    using Entry = const CudaPlugin* (*)(int);
    const auto entry = reinterpret_cast<Entry>(::dlsym(handle, cuda_plugin_symbol));
    const CudaPlugin* plugin = entry ? entry(cuda_plugin_abi) : nullptr;
    if (!plugin) return {nullptr, format("{} belongs to another version of deltatune", path.string())};
    return {plugin, {}};
  }
  return {nullptr, format("there is no libdeltatune_cuda.so beside the program in {}", folder.string())};
}

}  // namespace

const CudaPlugin* cuda_plugin(std::string& why) {
  static const Opened opened = open_plugin();
  why = opened.why;
  return opened.plugin;
}

std::unique_ptr<Device> make_cuda_device(int index) {
  std::string why;
  const CudaPlugin* plugin = cuda_plugin(why);
  if (plugin && plugin->device_count(why) > index) return plugin->make_device(index);
  throw Error(ErrorKind::resource, "no CUDA device: " + why, format("device: cuda, index {}", index),
              "run on the CPU with device: cpu, or see `deltatune doctor`");
}

}  // namespace deltatune
