// Ranks whose GPUs can read each other's memory, on one machine: copy engines move the bytes.
//
// Every collective is: handshake, everybody reads what it needs of the others, handshake. The first says that
// what is read is complete, the second that it may be written again. Large tensors are read where they are
// (PeerMemory); sums take the others' parts in pieces through staging memory, since copy engines cannot add.
// Small tensors go through an outbox that every rank has. All of it is in stream order, without the host, so
// it can be captured in a graph once every tensor was seen once. A thread watches the host group meanwhile: a
// rank that is gone ends the wait of the others' devices. Invariant: one stream at a time; the caller orders
// streams that take turns.
#include "cuda/comm/peer_communicator.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "comm/gpu_memory.h"
#include "comm/host_group.h"
#include "cuda/check.h"
#include "cuda/comm/peer_kernels.h"
#include "cuda/comm/peer_memory.h"
#include "cuda/device.h"

namespace deltatune::cuda {
namespace {

constexpr std::chrono::milliseconds watch_every{100};

constexpr std::array<const char*, 7> call_names = {
    "start", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "barrier", "end"};
enum Call : uint32_t { start, gather, scatter, sum_all, broadcast_call, barrier_call, end };
static_assert(call_names.size() == Call::end + 1);

// Looks at the host group now and then, and tells the device when a rank is gone.
class Watch {
 public:
  Watch(HostGroup& group, std::mutex& in_use, HandshakeReport& report)
      : group_(group), in_use_(in_use), report_(report), thread_([this] { loop(); }) {}
  ~Watch() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  /// What the group said of the rank that is gone.
  std::exception_ptr gone() {
    const std::lock_guard lock(mutex_);
    return gone_;
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, watch_every, [&] { return ended_; })) {
      // Whoever uses the group notices by itself.
      const std::unique_lock use(in_use_, std::try_to_lock);
      if (!use.owns_lock()) continue;
      try {
        group_.check();
      } catch (const Error&) {
        gone_ = std::current_exception();
        const_cast<volatile uint32_t&>(report_.abandon) = 1;
        return;
      }
    }
  }
  HostGroup& group_;
  std::mutex& in_use_;
  HandshakeReport& report_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ended_ = false;
  std::exception_ptr gone_;
  std::thread thread_;
};

class Peers final : public Communicator {
 public:
  Peers(Device& device, std::unique_ptr<HostGroup> group, const CommOptions& options)
      : group_(std::move(group)),
        timeout_(options.timeout),
        memory_(allocate_comm_memory(device, group_->world_size())),
        peers_(group_->rank(), [this](std::string_view mine) { return exchange(mine); }),
        stream_(device.make_stream("communication")) {
    DELTATUNE_ASSERT(world_size() <= max_peers);
    DELTATUNE_CUDA(cudaMemset(memory_.device.data(), 0, CommMemory::flag_bytes));
    DELTATUNE_CUDA(cudaDeviceSynchronize());
    report_ = new (memory_.host.data()) HandshakeReport{};
    std::byte* const words = memory_.device.data();
    outbox_ = words + CommMemory::flag_bytes;
    staging_ = outbox_ + CommMemory::outbox_bytes;
    shared_ = peers_.of({words, DType::u8, {static_cast<int64_t>(memory_.device.size())}}, call_names[start]);
    for (size_t r = 0; r < shared_.size(); ++r) handshake_.flags[r] = reinterpret_cast<uint64_t*>(shared_[r]);
    handshake_.state = reinterpret_cast<HandshakeState*>(words + max_peers * sizeof(uint64_t));
    handshake_.report = report_;
    handshake_.timeout_ns = static_cast<uint64_t>(timeout_.count()) * 1000000;
    handshake_.rank = rank();
    handshake_.world_size = world_size();
    watch_ = std::make_unique<Watch>(*group_, group_in_use_, *report_);
  }

  ~Peers() override {
    const bool orderly = std::uncaught_exceptions() == 0 && report_->reason == HandshakeReport::fine;
    try {
      if (orderly) {
        meet(Call::end);  // the others read this rank's memory no more
        watch_.reset();
        peers_.close();
        group_->leave();
        return;
      }
      launch_farewell(*stream_, handshake_);
      const_cast<volatile uint32_t&>(report_->abandon) = 1;
      stream_->sync();
    } catch (const Error& error) {
      log::debug("end of communication: {}", error.what());
    }
  }

  int rank() const override { return group_->rank(); }
  int world_size() const override { return group_->world_size(); }

  void all_gather(Stream& stream, Tensor full, CTensor chunk) override {
    DELTATUNE_ASSERT(full.count() == chunk.count() * world_size() && full.dtype == chunk.dtype);
    count_gather(full.bytes());
    if (chunk.bytes() == 0) return;
    const PeerAddresses& from = peers_.of(chunk, call_names[gather]);
    shake(stream, gather);
    for_others([&](int peer) { copy(stream, full.data + part(peer, chunk), from[at(peer)], chunk.bytes()); });
    std::byte* const own = full.data + part(rank(), chunk);
    if (own != chunk.data) copy(stream, own, chunk.data, chunk.bytes());
    shake(stream, gather);
  }

  void reduce_scatter_add(Stream& stream, Tensor chunk, CTensor full) override {
    scatter_sum(stream, chunk, full, true);
  }
  void reduce_scatter(Stream& stream, Tensor chunk, CTensor full) override {
    scatter_sum(stream, chunk, full, false);
  }

  void all_reduce(Stream& stream, Tensor x) override {
    count_reduce(x.bytes(), 2);
    in_pieces(x, [&](Tensor piece) {
      copy(stream, outbox_, piece.data, piece.bytes());
      shake(stream, sum_all);
      std::array<CTensor, max_peers> parts;
      for (int r = 0; r < world_size(); ++r) parts[at(r)] = {outbox_of(r), piece.dtype, piece.shape};
      launch_sum_parts(stream, piece, {parts.data(), at(world_size())}, false);
      shake(stream, sum_all);
    });
  }

  void broadcast(Stream& stream, Tensor x, int root) override {
    if (rank() == root) totals_.gather_bytes += static_cast<double>(x.bytes()) * (world_size() - 1);
    ++totals_.calls;
    in_pieces(x, [&](Tensor piece) {
      if (rank() == root) copy(stream, outbox_, piece.data, piece.bytes());
      shake(stream, broadcast_call);
      if (rank() != root) copy(stream, piece.data, outbox_of(root), piece.bytes());
      shake(stream, broadcast_call);
    });
  }

  void barrier(Stream& stream) override {
    ++totals_.calls;
    shake(stream, barrier_call);
  }

  std::vector<std::string> exchange(std::string_view mine) override {
    const std::lock_guard lock(group_in_use_);
    return group_->exchange(mine, place());
  }
  std::vector<std::string> collect(std::string_view mine) override {
    const std::lock_guard lock(group_in_use_);
    return group_->collect(mine, place());
  }

  void check_peers() override {
    const uint32_t reason = const_cast<volatile uint32_t&>(report_->reason);
    if (reason == HandshakeReport::fine) return;
    if (const std::exception_ptr gone = watch_->gone()) {
      try {
        std::rethrow_exception(gone);
      } catch (const Error& error) {
        throw Error(error.kind(), error.what(), place(), error.fix());
      }
    }
    std::vector<int> ranks;
    for (int r = 0; r < world_size(); ++r) {
      if ((report_->missing >> r & 1) != 0) ranks.push_back(r);
    }
    const char* const call = call_names.at(report_->call);
    if (reason == HandshakeReport::left) {
      throw Error(ErrorKind::distributed,
                  name_ranks(ranks) + (ranks.size() == 1 ? " has" : " have") + " left the run (" + call + ")",
                  place(), "see the message of that rank; the last checkpoint is kept");
    }
    throw peers_missing(ranks, call, timeout_, place());
  }

  void begin_wait(Stream& stream) override { launch_begin_wait(stream, handshake_); }
  void end_wait(Stream& stream) override { launch_end_wait(stream, handshake_); }
  double waited_s() const override {
    return static_cast<double>(const_cast<const volatile uint64_t&>(report_->waited)) * 1e-9;
  }

 private:
  static size_t at(int rank) { return static_cast<size_t>(rank); }
  static size_t part(int rank, CTensor chunk) { return at(rank) * chunk.bytes(); }
  void shake(Stream& stream, Call call) { launch_handshake(stream, handshake_, call); }
  // Everybody begins with another one, so that no GPU is read by all at once.
  template <class F>
  void for_others(F&& f) const {
    for (int i = 1; i < world_size(); ++i) f((rank() + i) % world_size());
  }
  static void copy(Stream& stream, std::byte* to, const std::byte* from, size_t bytes) {
    DELTATUNE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, native(stream)));
  }
  std::byte* outbox_of(int rank) const { return shared_[at(rank)] + CommMemory::flag_bytes; }
  // Where a piece of a peer's part is staged: the others share the memory in equal parts.
  size_t slot_bytes() const { return CommMemory::staging_bytes / at(world_size() - 1) / 256 * 256; }
  int64_t piece_elements(DType dtype) const { return static_cast<int64_t>(slot_bytes() / size_of(dtype)); }
  Tensor staged(int peer, DType dtype, int64_t count) const {
    const int slot = peer < rank() ? peer : peer - 1;
    return {staging_ + at(slot) * slot_bytes(), dtype, {count}};
  }
  template <class F>
  void in_pieces(Tensor x, F&& f) const {
    const Tensor flat = x.reshaped({x.count()});
    const auto most = static_cast<int64_t>(CommMemory::outbox_bytes / size_of(x.dtype));
    for (int64_t begin = 0; begin < flat.count(); begin += most)
      f(flat.slice(begin, std::min(most, flat.count() - begin)));
  }
  void scatter_sum(Stream& stream, Tensor chunk, CTensor full, bool add) {
    DELTATUNE_ASSERT(full.count() == chunk.count() * world_size());
    count_reduce(full.bytes());
    if (chunk.bytes() == 0) return;
    const PeerAddresses& from = peers_.of(full, call_names[scatter]);
    const int64_t mine = chunk.count() * rank();
    const int64_t piece = piece_elements(full.dtype);
    shake(stream, scatter);
    for (int64_t begin = 0; begin < chunk.count(); begin += piece) {
      const int64_t count = std::min(piece, chunk.count() - begin);
      const size_t offset = static_cast<size_t>(mine + begin) * size_of(full.dtype);
      std::array<CTensor, max_peers> parts;
      for_others([&](int peer) {
        const Tensor place = staged(peer, full.dtype, count);
        copy(stream, place.data, from[at(peer)] + offset, place.bytes());
        parts[at(peer)] = place;
      });
      parts[at(rank())] = full.slice(mine + begin, count);
      launch_sum_parts(stream, chunk.slice(begin, count), {parts.data(), at(world_size())}, add);
    }
    shake(stream, scatter);
  }
  void meet(Call call) {
    shake(*stream_, call);
    stream_->sync();
    check_peers();
  }

  std::unique_ptr<HostGroup> group_;
  std::mutex group_in_use_;
  std::chrono::milliseconds timeout_;
  CommMemory memory_;
  PeerMemory peers_;
  std::unique_ptr<Stream> stream_;  ///< of the end
  HandshakeReport* report_ = nullptr;
  Handshake handshake_;
  PeerAddresses shared_;
  std::byte* outbox_ = nullptr;
  std::byte* staging_ = nullptr;
  std::unique_ptr<Watch> watch_;
};

}  // namespace

std::unique_ptr<Communicator> make_peer_communicator(Device& device, std::unique_ptr<HostGroup> group,
                                                     const CommOptions& options) {
  return std::make_unique<Peers>(device, std::move(group), options);
}

}  // namespace deltatune::cuda
