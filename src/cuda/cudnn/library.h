// cuDNN, opened at run time: the plug-in loads on a machine without it.
//
// library.cpp also defines the few functions of cuDNN's interface that the plug-in calls; each passes its
// arguments on to the library that was opened. They are hidden, so cuDNN itself never meets them.
#pragma once

#include <string>

namespace deltatune::cuda {

struct CudnnLibrary {
  int version = 0;   ///< 91900: 9.19.0; 0: not there
  std::string path;  ///< of the file really loaded
  std::string why;   ///< why there is none
};

/// Opens libcudnn.so.9 by the loader's path at the first call. Thread-safe.
const CudnnLibrary& cudnn_library();

}  // namespace deltatune::cuda
