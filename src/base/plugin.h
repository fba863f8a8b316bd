// Plug-ins: libraries of ours that the program opens at run time, each with one exported C function.
//
// A plug-in links none of our static libraries; it resolves against the program that opens it, so globals
// (log sink, counters) exist once and exceptions are caught by type. It is closed by the end of the process
// only. What the functions of a plug-in are is said where its table is (ops/cuda_plugin.h,
// data/arrow_plugin.h).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace deltatune {

/// Opens `library` ("libdeltatune_NAME.so") beside the running program, in its ../lib or in a folder above it
/// (tests), calls its `symbol`, a `const void* symbol(int abi)`, and returns the result. nullptr when the
/// library is not there, cannot be loaded or belongs to another version; `why` then says which.
const void* open_plugin(const std::string& library, const char* symbol, int abi, std::string& why);

/// Loads each shared library of `folder` whose name starts with one of `prefixes`, in this order, so that a
/// plug-in which needs them by soname finds them. False when one prefix has no library that can be loaded.
bool preload_libraries(const std::filesystem::path& folder, const std::vector<std::string>& prefixes);

/// `package` in the site-packages (dist-packages) folders of the python3 on PATH and of DELTATUNE_PYTHON;
/// only folders that exist. Python is not started.
std::vector<std::filesystem::path> python_package_folders(const std::string& package);

}  // namespace deltatune
