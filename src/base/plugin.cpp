// dlopen, and where libraries may lie.
#include "base/plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/format.h"

namespace deltatune {
namespace fs = std::filesystem;
namespace {

fs::path program_folder() {
  std::array<char, 4096> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  return length > 0 ? fs::path(path.data()).parent_path() : fs::path(".");
}

std::vector<fs::path> pythons() {
  std::vector<fs::path> out;
  if (const char* named = std::getenv("DELTATUNE_PYTHON")) out.emplace_back(named);
  const char* path = std::getenv("PATH");
  std::string rest = path ? path : "";
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    if (end > 0) out.push_back(fs::path(rest.substr(0, end)) / "python3");
    rest.erase(0, end + 1);
  }
  return out;
}

}  // namespace

const void* open_plugin(const std::string& library, const char* symbol, int abi, std::string& why) {
  const fs::path folder = program_folder();
  for (const fs::path& path :
       {folder / library, folder / "../lib" / library, folder / ".." / library, folder / "../.." / library}) {
    std::error_code ignored;
    if (!fs::exists(path, ignored)) continue;
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      why = format("{} cannot be loaded: {}", path.string(), ::dlerror());
      return nullptr;
    }
    using Entry = const void* (*)(int);
    const auto entry = reinterpret_cast<Entry>(::dlsym(handle, symbol));
    const void* table = entry ? entry(abi) : nullptr;
    why = table ? std::string() : format("{} belongs to another version of deltatune", path.string());
    return table;
  }
  why = format("there is no {} beside the program in {}", library, folder.string());
  return nullptr;
}

bool preload_libraries(const fs::path& folder, const std::vector<std::string>& prefixes) {
  for (const std::string& prefix : prefixes) {
    bool loaded = false;
    std::error_code failure;
    for (const auto& entry : fs::directory_iterator(folder, failure)) {
      if (entry.path().filename().string().rfind(prefix, 0) != 0) continue;
      loaded = loaded || ::dlopen(entry.path().c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr;
    }
    if (!loaded) return false;
  }
  return true;
}

std::vector<fs::path> python_package_folders(const std::string& package) {
  std::vector<fs::path> out;
  for (const fs::path& python : pythons()) {
    std::error_code failure;
    if (!fs::exists(python, failure)) continue;
    const fs::path prefix = python.parent_path().parent_path();
    for (const char* lib : {"lib", "lib64", "local/lib"}) {
      for (const auto& entry : fs::directory_iterator(prefix / lib, failure)) {
        if (entry.path().filename().string().rfind("python3", 0) != 0) continue;
        for (const char* packages : {"site-packages", "dist-packages"}) {
          const fs::path found = entry.path() / packages / package;
          if (fs::is_directory(found, failure) && std::find(out.begin(), out.end(), found) == out.end()) {
            out.push_back(found);
          }
        }
      }
    }
  }
  return out;
}

}  // namespace deltatune
