// Opening libnccl, and what is wanted of it.
#include "cuda/library.h"

#include "cuda/comm/nccl.h"
#include "cuda/comm/nccl/functions.h"

namespace deltatune::cuda {
namespace {

struct Opened {
  NcclLibrary library;
  NcclFunctions functions;

  Opened() {
    OpenedLibrary opened("libnccl.so.2");
    opened.find(functions.get_unique_id, "ncclGetUniqueId");
    opened.find(functions.init_rank, "ncclCommInitRankConfig");
    opened.find(functions.finalize, "ncclCommFinalize");
    opened.find(functions.destroy, "ncclCommDestroy");
    opened.find(functions.abort, "ncclCommAbort");
    opened.find(functions.async_error, "ncclCommGetAsyncError");
    opened.find(functions.error_string, "ncclGetErrorString");
    opened.find(functions.last_error, "ncclGetLastError");
    opened.find(functions.all_gather, "ncclAllGather");
    opened.find(functions.broadcast, "ncclBroadcast");
    opened.find(functions.send, "ncclSend");
    opened.find(functions.receive, "ncclRecv");
    opened.find(functions.group_start, "ncclGroupStart");
    opened.find(functions.group_end, "ncclGroupEnd");
    decltype(ncclGetVersion)* get_version = nullptr;
    opened.find(get_version, "ncclGetVersion");
    library.why = opened.why();
    int version = 0;
    if (library.why.empty() && get_version(&version) == ncclSuccess) library.version = version;
    library.path = OpenedLibrary::path_of(reinterpret_cast<const void*>(get_version));
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
