// NCCL's interface as a table of functions out of the library that was opened.
#pragma once

#include <nccl.h>

namespace deltatune::cuda {

struct NcclFunctions {
  decltype(ncclGetUniqueId)* get_unique_id = nullptr;
  decltype(ncclCommInitRankConfig)* init_rank = nullptr;
  decltype(ncclCommFinalize)* finalize = nullptr;
  decltype(ncclCommDestroy)* destroy = nullptr;
  decltype(ncclCommAbort)* abort = nullptr;
  decltype(ncclCommGetAsyncError)* async_error = nullptr;
  decltype(ncclGetErrorString)* error_string = nullptr;
  decltype(ncclGetLastError)* last_error = nullptr;
  decltype(ncclAllGather)* all_gather = nullptr;
  decltype(ncclBroadcast)* broadcast = nullptr;
  decltype(ncclSend)* send = nullptr;
  decltype(ncclRecv)* receive = nullptr;
  decltype(ncclGroupStart)* group_start = nullptr;
  decltype(ncclGroupEnd)* group_end = nullptr;
};

/// All of them, or nullptr (nccl_library() says why).
const NcclFunctions* nccl_functions();

}  // namespace deltatune::cuda
