// Ranks whose bytes NCCL moves: several hosts, or GPUs that cannot read each other's memory.
//
// NCCL gathers and exchanges; sums are this program's own, in rank order, over pieces that the others send,
// so the bits are those of every other communicator. Before and after each call the device writes a count
// that the host can read: from it a thread sees a call that does not end within the deadline, from NCCL a
// connection that broke, from the host group a rank that is gone; it then aborts NCCL, which ends what waits
// on the device. NCCL does not tell which rank is late. The communicator is NCCL's non-blocking one: no call
// of it holds up the host beyond the deadline.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cuda/check.h"
#include "cuda/comm/group_communicator.h"
#include "cuda/comm/nccl.h"
#include "cuda/comm/nccl/functions.h"
#include "cuda/device.h"

namespace deltatune::cuda {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::array<const char*, 6> call_names = {"start",      "all_gather", "reduce_scatter",
                                                   "all_reduce", "broadcast",  "barrier"};
enum Call : uint32_t { start, gather, scatter, sum_all, broadcast_call, barrier_call };
static_assert(call_names.size() == Call::barrier_call + 1);

class Nccl final : public GroupCommunicator {
 public:
  Nccl(Device& device, std::unique_ptr<HostGroup> group, const CommOptions& options)
      : GroupCommunicator(device, std::move(group), options), nccl_(*nccl_functions()) {
    connect();
    watch_ = std::make_unique<Watch>([this] { return look(); });
  }

  ~Nccl() override {
    watch_.reset();
    const std::lock_guard lock(in_use_);
    if (std::uncaught_exceptions() > 0 || failure_ != Failure::none) {
      abort();
      return;
    }
    try {
      check(nccl_.finalize(comm_), start);
      nccl_.destroy(comm_);
      leave();
    } catch (const Error& error) {
      log::debug("end of communication: {}", error.what());
    }
  }

  void all_gather(Stream& stream, Tensor full, CTensor chunk) override {
    DELTATUNE_ASSERT(full.count() == chunk.count() * world_size() && full.dtype == chunk.dtype);
    count_gather(full.bytes());
    if (chunk.bytes() == 0) return;
    const Counted counted(*this, stream, gather);
    check(nccl_.all_gather(chunk.data, full.data, chunk.bytes(), ncclUint8, comm_, native(stream)), gather);
  }

  void reduce_scatter_add(Stream& stream, Tensor chunk, CTensor full) override {
    scatter_sum(stream, chunk, full, true);
  }
  void reduce_scatter(Stream& stream, Tensor chunk, CTensor full) override {
    scatter_sum(stream, chunk, full, false);
  }

  void all_reduce(Stream& stream, Tensor x) override {
    count_reduce(x.bytes(), 2);
    const Counted counted(*this, stream, sum_all);
    in_pieces(x, slot_bytes(), [&](Tensor piece) {
      const CTensor given = piece;
      exchange_parts(stream, sum_all, piece.dtype, piece.count(), [&](int) { return given; });
      sum(stream, piece, given, false);
    });
  }

  void broadcast(Stream& stream, Tensor x, int root) override {
    if (rank() == root) totals_.gather_bytes += static_cast<double>(x.bytes()) * (world_size() - 1);
    ++totals_.calls;
    if (x.bytes() == 0) return;
    const Counted counted(*this, stream, broadcast_call);
    check(nccl_.broadcast(x.data, x.data, x.bytes(), ncclUint8, root, comm_, native(stream)), broadcast_call);
  }

  void barrier(Stream& stream) override {
    ++totals_.calls;
    const Counted counted(*this, stream, barrier_call);
    const CTensor word{outbox_, DType::f32, {1}};
    exchange_parts(stream, barrier_call, DType::f32, 1, [&](int) { return word; });
  }

  void check_peers() override {
    if (failure_ == Failure::none) return;
    rethrow_gone();
    fail();
  }

 private:
  enum class Failure { none, gone, late, broken };

  /// Around a call: NCCL is this thread's, and a count in stream order is what the watching thread goes by.
  class Counted {
   public:
    Counted(Nccl& comm, Stream& stream, Call call) : lock_(comm.in_use_), comm_(comm), stream_(stream) {
      comm.check_peers();
      launch_begin_call(stream, comm.handshake_, call);
    }
    ~Counted() noexcept(false) {
      if (std::uncaught_exceptions() == 0) launch_end_call(stream_, comm_.handshake_);
    }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

   private:
    std::lock_guard<std::mutex> lock_;
    Nccl& comm_;
    Stream& stream_;
  };

  void connect() {
    ncclUniqueId id{};
    if (rank() == 0) check(nccl_.get_unique_id(&id), start);
    const std::string said = exchange({id.internal, rank() == 0 ? sizeof id.internal : 0}).at(0);
    if (said.size() != sizeof id.internal)
      throw Error(ErrorKind::internal, "rank 0 has sent no identifier of NCCL", place());
    std::memcpy(id.internal, said.data(), sizeof id.internal);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    check(nccl_.init_rank(&comm_, world_size(), id, rank(), &config), start);
  }

  /// Waits until NCCL has taken a call in. Throws at the deadline.
  void settle(Call call) {
    const auto begin = steady_clock::now();
    for (int64_t round = 0;; ++round) {
      ncclResult_t state = ncclSuccess;
      check_result(nccl_.async_error(comm_, &state));
      if (state == ncclSuccess) return;
      if (state != ncclInProgress) {
        broke(state);
        fail();
      }
      if (steady_clock::now() - begin > timeout_) {
        late_call_ = call;
        failure_ = Failure::late;
        abort();
        fail();
      }
      if (round < 1000) {
        std::this_thread::yield();
        continue;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      if (round % 1000 == 0 && someone_is_gone()) {
        failure_ = Failure::gone;
        abort();
        rethrow_gone();
      }
    }
  }
  void check(ncclResult_t result, Call call) {
    if (result == ncclInProgress) return settle(call);
    check_result(result);
  }
  void check_result(ncclResult_t result) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    broke(result);
    fail();
  }
  void broke(ncclResult_t result) {
    reason_ = nccl_.error_string(result);
    const char* more = nccl_.last_error(comm_);
    if (more && more[0] != '\0') reason_ += std::string(": ") + more;
    failure_ = Failure::broken;
    abort();
  }
  [[noreturn]] void fail() {
    if (failure_ == Failure::late) {
      std::vector<int> others;
      for (int r = 0; r < world_size(); ++r) {
        if (r != rank()) others.push_back(r);
      }
      const Error error = peers_missing(others, call_names.at(late_call_), timeout_, place());
      if (others.size() == 1) throw Error(error);
      throw Error(error.kind(), "one of " + std::string(error.what()), error.where(), error.fix());
    }
    throw Error(ErrorKind::distributed, "NCCL: " + reason_, place(),
                "see the messages of the other ranks, and NCCL's own with NCCL_DEBUG=INFO");
  }

  /// The watching thread's: true when there is nothing more to look at.
  bool look() {
    const std::unique_lock use(in_use_, std::try_to_lock);
    if (!use.owns_lock()) return false;  // whoever is in there looks by itself
    if (failure_ != Failure::none) return true;
    if (someone_is_gone()) {
      failure_ = Failure::gone;
      abort();
      return true;
    }
    ncclResult_t state = ncclSuccess;
    if (nccl_.async_error(comm_, &state) == ncclSuccess && state != ncclSuccess && state != ncclInProgress) {
      broke(state);
      return true;
    }
    const uint64_t begun = const_cast<volatile uint64_t&>(report_->calls_begun);
    const uint64_t ended = const_cast<volatile uint64_t&>(report_->calls_ended);
    const auto now = steady_clock::now();
    if (begun != watched_call_ || begun == ended) {
      watched_call_ = begun;
      watched_since_ = now;
    } else if (now - watched_since_ > timeout_) {
      late_call_ = const_cast<volatile uint32_t&>(report_->call);
      failure_ = Failure::late;
      abort();
      return true;
    }
    return false;
  }
  /// Called with in_use_ held, and never twice.
  void abort() {
    if (comm_) nccl_.abort(std::exchange(comm_, nullptr));
  }

  /// Every rank sends piece_for(rank) to each other and receives as much from each into staged().
  template <class F>
  void exchange_parts(Stream& stream, Call call, DType dtype, int64_t count, const F& piece_for) {
    const size_t bytes = static_cast<size_t>(count) * size_of(dtype);
    check_result(nccl_.group_start());
    for_others([&](int peer) {
      check_result(nccl_.send(piece_for(peer).data, bytes, ncclUint8, peer, comm_, native(stream)));
      check_result(
          nccl_.receive(staged(peer, dtype, count).data, bytes, ncclUint8, peer, comm_, native(stream)));
    });
    check(nccl_.group_end(), call);
  }
  /// to = (add: to +) the sum of the staged parts with `mine` in this rank's place. More parts than a kernel
  /// takes are added up in this rank's own slot.
  void sum(Stream& stream, Tensor to, CTensor mine, bool add) {
    std::vector<CTensor> parts;
    for (int r = 0; r < world_size(); ++r) {
      parts.push_back(mine);
      if (r != rank()) parts.back() = staged(r, mine.dtype, mine.count());
    }
    if (parts.size() <= max_peers) return launch_sum_parts(stream, to, parts, add);
    const Tensor total = staged(rank(), to.dtype, to.count());
    launch_sum_parts(stream, total, std::span(parts).first(max_peers), false);
    for (size_t r = max_peers; r < parts.size(); ++r)
      launch_sum_parts(stream, total, std::span(parts).subspan(r, 1), true);
    launch_sum_parts(stream, to, std::array<CTensor, 1>{total}, add);
  }
  void scatter_sum(Stream& stream, Tensor chunk, CTensor full, bool add) {
    DELTATUNE_ASSERT(full.count() == chunk.count() * world_size());
    count_reduce(full.bytes());
    if (chunk.bytes() == 0) return;
    const Counted counted(*this, stream, scatter);
    const auto most =
        static_cast<int64_t>(slot_bytes() / std::max(size_of(full.dtype), size_of(chunk.dtype)));
    for (int64_t begin = 0; begin < chunk.count(); begin += most) {
      const int64_t count = std::min(most, chunk.count() - begin);
      const auto part_of = [&](int r) { return full.slice(r * chunk.count() + begin, count); };
      exchange_parts(stream, scatter, full.dtype, count, part_of);
      sum(stream, chunk.slice(begin, count), part_of(rank()), add);
    }
  }

  const NcclFunctions& nccl_;
  ncclComm_t comm_ = nullptr;
  std::mutex in_use_;  ///< of NCCL
  std::atomic<Failure> failure_ = Failure::none;
  std::atomic<uint32_t> late_call_ = 0;
  std::string reason_;
  uint64_t watched_call_ = 0;
  steady_clock::time_point watched_since_ = steady_clock::now();
  std::unique_ptr<Watch> watch_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Device& device, std::unique_ptr<HostGroup> group,
                                                     const CommOptions& options) {
  if (!nccl_functions()) {
    throw Error(ErrorKind::resource, "no NCCL: " + nccl_library().why, "communication between GPUs",
                "install NCCL 2 (PyPI nvidia-nccl-cu13), or name its folder in DELTATUNE_CUDA_LIB_PATH");
  }
  return std::make_unique<Nccl>(device, std::move(group), options);
}

}  // namespace deltatune::cuda
