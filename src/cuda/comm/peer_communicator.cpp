// Ranks whose GPUs can read each other's memory, on one machine: copy engines move the bytes.
//
// Every collective is: handshake, everybody reads what it needs of the others, and for most of them another
// handshake. The first says that what is read is complete, the second that it may be written again. Large
// tensors are read where they are (PeerMemory); sums take the others' parts in pieces through staging memory,
// since copy engines cannot add.
// Small tensors go through an outbox that every rank has. All of it is in stream order, without the host, so
// it can be captured in a graph once every tensor was seen once. A thread watches the host group meanwhile: a
// rank that is gone ends the wait of the others' devices. Invariant: one stream at a time; the caller orders
// streams that take turns.
#include "cuda/comm/peer_communicator.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "cuda/check.h"
#include "cuda/comm/group_communicator.h"
#include "cuda/comm/peer_memory.h"
#include "cuda/device.h"

namespace deltatune::cuda {
namespace {

constexpr std::array<const char*, 7> call_names = {
    "start", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "barrier", "end"};
enum Call : uint32_t { start, gather, scatter, sum_all, broadcast_call, barrier_call, end };
static_assert(call_names.size() == Call::end + 1);

class Peers final : public GroupCommunicator {
 public:
  Peers(Device& device, std::unique_ptr<HostGroup> group, const CommOptions& options)
      : GroupCommunicator(device, std::move(group), options),
        peers_(rank(), [this](std::string_view mine) { return exchange(mine); }),
        stream_(device.make_stream("communication")) {
    DELTATUNE_ASSERT(world_size() <= max_peers);
    shared_ = peers_.of({memory_.device.data(), DType::u8, {static_cast<int64_t>(memory_.device.size())}},
                        call_names[start]);
    for (size_t r = 0; r < shared_.size(); ++r) handshake_.flags[r] = reinterpret_cast<uint64_t*>(shared_[r]);
    watch_ = std::make_unique<Watch>([this] {
      if (!someone_is_gone()) return false;
      const_cast<volatile uint32_t&>(report_->abandon) = 1;
      return true;
    });
  }

  ~Peers() override {
    const bool orderly = std::uncaught_exceptions() == 0 && report_->reason == HandshakeReport::fine;
    try {
      if (orderly) {
        meet(Call::end);  // the others read this rank's memory no more
        watch_.reset();
        peers_.close();
        leave();
        return;
      }
      launch_farewell(*stream_, handshake_);
      const_cast<volatile uint32_t&>(report_->abandon) = 1;
      stream_->sync();
    } catch (const Error& error) {
      log::debug("end of communication: {}", error.what());
    }
  }

  void all_gather(Stream& stream, Tensor full, CTensor chunk) override {
    DELTATUNE_ASSERT(full.count() == chunk.count() * world_size() && full.dtype == chunk.dtype);
    count_gather(full.bytes());
    if (chunk.bytes() == 0) return;
    const PeerAddresses& from = peers_.of(chunk, call_names[gather]);
    shake(stream, gather);
    for_others([&](int peer) { copy(stream, full.data + part(peer, chunk), from[at(peer)], chunk.bytes()); });
    std::byte* const own = full.data + part(rank(), chunk);
    if (own != chunk.data) copy(stream, own, chunk.data, chunk.bytes());
    // Nobody writes his chunk before the next call, whose handshake says that all have read it.
  }

  void reduce_scatter_add(Stream& stream, Tensor chunk, CTensor full) override {
    scatter_sum(stream, chunk, full, true);
  }
  void reduce_scatter(Stream& stream, Tensor chunk, CTensor full) override {
    scatter_sum(stream, chunk, full, false);
  }

  void all_reduce(Stream& stream, Tensor x) override {
    count_reduce(x.bytes(), 2);
    in_pieces(x, CommMemory::outbox_bytes, [&](Tensor piece) {
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
    in_pieces(x, CommMemory::outbox_bytes, [&](Tensor piece) {
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

  void check_peers() override {
    const uint32_t reason = const_cast<volatile uint32_t&>(report_->reason);
    if (reason == HandshakeReport::fine) return;
    rethrow_gone();
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

 private:
  static size_t part(int rank, CTensor chunk) { return at(rank) * chunk.bytes(); }
  void shake(Stream& stream, Call call) { launch_handshake(stream, handshake_, call); }
  std::byte* outbox_of(int rank) const { return shared_[at(rank)] + CommMemory::flag_bytes; }
  void scatter_sum(Stream& stream, Tensor chunk, CTensor full, bool add) {
    DELTATUNE_ASSERT(full.count() == chunk.count() * world_size());
    count_reduce(full.bytes());
    if (chunk.bytes() == 0) return;
    const PeerAddresses& from = peers_.of(full, call_names[scatter]);
    const int64_t mine = chunk.count() * rank();
    const auto piece = static_cast<int64_t>(slot_bytes() / size_of(full.dtype));
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

  PeerMemory peers_;
  std::unique_ptr<Stream> stream_;  ///< of the end
  PeerAddresses shared_;
  std::unique_ptr<Watch> watch_;
};

}  // namespace

std::unique_ptr<Communicator> make_peer_communicator(Device& device, std::unique_ptr<HostGroup> group,
                                                     const CommOptions& options) {
  return std::make_unique<Peers>(device, std::move(group), options);
}

}  // namespace deltatune::cuda
