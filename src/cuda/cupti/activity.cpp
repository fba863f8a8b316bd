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

#include "cuda/cupti/library.h"

namespace deltatune::cuda {
namespace {

constexpr size_t buffer_bytes = size_t{4} << 20;  // some 19,000 kernels
constexpr size_t most_buffers = 16;
constexpr size_t most_records = size_t{1} << 20;
constexpr size_t buffer_alignment = 8;  // of CUPTI's records
constexpr std::array kinds = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                              CUPTI_ACTIVITY_KIND_MEMSET};

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

  bool start(std::string& why) {
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
    if (!registered_ && refused(cupti->register_callbacks(give_buffer, take_buffer), "register callbacks")) {
      return false;
    }
    registered_ = true;
    {
      const std::lock_guard lock(mutex_);
      trace_ = {};
      name_of_text_.clear();
      recording_ = true;
    }
    size_t dropped = 0;
    cupti->dropped_records(nullptr, 0, &dropped);  // reading sets it to 0
    for (const CUpti_ActivityKind kind : kinds) {
      if (!refused(cupti->enable(kind), "enable")) continue;
      for (const CUpti_ActivityKind other : kinds) cupti->disable(other);
      const std::lock_guard lock(mutex_);
      recording_ = false;
      return false;
    }
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
    for (const CUpti_ActivityKind kind : kinds) cupti->disable(kind);
    cupti->flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    size_t dropped = 0;
    cupti->dropped_records(nullptr, 0, &dropped);
    const std::lock_guard lock(mutex_);
    recording_ = false;
    trace_.dropped += static_cast<int64_t>(dropped);
    return std::exchange(trace_, {});
  }

 private:
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
  }

  bool registered_ = false;
  std::atomic<size_t> buffers_ = 0;
  std::mutex mutex_;  // of all that follows
  bool recording_ = false;
  ActivityTrace trace_;
  std::unordered_map<const char*, uint32_t> name_of_text_;
};

// Never destroyed: CUPTI's thread may still return buffers while the process ends.
Recorder& Recorder::self() {
  static Recorder& recorder = *new Recorder;
  return recorder;
}

}  // namespace

ActivityTracer activity_tracer() {
  return {[](std::string& why) { return Recorder::self().start(why); }, [] { return Recorder::self().now(); },
          [] { return Recorder::self().stop(); }};
}

}  // namespace deltatune::cuda
