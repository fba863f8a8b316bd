// Scratch of the cuda kernels of Gated DeltaNet, as host-only arithmetic: op wrapper, kernel and `plan`
// call the same functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"

namespace deltatune {

/// How the plain cuda kernels cut their work.
struct GdnCudaTile {
  static constexpr int64_t prologue_run = 64;  ///< tokens that a warp of gdn_prologue_backward walks
  static constexpr int64_t prologue_warps =
      4;                                    ///< such runs of a block, which makes one row of sums for dconv
  static constexpr int64_t bulk_run = 61;   ///< the same of gdn_prologue_backward_bulk: with the three tokens
  static constexpr int64_t bulk_warps = 4;  ///< after it eight groups of eight
  static constexpr int64_t gate_tokens = 64;  ///< the same for dA_log and ddt_bias
  static constexpr int64_t norm_tokens = 16;  ///< the same of gated_rmsnorm_backward
  static constexpr int64_t window = 32;       ///< chunks of gated_delta_backward in flight
};

/// Rows of partial sums of gdn_prologue_backward: [channels, W] for dconv, [2, Hv] for dA_log and ddt_bias.
inline int64_t gdn_prologue_cuda_blocks(int64_t tokens) {
  constexpr int64_t block = GdnCudaTile::prologue_run * GdnCudaTile::prologue_warps;
  return (tokens + block - 1) / block;
}
inline int64_t gdn_prologue_bulk_blocks(int64_t tokens) {
  constexpr int64_t block = GdnCudaTile::bulk_run * GdnCudaTile::bulk_warps;
  return (tokens + block - 1) / block;
}
inline int64_t gdn_gates_cuda_blocks(int64_t tokens) {
  return (tokens + GdnCudaTile::gate_tokens - 1) / GdnCudaTile::gate_tokens;
}
/// Elements of one chunk's states, [Hv, dk, dv].
inline int64_t gdn_state_elements(const GdnShape& shape) {
  return shape.value_heads * shape.key_dim * shape.value_dim;
}

inline size_t gdn_prologue_backward_scratch_of(const GdnShape& shape, int64_t tokens, int64_t blocks) {
  const int64_t conv = blocks * shape.channels() * shape.conv_width;
  const int64_t gates = gdn_gates_cuda_blocks(tokens) * 2 * shape.value_heads;
  return static_cast<size_t>(conv + gates) * sizeof(float);
}
inline size_t gdn_prologue_backward_cuda_scratch(const GdnShape& shape, int64_t tokens) {
  return gdn_prologue_backward_scratch_of(shape, tokens, gdn_prologue_cuda_blocks(tokens));
}
/// Enough for the plain kernel too, which takes rows that are not aligned.
inline size_t gdn_prologue_backward_bulk_scratch(const GdnShape& shape, int64_t tokens) {
  const int64_t blocks = gdn_prologue_bulk_blocks(tokens), plain = gdn_prologue_cuda_blocks(tokens);
  return gdn_prologue_backward_scratch_of(shape, tokens, blocks > plain ? blocks : plain);
}
/// Per window: the errors and dd of its tokens, R leaving each chunk, and two states carried from window to
/// window.
inline size_t gated_delta_backward_cuda_scratch(const GdnShape& shape) {
  const int64_t rows = 2 * GdnCudaTile::window * gdn_chunk * shape.values();
  return static_cast<size_t>(rows + (GdnCudaTile::window + 2) * gdn_state_elements(shape)) * sizeof(float);
}
/// What the tensor-core kernels of gated_delta_forward prepare for their scan, in bytes from the start of the
/// scratch: T [C, Hv, 64, 64] in bf16, q_i . k_j [C, Hk, 64, 64] in fp16, gates [C, Hv, 2, 64] in f32, the
/// order of documents in i32.
struct GdnForwardScratch {
  size_t inverse = 0, scores, gates, order, size;

  /// C chunks and S_max documents at most.
  GdnForwardScratch(const GdnShape& shape, int64_t num_chunks, int64_t max_documents) {
    const auto after = [](size_t start, int64_t bytes) {
      return start + (static_cast<size_t>(bytes) + 255) / 256 * 256;
    };
    constexpr int64_t square = gdn_chunk * gdn_chunk;
    scores = after(inverse, num_chunks * shape.value_heads * square * 2);
    gates = after(scores, num_chunks * shape.key_heads * square * 2);
    order = after(gates, num_chunks * shape.value_heads * 2 * gdn_chunk * 4);
    size = after(order, (4 * max_documents + 2) * 4);
  }
  size_t bytes() const { return size; }
};
/// Scratch of gated_delta_backward_mma: what it prepares as forward does, then Z [T, Hv, dv] and the gradient
/// of the state leaving each full chunk, [T / 64, Hv, dk, dv], both bf16.
struct GdnBackwardScratch {
  GdnForwardScratch prepared;
  size_t z, leaving, size;

  /// T tokens, C chunks and S_max documents at most.
  GdnBackwardScratch(const GdnShape& shape, int64_t tokens, int64_t num_chunks, int64_t max_documents)
      : prepared(shape, num_chunks, max_documents) {
    z = (prepared.bytes() + 255) / 256 * 256;
    leaving = z + (static_cast<size_t>(tokens * shape.values()) * 2 + 255) / 256 * 256;
    size = leaving + static_cast<size_t>(tokens / gdn_chunk * gdn_state_elements(shape)) * 2;
  }
  size_t bytes() const { return size; }
};
inline size_t gated_rmsnorm_backward_cuda_scratch(const GdnShape& shape, int64_t tokens) {
  const int64_t blocks = (tokens + GdnCudaTile::norm_tokens - 1) / GdnCudaTile::norm_tokens;
  return static_cast<size_t>(blocks * shape.value_dim) * sizeof(float);
}

}  // namespace deltatune
