// The memory that ranks with a GPU each exchange through, beside what the parameter store has: the same for a
// run and for its plan.
#pragma once

#include <cstddef>

#include "tensor/device.h"

namespace deltatune {

struct CommMemory {
  /// Of device memory, in this order: words that ranks tell each other by, what a rank gives to the others of
  /// a small tensor, and pieces of the others' large ones.
  static constexpr size_t flag_bytes = size_t{1} << 14;
  static constexpr size_t outbox_bytes = size_t{1} << 20;
  /// Each piece of a reduction waits for the end of a kernel that has the GPU to itself: few, large ones.
  static constexpr size_t staging_bytes = size_t{256} << 20;

  Buffer device;
  Buffer host;  ///< a page, pinned
};

/// Empty where it is not needed: for one rank, or on the CPU.
CommMemory allocate_comm_memory(Device& device, int world_size);

}  // namespace deltatune
