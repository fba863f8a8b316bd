// Communicator: collectives between the ranks of a run, in stream order.
//
// For one world size the order of every reduction is fixed, so results repeat bit for bit. Every
// implementation counts the bytes it moves; Null only counts, which is how `plan` knows them.
#pragma once

#include <cstdint>
#include <memory>

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

  /// full = the chunks of all ranks in rank order; full.count() == world_size * chunk.count().
  virtual void all_gather(Stream&, Tensor full, CTensor chunk) = 0;
  /// chunk += this rank's part of the sum over ranks of `full` (summed in rank order, in chunk's dtype).
  virtual void reduce_scatter_add(Stream&, Tensor chunk, CTensor full) = 0;
  /// x = sum over ranks, in rank order; f32 or f64.
  virtual void all_reduce(Stream&, Tensor x) = 0;

  const CommTotals& totals() const { return totals_; }

 protected:
  CommTotals totals_;
};

/// One rank: nothing to exchange. all_gather and reduce_scatter_add are bugs here (the store keeps whole
/// groups).
std::unique_ptr<Communicator> make_solo_communicator();
/// Rank 0 of `world_size` ranks that are not there; counts bytes. For the null device.
std::unique_ptr<Communicator> make_null_communicator(int world_size);

}  // namespace deltatune
