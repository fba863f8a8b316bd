// Scratch of the plain cuda kernels of Gated DeltaNet, as host-only arithmetic: op wrapper, kernel and `plan`
// call the same functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"

namespace deltatune {

/// How the plain cuda kernels cut their work.
struct GdnCudaTile {
  static constexpr int64_t prologue_tokens =
      64;                                     ///< tokens whose sums one block of gdn_prologue_backward makes
  static constexpr int64_t norm_tokens = 16;  ///< the same of gated_rmsnorm_backward
  static constexpr int64_t window = 32;       ///< chunks of gated_delta_backward in flight
};

/// Elements per block of tokens: dconv [channels, W], dA_log [Hv], ddt_bias [Hv].
inline int64_t gdn_prologue_cuda_sums(const GdnShape& shape) {
  return shape.channels() * shape.conv_width + 2 * shape.value_heads;
}
/// Elements of one chunk's states, [Hv, dk, dv].
inline int64_t gdn_state_elements(const GdnShape& shape) {
  return shape.value_heads * shape.key_dim * shape.value_dim;
}

inline size_t gdn_prologue_backward_cuda_scratch(const GdnShape& shape, int64_t tokens) {
  const int64_t blocks = (tokens + GdnCudaTile::prologue_tokens - 1) / GdnCudaTile::prologue_tokens;
  return static_cast<size_t>(blocks * gdn_prologue_cuda_sums(shape)) * sizeof(float);
}
/// Per window: the errors and dd of its tokens, R leaving each chunk, and two states carried from window to
/// window.
inline size_t gated_delta_backward_cuda_scratch(const GdnShape& shape) {
  const int64_t rows = 2 * GdnCudaTile::window * gdn_chunk * shape.values();
  return static_cast<size_t>(rows + (GdnCudaTile::window + 2) * gdn_state_elements(shape)) * sizeof(float);
}
inline size_t gated_rmsnorm_backward_cuda_scratch(const GdnShape& shape, int64_t tokens) {
  const int64_t blocks = (tokens + GdnCudaTile::norm_tokens - 1) / GdnCudaTile::norm_tokens;
  return static_cast<size_t>(blocks * shape.value_dim) * sizeof(float);
}

}  // namespace deltatune
