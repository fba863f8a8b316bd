// What is used of CUPTI as a table of functions out of the library that was opened.
#pragma once

#include <cupti_activity.h>
#include <cupti_callbacks.h>

namespace deltatune::cuda {

struct CuptiFunctions {
  decltype(cuptiActivityRegisterCallbacks)* register_callbacks = nullptr;
  decltype(cuptiActivityEnable)* enable = nullptr;
  decltype(cuptiActivityDisable)* disable = nullptr;
  decltype(cuptiActivityFlushAll)* flush_all = nullptr;
  decltype(cuptiActivityGetNextRecord)* next_record = nullptr;
  decltype(cuptiActivityGetNumDroppedRecords)* dropped_records = nullptr;
  decltype(cuptiGetTimestamp)* timestamp = nullptr;
  decltype(cuptiGetResultString)* result_string = nullptr;
  decltype(cuptiActivityPushExternalCorrelationId)* push_id = nullptr;
  decltype(cuptiActivityPopExternalCorrelationId)* pop_id = nullptr;
  decltype(cuptiGetGraphNodeId)* graph_node_id = nullptr;
  decltype(cuptiSubscribe)* subscribe = nullptr;
  decltype(cuptiEnableCallback)* enable_callback = nullptr;
};

/// All of them, or nullptr (cupti_library() says why).
const CuptiFunctions* cupti_functions();

}  // namespace deltatune::cuda
