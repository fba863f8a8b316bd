// GroupCommunicator: what all communicators between GPUs have in common: the group that meets on the host, a
// thread that watches it, the memory to exchange through, and the clock of waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/cuda_communicator.h"
#include "comm/gpu_memory.h"
#include "cuda/comm/peer_kernels.h"

namespace deltatune::cuda {

/// Calls `look` every tenth of a second on a thread of its own, until it returns true or the object ends.
class Watch {
 public:
  explicit Watch(std::function<bool()> look) : look_(std::move(look)), thread_([this] { loop(); }) {}
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  void loop();
  std::function<bool()> look_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ended_ = false;
  std::thread thread_;
};

class GroupCommunicator : public Communicator {
 public:
  GroupCommunicator(Device& device, std::unique_ptr<HostGroup> group, const CommOptions& options);

  int rank() const override { return group_->rank(); }
  int world_size() const override { return group_->world_size(); }
  std::vector<std::string> exchange(std::string_view mine) override;
  std::vector<std::string> collect(std::string_view mine) override;
  void begin_wait(Stream& stream) override { launch_begin_wait(stream, handshake_); }
  void end_wait(Stream& stream) override { launch_end_wait(stream, handshake_); }
  double waited_s() const override;

 protected:
  /// What the host group says of a rank that is gone: kept for rethrow_gone(). For the watching thread.
  bool someone_is_gone();
  /// Throws what someone_is_gone() has found, as seen from here.
  void rethrow_gone();
  void leave() { group_->leave(); }

  static size_t at(int rank) { return static_cast<size_t>(rank); }
  /// Calls f(rank) for all others. Everybody begins with another one, so that none is asked by all at once.
  template <class F>
  void for_others(F&& f) const {
    for (int i = 1; i < world_size(); ++i) f((rank() + i) % world_size());
  }
  /// Calls f(piece) for pieces of at most `bytes` of x.
  template <class F>
  static void in_pieces(Tensor x, size_t bytes, F&& f) {
    const Tensor flat = x.reshaped({x.count()});
    const auto most = static_cast<int64_t>(bytes / size_of(x.dtype));
    for (int64_t begin = 0; begin < flat.count(); begin += most)
      f(flat.slice(begin, std::min(most, flat.count() - begin)));
  }
  /// Staging memory is cut into a slot for each other rank; where there are more parts than a kernel adds up
  /// (max_peers), this one's is for sums.
  size_t slot_bytes() const {
    const int slots = world_size() > max_peers ? world_size() : world_size() - 1;
    return CommMemory::staging_bytes / at(slots) / 256 * 256;
  }
  Tensor staged(int of, DType dtype, int64_t count) const {
    const int slot = of == rank() ? world_size() - 1 : of < rank() ? of : of - 1;
    return {staging_ + at(slot) * slot_bytes(), dtype, {count}};
  }
  static void copy(Stream& stream, std::byte* to, const std::byte* from, size_t bytes);

  std::chrono::milliseconds timeout_;
  CommMemory memory_;
  HandshakeReport* report_ = nullptr;
  Handshake handshake_;  ///< flags are those of the peer transport
  std::byte* outbox_ = nullptr;
  std::byte* staging_ = nullptr;

 private:
  std::unique_ptr<HostGroup> group_;
  std::mutex group_in_use_;
  std::mutex gone_mutex_;
  std::exception_ptr gone_;
};

}  // namespace deltatune::cuda
