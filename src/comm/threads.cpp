// Threads: ranks that are threads of one process, for tests.
//
// A collective is two meetings of all ranks: after the first one every rank knows the others' buffers and
// reads what it needs of them; nobody leaves, and may write his buffer again, before the second. Collectives
// in stream order and those between hosts meet in different places, since they may be under way at one time.
// Deliberately not fast: one lock, and every rank computes what it wants itself.
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "base/format.h"
#include "comm/communicator.h"
#include "comm/ordered_sum.h"

namespace deltatune {
namespace {

using std::chrono::milliseconds;

struct Call {
  const char* kind = "";
  CTensor given;
  std::string_view text;
};

// One place where all ranks meet. A failure is for ever.
class Meeting {
 public:
  Meeting(int ranks, milliseconds timeout)
      : calls_(static_cast<size_t>(ranks)), here_(static_cast<size_t>(ranks)), timeout_(timeout) {}

  /// Returns when all ranks have called it; what they gave is then in calls() until the second meeting.
  void enter(int rank, const Call& call, const std::string& place) {
    {
      const std::lock_guard lock(mutex_);
      calls_[static_cast<size_t>(rank)] = call;
    }
    meet(rank, call.kind, place);
    for (const Call& other : calls_) {
      if (std::strcmp(other.kind, call.kind) == 0 && other.given.count() == call.given.count() &&
          other.given.dtype == call.given.dtype)
        continue;
      fail(Error(ErrorKind::internal, format("ranks disagree: {} meets {}", call.kind, other.kind), place));
    }
  }
  void leave(int rank, const Call& call, const std::string& place) { meet(rank, call.kind, place); }
  const std::vector<Call>& calls() const { return calls_; }

  /// Everyone who waits, or will, gets this error, but those who have it already.
  void abandon(const Error& error) noexcept {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
    changed_.notify_all();
  }

 private:
  void meet(int rank, const char* kind, const std::string& place) {
    std::unique_lock lock(mutex_);
    if (failure_) throw seen_from(place);
    here_[static_cast<size_t>(rank)] = true;
    if (++count_ == here_.size()) {
      count_ = 0;
      here_.assign(here_.size(), false);
      ++generation_;
      changed_.notify_all();
      return;
    }
    const uint64_t mine = generation_;
    const bool in_time =
        changed_.wait_for(lock, timeout_, [&] { return generation_ != mine || failure_.has_value(); });
    if (generation_ != mine) return;
    if (!in_time) {
      std::vector<int> missing;
      for (size_t r = 0; r < here_.size(); ++r) {
        if (!here_[r]) missing.push_back(static_cast<int>(r));
      }
      failure_ = peers_missing(missing, kind, timeout_, place);
      changed_.notify_all();
    }
    throw seen_from(place);
  }
  [[noreturn]] void fail(const Error& error) {
    abandon(error);
    throw error;
  }
  // The failure with the place of the rank that meets it.
  Error seen_from(const std::string& place) const {
    return Error(failure_->kind(), failure_->what(), place, failure_->fix());
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Call> calls_;
  std::vector<bool> here_;
  size_t count_ = 0;
  uint64_t generation_ = 0;
  std::optional<Error> failure_;
  milliseconds timeout_;
};

struct World {
  World(int ranks, milliseconds timeout) : streams(ranks, timeout), hosts(ranks, timeout) {}
  Meeting streams, hosts;
};

class Threads : public Communicator {
 public:
  Threads(std::shared_ptr<World> world, int rank, int world_size)
      : world_(std::move(world)), rank_(rank), world_size_(world_size) {}
  ~Threads() override {
    const Error left(ErrorKind::distributed, format("rank {} has left the run", rank_), "",
                     "see the message of that rank; the last checkpoint is kept");
    world_->streams.abandon(left);
    world_->hosts.abandon(left);
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  void all_gather(Stream& stream, Tensor full, CTensor chunk) override {
    DELTATUNE_ASSERT(full.count() == chunk.count() * world_size_ && full.dtype == chunk.dtype);
    count_gather(full.bytes());
    queue(stream, {"all_gather", chunk, {}}, [full](const std::vector<Call>& calls) {
      std::byte* to = full.data;
      for (const Call& call : calls) {
        if (call.given.bytes() > 0 && to != call.given.data)
          std::memcpy(to, call.given.data, call.given.bytes());
        to += call.given.bytes();
      }
    });
  }

  void reduce_scatter_add(Stream& stream, Tensor chunk, CTensor full) override {
    scatter_sum(stream, chunk, full, "reduce_scatter_add", add_ordered);
  }
  void reduce_scatter(Stream& stream, Tensor chunk, CTensor full) override {
    scatter_sum(stream, chunk, full, "reduce_scatter", sum_ordered);
  }

  void all_reduce(Stream& stream, Tensor x) override {
    count_reduce(x.bytes(), 2);
    const Call call{"all_reduce", x, {}};
    stream.run([this, x, call, at = place()] {
      Meeting& meeting = world_->streams;
      meeting.enter(rank_, call, at);
      std::vector<CTensor> parts;
      for (const Call& other : meeting.calls()) parts.push_back(other.given);
      std::vector<std::byte> sum(x.bytes());
      sum_ordered({sum.data(), x.dtype, x.shape}, parts);
      meeting.leave(rank_, call, at);
      if (!sum.empty()) std::memcpy(x.data, sum.data(), sum.size());
    });
  }

  void broadcast(Stream& stream, Tensor x, int root) override {
    if (rank_ == root) totals_.gather_bytes += static_cast<double>(x.bytes()) * (world_size_ - 1);
    ++totals_.calls;
    queue(stream, {"broadcast", x, {}}, [x, root](const std::vector<Call>& calls) {
      const CTensor from = calls[static_cast<size_t>(root)].given;
      if (from.data != x.data && x.bytes() > 0) std::memcpy(x.data, from.data, x.bytes());
    });
  }

  void barrier(Stream& stream) override {
    ++totals_.calls;
    queue(stream, {"barrier", {}, {}}, [](const std::vector<Call>&) {});
  }

  std::vector<std::string> exchange(std::string_view mine) override {
    std::vector<std::string> out;
    const Call call{"exchange", {}, mine};
    const std::string at = place();
    world_->hosts.enter(rank_, call, at);
    for (const Call& other : world_->hosts.calls()) out.emplace_back(other.text);
    world_->hosts.leave(rank_, call, at);
    return out;
  }
  std::vector<std::string> collect(std::string_view mine) override {
    std::vector<std::string> out = exchange(mine);
    if (rank_ != 0) out.clear();
    return out;
  }

 private:
  using Sum = void (*)(Tensor, std::span<const CTensor>);
  void scatter_sum(Stream& stream, Tensor chunk, CTensor full, const char* name, Sum sum) {
    DELTATUNE_ASSERT(full.count() == chunk.count() * world_size_);
    count_reduce(full.bytes());
    queue(stream, {name, full, {}}, [chunk, sum, rank = rank_](const std::vector<Call>& calls) {
      std::vector<CTensor> parts;
      for (const Call& call : calls) parts.push_back(call.given.slice(rank * chunk.count(), chunk.count()));
      sum(chunk, parts);
    });
  }
  template <class F>
  void queue(Stream& stream, const Call& call, F&& take) {
    stream.run([this, call, take = std::forward<F>(take), at = place()] {
      world_->streams.enter(rank_, call, at);
      take(world_->streams.calls());
      world_->streams.leave(rank_, call, at);
    });
  }

  std::shared_ptr<World> world_;
  int rank_;
  int world_size_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_threads_communicators(int world_size, milliseconds timeout) {
  DELTATUNE_ASSERT(world_size >= 1);
  const auto world = std::make_shared<World>(world_size, timeout);
  std::vector<std::unique_ptr<Communicator>> out;
  for (int rank = 0; rank < world_size; ++rank)
    out.push_back(std::make_unique<Threads>(world, rank, world_size));
  return out;
}

}  // namespace deltatune
