// Communicator: collectives between the ranks of a run, in stream order.
//
// For one world size the order of every reduction is fixed, so results repeat bit for bit. All ranks make the
// same calls in the same order. Every call has a deadline: a peer that does not come is Error{distributed} on
// all ranks that wait for it, never a hang. Every implementation counts the bytes it moves; Null only counts,
// which is how `plan` knows them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace deltatune {

/// Bytes that one rank sends, by kind of collective, and the number of calls.
struct CommTotals {
  double gather_bytes = 0;
  double reduce_bytes = 0;
  int64_t calls = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  /// full = the chunks of all ranks in rank order; full.count() == world_size * chunk.count(). The chunk may
  /// lie in `full`, at its place. It must not be written before the next collective of this communicator.
  virtual void all_gather(Stream&, Tensor full, CTensor chunk) = 0;
  /// chunk += this rank's part of the sum over ranks of `full` (summed in rank order, in chunk's dtype).
  virtual void reduce_scatter_add(Stream&, Tensor chunk, CTensor full) = 0;
  /// chunk = the same sum.
  virtual void reduce_scatter(Stream&, Tensor chunk, CTensor full) = 0;
  /// x = sum over ranks, in rank order; f32 or f64.
  virtual void all_reduce(Stream&, Tensor x) = 0;
  /// x = x of rank `root`.
  virtual void broadcast(Stream&, Tensor x, int root) = 0;
  /// Work behind it starts when all ranks have come this far.
  virtual void barrier(Stream&) = 0;

  /// What every rank gives, in rank order, on every rank. Between hosts, not in stream order: a call of the
  /// one thread that runs the rank, which returns when all ranks have made it.
  virtual std::vector<std::string> exchange(std::string_view mine) = 0;
  /// The same, but only rank 0 gets it; the others get nothing.
  virtual std::vector<std::string> collect(std::string_view mine) = 0;

  /// Throws when a collective of an earlier call is known to have failed; waits for nothing.
  virtual void check_peers() {}
  /// Around work of another stream that waits for a collective: what lies between them is time that
  /// communication cost. Where the machine can measure it without being held up.
  virtual void begin_wait(Stream&) {}
  virtual void end_wait(Stream&) {}
  /// Seconds of all such waits whose end is known by now; below 0: not measured.
  virtual double waited_s() const { return -1; }

  /// Where the rank is, for messages about peers. `phase` is a literal.
  void note(int64_t step, const char* phase) {
    step_ = step;
    phase_ = phase;
  }
  /// "rank 1, step 12, backward".
  std::string place() const;

  const CommTotals& totals() const { return totals_; }

 protected:
  /// Bytes that a rank sends of `bytes` in one half of an all-reduce: to every other rank its part.
  double share_of(size_t bytes) const {
    return static_cast<double>(bytes) * static_cast<double>(world_size() - 1) / world_size();
  }
  void count_gather(size_t bytes) {
    totals_.gather_bytes += share_of(bytes);
    ++totals_.calls;
  }
  void count_reduce(size_t bytes, int halves = 1) {
    totals_.reduce_bytes += halves * share_of(bytes);
    ++totals_.calls;
  }

  CommTotals totals_;

 private:
  int64_t step_ = 0;
  const char* phase_ = "start";
};

/// "ranks 1 and 3 did not take part in all_gather within 30 s"; where: the place of the rank that says so.
Error peers_missing(const std::vector<int>& ranks, const char* call, std::chrono::milliseconds waited,
                    const std::string& place);
/// "rank 2", "ranks 1 and 3", "ranks 1, 2 and 5".
std::string name_ranks(const std::vector<int>& ranks);

/// One rank: nothing to exchange. all_gather and reduce_scatter are bugs here (the store keeps whole
/// groups).
std::unique_ptr<Communicator> make_solo_communicator();
/// Rank 0 of `world_size` ranks that are not there; counts bytes. For the null device.
std::unique_ptr<Communicator> make_null_communicator(int world_size);
/// The ranks of a world that are threads of this process (tests): one communicator each, in rank order. Any
/// kind of CPU stream. A communicator that is destroyed has left: whoever waits for it gets an Error at once.
std::vector<std::unique_ptr<Communicator>> make_threads_communicators(int world_size,
                                                                      std::chrono::milliseconds timeout);

}  // namespace deltatune
