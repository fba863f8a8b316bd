// Scratch of the cpu kernels of Gated DeltaNet, as host-only arithmetic: op wrapper, kernel and `plan` call
// the same functions, so a plan made without the machine reserves exactly what a run takes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"

namespace deltatune {

/// How the cpu kernels cut their work. None of it shows in the results but through the order of sums.
struct GdnTile {
  static constexpr int64_t panel = 32;          ///< columns of the state that are walked together
  static constexpr int64_t rows = 8;            ///< key_dim is padded to a multiple of this
  static constexpr int64_t tokens_in_sum = 64;  ///< sums over tokens: first inside blocks, then over blocks
};

inline int64_t gdn_padded(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}
inline int64_t gdn_panels(const GdnShape& shape) {
  return (shape.value_dim + GdnTile::panel - 1) / GdnTile::panel;
}

/// Elements (compute dtype) of scratch of one worker of each cpu kernel, a multiple of 64.
inline int64_t gdn_prologue_forward_worker(const GdnShape& shape) {
  return gdn_padded(shape.channels(), 64);
}
inline int64_t gdn_prologue_backward_worker(const GdnShape& shape) {
  return gdn_padded((4 * shape.conv_width + 1) * std::max(shape.key_dim, shape.value_dim), 64);
}
inline int64_t gated_delta_forward_worker(const GdnShape& shape) {
  return gdn_padded(gdn_padded(shape.key_dim, GdnTile::rows) * (GdnTile::panel + 2), 64);
}
inline int64_t gated_delta_backward_worker(const GdnShape& shape) {
  const int64_t key_rows = gdn_padded(shape.key_dim, GdnTile::rows);
  const int64_t states = (gdn_chunk + 1 + shape.ratio() * gdn_panels(shape)) * key_rows * GdnTile::panel;
  return states + gdn_chunk * (4 * key_rows + 3 * GdnTile::panel + 4);
}

/// Bytes of Stream::scratch that the cpu kernel of each row uses, for `threads` pool threads; `compute` is
/// the compute dtype. Host-only arithmetic: `plan` gets the same bytes as a run.
inline size_t gdn_prologue_forward_scratch(const GdnShape& shape, DType compute, int threads) {
  const int64_t weights = gdn_padded(shape.conv_width * shape.channels(), 64);
  return static_cast<size_t>(weights + threads * gdn_prologue_forward_worker(shape)) * size_of(compute);
}
inline size_t gdn_prologue_backward_scratch(const GdnShape& shape, DType compute, int threads) {
  return static_cast<size_t>(threads * gdn_prologue_backward_worker(shape)) * size_of(compute);
}
inline size_t gated_delta_forward_scratch(const GdnShape& shape, DType compute, int threads) {
  return static_cast<size_t>(threads * gated_delta_forward_worker(shape)) * size_of(compute);
}
inline size_t gated_delta_backward_scratch(const GdnShape& shape, DType compute, int threads) {
  return static_cast<size_t>(threads * gated_delta_backward_worker(shape)) * size_of(compute);
}
inline size_t gated_rmsnorm_backward_scratch(const GdnShape& shape, DType compute, int64_t tokens) {
  const int64_t blocks = (tokens + GdnTile::tokens_in_sum - 1) / GdnTile::tokens_in_sum;
  return static_cast<size_t>(blocks * shape.value_dim) * size_of(compute);
}

}  // namespace deltatune
