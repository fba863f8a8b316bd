// The host's side of ranks with a GPU.
#include "cuda/comm/group_communicator.h"

#include <chrono>
#include <new>
#include <utility>

#include "base/error.h"
#include "cuda/check.h"
#include "cuda/device.h"

namespace deltatune::cuda {
namespace {
constexpr std::chrono::milliseconds watch_every{100};
}  // namespace

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watch::loop() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, watch_every, [&] { return ended_; })) {
    if (look_()) return;
  }
}

GroupCommunicator::GroupCommunicator(Device& device, std::unique_ptr<HostGroup> group,
                                     const CommOptions& options)
    : timeout_(options.timeout),
      memory_(allocate_comm_memory(device, group->world_size())),
      group_(std::move(group)) {
  DELTATUNE_CUDA(cudaMemset(memory_.device.data(), 0, CommMemory::flag_bytes));
  DELTATUNE_CUDA(cudaDeviceSynchronize());
  report_ = new (memory_.host.data()) HandshakeReport{};
  std::byte* const words = memory_.device.data();
  outbox_ = words + CommMemory::flag_bytes;
  staging_ = outbox_ + CommMemory::outbox_bytes;
  handshake_.state = reinterpret_cast<HandshakeState*>(words + max_peers * sizeof(uint64_t));
  handshake_.report = report_;
  handshake_.timeout_ns = static_cast<uint64_t>(timeout_.count()) * 1000000;
  handshake_.rank = rank();
  handshake_.world_size = world_size();
}

std::vector<std::string> GroupCommunicator::exchange(std::string_view mine) {
  const std::lock_guard lock(group_in_use_);
  return group_->exchange(mine, place());
}

std::vector<std::string> GroupCommunicator::collect(std::string_view mine) {
  const std::lock_guard lock(group_in_use_);
  return group_->collect(mine, place());
}

double GroupCommunicator::waited_s() const {
  return static_cast<double>(const_cast<const volatile uint64_t&>(report_->waited)) * 1e-9;
}

bool GroupCommunicator::someone_is_gone() {
  // Whoever uses the group notices by itself.
  const std::unique_lock use(group_in_use_, std::try_to_lock);
  if (!use.owns_lock()) return false;
  try {
    group_->check();
    return false;
  } catch (const Error&) {
    const std::lock_guard lock(gone_mutex_);
    gone_ = std::current_exception();
    return true;
  }
}

void GroupCommunicator::rethrow_gone() {
  const std::lock_guard lock(gone_mutex_);
  if (!gone_) return;
  try {
    std::rethrow_exception(gone_);
  } catch (const Error& error) {
    throw Error(error.kind(), error.what(), place(), error.fix());
  }
}

void GroupCommunicator::copy(Stream& stream, std::byte* to, const std::byte* from, size_t bytes) {
  DELTATUNE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, native(stream)));
}

}  // namespace deltatune::cuda
