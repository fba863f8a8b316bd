// Two allocations.
#include "comm/gpu_memory.h"

namespace deltatune {

CommMemory allocate_comm_memory(Device& device, int world_size) {
  CommMemory out;
  if (world_size == 1 || device.target() != Target::cuda) return out;
  constexpr size_t bytes = CommMemory::flag_bytes + CommMemory::outbox_bytes + CommMemory::staging_bytes;
  out.device = device.allocate(bytes, "exchange with other GPUs", "communication", Lifetime::run);
  out.host = device.allocate_staging(4096, "words of the communication", "communication");
  return out;
}

}  // namespace deltatune
