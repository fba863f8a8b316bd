// Threads, their memory, and the first exception.
#include "tensor/staging_lanes.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

#include "base/thread_pool.h"

namespace deltatune {
namespace {

// A disk array needs several requests under way, and one thread hashes and converts at a few GB/s.
constexpr int lanes_beside_a_gpu = 8;
constexpr int most_lanes_on_a_cpu = 4;

struct AlignedDelete {
  void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{StagingLanes::page}); }
};

}  // namespace

StagingLanes::StagingLanes(Device& device) : device_(device) {
  const bool gpu = device.target() != Target::cpu;
  const int lanes = gpu ? lanes_beside_a_gpu : std::min(most_lanes_on_a_cpu, thread_count());
  for (int i = 0; i < lanes; ++i) streams_.push_back(device.make_stream("copy " + std::to_string(i)));
  if (gpu) memory_ = device.allocate_staging(2 * stride * streams_.size(), "staging of checkpoints", "io");
}

void StagingLanes::run(int64_t count, const std::function<void(int64_t, Lane&)>& work,
                       const std::atomic<bool>* stop) const {
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr first;
  std::mutex first_mutex;
  const auto drive = [&](size_t index) {
    try {
      device_.use_in_this_thread();
      std::unique_ptr<std::byte, AlignedDelete> own;
      std::byte* memory = memory_.size() > 0 ? memory_.data() + 2 * stride * index : nullptr;
      if (memory == nullptr) {
        own.reset(static_cast<std::byte*>(::operator new (2 * stride, std::align_val_t{page})));
        memory = own.get();
      }
      Lane lane{memory, memory + stride, streams_[index].get()};
      while (!failed && (stop == nullptr || !*stop)) {
        const int64_t i = next.fetch_add(1);
        if (i >= count) break;
        work(i, lane);
      }
      lane.stream->sync();
    } catch (...) {
      failed = true;
      const std::lock_guard<std::mutex> lock(first_mutex);
      if (!first) first = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  const auto wanted = std::min(static_cast<int64_t>(streams_.size()), count);
  for (int64_t i = 0; i < wanted; ++i) threads.emplace_back(drive, static_cast<size_t>(i));
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace deltatune
