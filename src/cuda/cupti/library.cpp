// Opening libcupti, and what is wanted of it.
#include "cuda/cupti/library.h"

#include <cuda_runtime_api.h>

#include "cuda/activity.h"
#include "cuda/library.h"

namespace deltatune::cuda {
namespace {

// CUPTI 13.2 calls itself without end where there is no driver, even for its version.
OpenedLibrary open_cupti() {
  constexpr const char* soname = "libcupti.so.13";
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return {soname, "there is no CUDA driver"};
  return OpenedLibrary(soname);
}

struct Opened {
  CuptiLibrary library;
  CuptiFunctions functions;

  Opened() {
    OpenedLibrary opened = open_cupti();
    opened.find(functions.register_callbacks, "cuptiActivityRegisterCallbacks");
    opened.find(functions.enable, "cuptiActivityEnable");
    opened.find(functions.disable, "cuptiActivityDisable");
    opened.find(functions.flush_all, "cuptiActivityFlushAll");
    opened.find(functions.next_record, "cuptiActivityGetNextRecord");
    opened.find(functions.dropped_records, "cuptiActivityGetNumDroppedRecords");
    opened.find(functions.timestamp, "cuptiGetTimestamp");
    opened.find(functions.result_string, "cuptiGetResultString");
    opened.find(functions.push_id, "cuptiActivityPushExternalCorrelationId");
    opened.find(functions.pop_id, "cuptiActivityPopExternalCorrelationId");
    opened.find(functions.graph_node_id, "cuptiGetGraphNodeId");
    opened.find(functions.subscribe, "cuptiSubscribe");
    opened.find(functions.enable_callback, "cuptiEnableCallback");
    CUptiResult (*get_version)(uint32_t*) = nullptr;
    opened.find(get_version, "cuptiGetVersion");
    library.why = opened.why();
    if (!library.why.empty()) return;
    uint32_t version = 0;
    get_version(&version);
    library.version = static_cast<int>(version);
    library.path = OpenedLibrary::path_of(reinterpret_cast<const void*>(get_version));
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
