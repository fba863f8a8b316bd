// What the device did, by CUPTI's activity records, and the library they are from.
//
// One record for each kernel, copy and fill, those inside of graphs included: the kinds are
// CONCURRENT_KERNEL, MEMCPY and MEMSET, never GRAPH_TRACE, which has one record for a whole graph.
// libcupti is opened at run time, at the first start(): the plug-in loads on a machine without it.
#pragma once

#include <string>

#include "tensor/activity.h"

namespace deltatune::cuda {

struct CuptiLibrary {
  int version = 0;   ///< CUPTI's own: 130001 in CUDA 13.0; 0: not there
  std::string path;  ///< of the file really loaded
  std::string why;   ///< why there is none
};

/// Opens libcupti.so.13 at the first call: in the folders of DELTATUNE_CUDA_LIB_PATH (separated by ':'), by
/// the loader's path, in site-packages/nvidia/*/lib of python3. Thread-safe; attaches nothing to the process.
const CuptiLibrary& cupti_library();

/// The tracer of this process. Its functions are to be called from one thread at a time.
ActivityTracer activity_tracer();

}  // namespace deltatune::cuda
