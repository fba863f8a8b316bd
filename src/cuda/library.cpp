// Where a library may lie.
#include "cuda/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/plugin.h"

namespace deltatune::cuda {
namespace {

namespace fs = std::filesystem;

// Files to try, in this order; one without a folder is searched for by the loader.
std::vector<fs::path> candidates(const char* soname) {
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

}  // namespace

OpenedLibrary::OpenedLibrary(const char* soname) : soname_(soname) {
  for (const fs::path& file : candidates(soname)) {
    handle_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_) break;
    // The loader's own search says it best; a file that is there and cannot be loaded says more.
    if (why_.empty() || file.has_parent_path()) why_ = ::dlerror();
  }
  if (handle_) why_.clear();
}

void* OpenedLibrary::symbol(const char* name) {
  if (!handle_) return nullptr;
  void* const found = ::dlsym(handle_, name);
  if (!found) why_ = std::string(soname_) + " has no " + name;
  return found;
}

std::string OpenedLibrary::path_of(const void* function) {
  Dl_info info{};
  return function && ::dladdr(function, &info) && info.dli_fname ? info.dli_fname : "";
}

}  // namespace deltatune::cuda
