// Where libcupti may lie, and what is wanted of it.
#include "cuda/cupti/library.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include "base/plugin.h"
#include "cuda/activity.h"

namespace deltatune::cuda {
namespace {

namespace fs = std::filesystem;

constexpr const char* soname = "libcupti.so.13";

// Files to try, in this order; one without a folder is searched for by the loader.
std::vector<fs::path> candidates() {
  std::vector<fs::path> out;
  const char* named = std::getenv("DELTATUNE_CUDA_LIB_PATH");
  for (std::string rest = named ? named : ""; !rest.empty();) {
    const size_t end = std::min(rest.find(':'), rest.size());
    if (end > 0) out.push_back(fs::path(rest.substr(0, end)) / soname);
    rest.erase(0, end + 1);
  }
  out.emplace_back(soname);
  for (const fs::path& packages : python_package_folders("nvidia")) {
    std::error_code failure;
    for (const auto& entry : fs::directory_iterator(packages, failure)) {
      const fs::path file = entry.path() / "lib" / soname;
      if (fs::exists(file, failure)) out.push_back(file);
    }
  }
  return out;
}

struct Opened {
  CuptiLibrary library;
  CuptiFunctions functions;

  Opened() {
    // CUPTI 13.2 calls itself without end where there is no driver, even for its version.
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
      library.why = "there is no CUDA driver";
      return;
    }
    void* handle = nullptr;
    for (const fs::path& file : candidates()) {
      handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle) break;
      // The loader's own search says it best; a file that is there and cannot be loaded says more.
      if (library.why.empty() || file.has_parent_path()) library.why = ::dlerror();
    }
    if (!handle) return;
    library.why.clear();
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
      if (!function) library.why = std::string(soname) + " has no " + name;
    };
    find(functions.register_callbacks, "cuptiActivityRegisterCallbacks");
    find(functions.enable, "cuptiActivityEnable");
    find(functions.disable, "cuptiActivityDisable");
    find(functions.flush_all, "cuptiActivityFlushAll");
    find(functions.next_record, "cuptiActivityGetNextRecord");
    find(functions.dropped_records, "cuptiActivityGetNumDroppedRecords");
    find(functions.timestamp, "cuptiGetTimestamp");
    find(functions.result_string, "cuptiGetResultString");
    CUptiResult (*get_version)(uint32_t*) = nullptr;
    find(get_version, "cuptiGetVersion");
    if (!library.why.empty()) return;
    uint32_t version = 0;
    get_version(&version);
    library.version = static_cast<int>(version);
    Dl_info info{};
    if (::dladdr(reinterpret_cast<void*>(get_version), &info) && info.dli_fname)
      library.path = info.dli_fname;
  }
};

const Opened& opened() {
  static const Opened library;
  return library;
}

}  // namespace

const CuptiLibrary& cupti_library() {
  return opened().library;
}

const CuptiFunctions* cupti_functions() {
  return opened().library.version > 0 ? &opened().functions : nullptr;
}

}  // namespace deltatune::cuda
