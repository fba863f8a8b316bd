// The recorder: CUPTI asks for buffers and gives them back filled, on a thread of its own.
//
// Bounded: a fixed number of buffers under way and of records kept; what does not fit is counted, not kept.
// No exception leaves a callback, and a callback that comes after stop() only returns its buffer.
#include "cuda/activity.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/cupti/graph_nodes.h"
#include "cuda/cupti/library.h"

namespace deltatune::cuda {
namespace {

constexpr size_t buffer_bytes = size_t{4} << 20;  // some 19,000 kernels
constexpr size_t most_buffers = 16;
constexpr size_t most_records = size_t{1} << 20;
constexpr size_t buffer_alignment = 8;  // of CUPTI's records
constexpr std::array kinds = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                              CUPTI_ACTIVITY_KIND_MEMSET};
// Records of calls are not kept; CUPTI writes the id that is open for each of them.
constexpr std::array join_kinds = {CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_RUNTIME,
                                   CUPTI_ACTIVITY_KIND_DRIVER};
constexpr CUpti_ExternalCorrelationKind id_kind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

const char* copy_name(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "copy device to device";
    default:
      return "copy";
  }
}

class Recorder {
 public:
  static Recorder& self();

  bool start(std::string& why, bool joined) {
    const CuptiFunctions* cupti = cupti_functions();
    if (!cupti) {
      why = cupti_library().why;
      return false;
    }
    const auto refused = [&](CUptiResult status, const char* what) {
      if (status == CUPTI_SUCCESS) return false;
      const char* text = nullptr;
      cupti->result_string(status, &text);
      why = std::string("CUPTI: ") + (text ? text : "error") + " in " + what;
      return true;
    };
    if (joined && !watch_graph_nodes(why)) return false;
    if (!registered_ && refused(cupti->register_callbacks(give_buffer, take_buffer), "register callbacks")) {
      return false;
    }
    registered_ = true;
    {
      const std::lock_guard lock(mutex_);
      trace_ = {};
      name_of_text_.clear();
      nodes_.clear();
      opened_by_.clear();
      recording_ = true;
    }
    size_t dropped = 0;
    cupti->dropped_records(nullptr, 0, &dropped);  // reading sets it to 0
    bool enabled = true;
    for (const CUpti_ActivityKind kind : kinds) enabled = enabled && !refused(cupti->enable(kind), "enable");
    for (const CUpti_ActivityKind kind : join_kinds)
      enabled = enabled && (!joined || !refused(cupti->enable(kind), "enable"));
    if (!enabled) {
      disable_all(*cupti);
      const std::lock_guard lock(mutex_);
      recording_ = false;
      return false;
    }
    joined_ = joined;
    return true;
  }

  int64_t now() const {
    uint64_t ns = 0;
    if (const CuptiFunctions* cupti = cupti_functions()) cupti->timestamp(&ns);
    return static_cast<int64_t>(ns);
  }

  ActivityTrace stop() {
    const CuptiFunctions* cupti = cupti_functions();
    if (!cupti || !registered_) return {};
    cudaDeviceSynchronize();  // an error of the device shows itself at the caller's next call
    disable_all(*cupti);
    cupti->flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    size_t dropped = 0;
    cupti->dropped_records(nullptr, 0, &dropped);
    const std::lock_guard lock(mutex_);
    recording_ = false;
    trace_.dropped += static_cast<int64_t>(dropped);
    if (joined_.exchange(false)) join();
    return std::exchange(trace_, {});
  }

  void push(uint64_t id) const {
    open_id(id);
    if (joined_) cupti_functions()->push_id(id_kind, id);
  }
  void pop() const {
    close_id();
    uint64_t last = 0;
    if (joined_) cupti_functions()->pop_id(id_kind, &last);
  }

 private:
  static void disable_all(const CuptiFunctions& cupti) {
    for (const CUpti_ActivityKind kind : kinds) cupti.disable(kind);
    for (const CUpti_ActivityKind kind : join_kinds) cupti.disable(kind);
  }

  // The ids of calls may come behind the records of what they have queued.
  void join() {
    for (size_t i = 0; i < trace_.records.size(); ++i) {
      ActivityRecord& r = trace_.records[i];
      if (const auto at = opened_by_.find(r.correlation); at != opened_by_.end()) r.queued_by = at->second;
      if (nodes_[i] != 0) r.noted_by = noted_id(nodes_[i]);
    }
  }

  static void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* most) {
    *buffer = self().new_buffer();
    *size = *buffer ? buffer_bytes : 0;
    *most = 0;  // as many records as fit
  }

  static void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
    self().keep_records(buffer, valid);
    std::free(buffer);
    --self().buffers_;
  }

  uint8_t* new_buffer() {
    // No lock: the thread that queues work asks for buffers, and must not wait for records to be read.
    if (buffers_.fetch_add(1) < most_buffers) {
      if (void* const out = std::aligned_alloc(buffer_alignment, buffer_bytes))
        return static_cast<uint8_t*>(out);
    }
    --buffers_;
    return nullptr;
  }

  void keep_records(uint8_t* buffer, size_t valid) noexcept {
    const CuptiFunctions* cupti = cupti_functions();
    const std::lock_guard lock(mutex_);
    if (!recording_) return;
    CUpti_Activity* record = nullptr;
    while (cupti->next_record(buffer, valid, &record) == CUPTI_SUCCESS) {
      try {
        keep(*record);
      } catch (...) {  // no memory
        ++trace_.dropped;
      }
    }
  }

  // The fields read here lie where CUDA 13.0 put them in later records of CUPTI 13 too.
  void keep(const CUpti_Activity& record) {
    switch (record.kind) {
      case CUPTI_ACTIVITY_KIND_KERNEL:
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto& r = reinterpret_cast<const CUpti_ActivityKernel10&>(record);
        return add(r, r.name ? r.name : "kernel", ActivityKind::kernel);
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto& r = reinterpret_cast<const CUpti_ActivityMemcpy6&>(record);
        return add(r, copy_name(r.copyKind), ActivityKind::copy);
      }
      case CUPTI_ACTIVITY_KIND_MEMSET:
        return add(reinterpret_cast<const CUpti_ActivityMemset4&>(record), "fill", ActivityKind::fill);
      case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const auto& r = reinterpret_cast<const CUpti_ActivityExternalCorrelation&>(record);
        if (r.externalKind == id_kind) opened_by_[r.correlationId] = r.externalId;
        return;
      }
      default:
        return;
    }
  }

  template <class R>
  void add(const R& r, const char* name, ActivityKind kind) {
    if (r.start == 0 || r.end == 0 || trace_.records.size() >= most_records) {
      ++trace_.dropped;
      return;
    }
    // All records of a kernel share one text.
    const auto [at, fresh] = name_of_text_.try_emplace(name, static_cast<uint32_t>(trace_.names.size()));
    if (fresh) trace_.names.emplace_back(name);
    trace_.records.push_back({static_cast<int64_t>(r.start), static_cast<int64_t>(r.end), at->second,
                              r.correlationId, r.streamId, kind});
    nodes_.push_back(r.graphNodeId);
  }

  bool registered_ = false;
  std::atomic<size_t> buffers_ = 0;
  std::atomic<bool> joined_ = false;
  std::mutex mutex_;  // of all that follows
  bool recording_ = false;
  ActivityTrace trace_;
  std::unordered_map<const char*, uint32_t> name_of_text_;
  std::vector<uint64_t> nodes_;                       // of a graph, for each record; 0: none
  std::unordered_map<uint32_t, uint64_t> opened_by_;  // by correlation
};

// Never destroyed: CUPTI's thread may still return buffers while the process ends.
Recorder& Recorder::self() {
  static Recorder& recorder = *new Recorder;
  return recorder;
}

}  // namespace

ActivityTracer activity_tracer() {
  return {[](std::string& why) { return Recorder::self().start(why, false); },
          [] { return Recorder::self().now(); },
          [] { return Recorder::self().stop(); },
          [](std::string& why) { return Recorder::self().start(why, true); },
          [](uint64_t id) { Recorder::self().push(id); },
          [] { Recorder::self().pop(); }};
}

}  // namespace deltatune::cuda
