// Scratch of the tensor-core attention kernels on the cuda target: host-only, so that planning reserves what
// a run takes. Every piece is rounded up to 256 bytes.
//
// A list of work has two counters, then 16 bytes for each chunk that the chunk table can hold.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"

namespace deltatune {

/// Bytes of one list of work for up to `max_chunks` chunks.
constexpr size_t attention_work_bytes(int64_t max_chunks) {
  return 256 + (static_cast<size_t>(max_chunks) * 16 + 255) / 256 * 256;
}

/// One list, of tiles of queries.
constexpr size_t attention_forward_mma_scratch(int64_t max_chunks) {
  return attention_work_bytes(max_chunks);
}

/// A list of tiles of queries and one of tiles of keys; the sum of do * o per query head and token.
constexpr size_t attention_backward_mma_scratch(const AttentionShape& shape, int64_t tokens,
                                                int64_t max_chunks) {
  return 2 * attention_work_bytes(max_chunks) +
         (static_cast<size_t>(shape.query_heads * tokens) * sizeof(float) + 255) / 256 * 256;
}

}  // namespace deltatune
