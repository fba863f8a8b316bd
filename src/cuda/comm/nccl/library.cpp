// Where libnccl may lie, and what is wanted of it.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <type_traits>
#include <vector>

#include "base/plugin.h"
#include "cuda/comm/nccl.h"
#include "cuda/comm/nccl/functions.h"

namespace deltatune::cuda {
namespace {

namespace fs = std::filesystem;

constexpr const char* soname = "libnccl.so.2";

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
    const fs::path file = packages / "nccl" / "lib" / soname;
    if (fs::exists(file, failure)) out.push_back(file);
  }
  return out;
}

struct Opened {
  NcclLibrary library;
  NcclFunctions functions;

  Opened() {
    void* handle = nullptr;
    for (const fs::path& file : candidates()) {
      handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle) break;
      if (library.why.empty() || file.has_parent_path()) library.why = ::dlerror();
    }
    if (!handle) return;
    library.why.clear();
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
      if (!function) library.why = std::string(soname) + " has no " + name;
    };
    find(functions.get_unique_id, "ncclGetUniqueId");
    find(functions.init_rank, "ncclCommInitRankConfig");
    find(functions.finalize, "ncclCommFinalize");
    find(functions.destroy, "ncclCommDestroy");
    find(functions.abort, "ncclCommAbort");
    find(functions.async_error, "ncclCommGetAsyncError");
    find(functions.error_string, "ncclGetErrorString");
    find(functions.last_error, "ncclGetLastError");
    find(functions.all_gather, "ncclAllGather");
    find(functions.broadcast, "ncclBroadcast");
    find(functions.send, "ncclSend");
    find(functions.receive, "ncclRecv");
    find(functions.group_start, "ncclGroupStart");
    find(functions.group_end, "ncclGroupEnd");
    decltype(ncclGetVersion)* get_version = nullptr;
    find(get_version, "ncclGetVersion");
    int version = 0;
    if (library.why.empty() && get_version(&version) == ncclSuccess) library.version = version;
    Dl_info info{};
    if (get_version && ::dladdr(reinterpret_cast<void*>(get_version), &info) && info.dli_fname)
      library.path = info.dli_fname;
  }
};

const Opened& opened() {
  static const Opened library;
  return library;
}

}  // namespace

const NcclLibrary& nccl_library() {
  return opened().library;
}

const NcclFunctions* nccl_functions() {
  return opened().library.version > 0 ? &opened().functions : nullptr;
}

}  // namespace deltatune::cuda
