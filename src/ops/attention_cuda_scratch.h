// Scratch of the tensor-core attention kernels on the cuda target: host-only, so that planning reserves what
// a run takes. Every piece is rounded up to 256 bytes.
//
// A list of work has two counters, then 16 bytes for each chunk that the chunk table can hold.
#pragma once

#include <algorithm>
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

/// Most documents of a row that cuDNN's plans are made for.
inline constexpr int64_t cudnn_max_documents = 64;
/// Shortest maximum length of a plan.
inline constexpr int64_t cudnn_min_length = 1024;

/// The smallest power of two, at least `least`, that is not below n.
constexpr int64_t bucket_of(int64_t n, int64_t least) {
  int64_t size = least;
  while (size < n) size *= 2;
  return size;
}

/// Bytes of one table.
inline constexpr size_t cudnn_table_bytes =
    (static_cast<size_t>(cudnn_max_documents + 1) * sizeof(int64_t) + 255) / 256 * 256;

/// The pieces of one call of cuDNN, in order.
struct CudnnAttentionScratch {
  size_t tables;      ///< lengths and four lists of offsets
  size_t statistics;  ///< f32 [T, H]
  size_t workspace;   ///< the most that a plan may want
  size_t total() const { return tables + statistics + workspace; }
};
inline CudnnAttentionScratch attention_forward_cudnn_pieces(const AttentionShape& shape, int64_t tokens) {
  const size_t statistics = static_cast<size_t>(shape.query_heads * tokens) * sizeof(float);
  return {5 * cudnn_table_bytes, (statistics + 255) / 256 * 256, size_t{1} << 20};
}
inline size_t attention_forward_cudnn_scratch(const AttentionShape& shape, int64_t tokens) {
  return attention_forward_cudnn_pieces(shape, tokens).total();
}

}  // namespace deltatune
