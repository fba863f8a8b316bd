// A library that is opened at run time, so that the plug-in loads on a machine without it: CUPTI, NCCL.
#pragma once

#include <string>

namespace deltatune::cuda {

class OpenedLibrary {
 public:
  /// Opens `soname` in the folders of DELTATUNE_CUDA_LIB_PATH (separated by ':'), else by the loader's path,
  /// else in site-packages/nvidia/*/lib of python3.
  explicit OpenedLibrary(const char* soname);
  /// Opens nothing, for the reason given.
  OpenedLibrary(const char* soname, std::string why) : soname_(soname), why_(std::move(why)) {}

  /// Sets `function`, a pointer to function, to the symbol `name`; nullptr and a reason where there is none.
  template <class F>
  void find(F*& function, const char* name) {
    function = reinterpret_cast<F*>(symbol(name));
  }
  /// Of the file that `function` of this library was loaded from; empty: not known.
  static std::string path_of(const void* function);

  /// Why it is not open, or what it lacks; empty: nothing is missing.
  const std::string& why() const { return why_; }

 private:
  void* symbol(const char* name);

  const char* soname_;
  void* handle_ = nullptr;
  std::string why_;
};

}  // namespace deltatune::cuda
