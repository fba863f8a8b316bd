// Scratch bytes of each op as a function of its shape: host-only data, so that planning on the null device
// reserves exactly what a run takes. An op wrapper announces it, the kernel takes it; both call this.
//
// On the cpu target most scratch is one slot per thread of the pool. On the cuda target it is a cap: a kernel
// or library plan that wants more is not used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/kernels.h"

namespace deltatune::scratch {

/// Block sizes of the cpu matmul: results of 256 x 256 whose operands are widened 512 deep.
struct MatmulTile {
  static constexpr int64_t rows = 256;
  static constexpr int64_t columns = 256;
  static constexpr int64_t depth = 512;
};
/// Block sizes of the cpu attention.
struct AttentionTile {
  static constexpr int64_t queries = 64;
  static constexpr int64_t keys = 128;
};
/// Tokens whose contributions to a norm weight's gradient are summed first.
inline constexpr int64_t norm_block = 64;
/// The same in the cuda kernels.
inline constexpr int64_t cuda_norm_block = 16;
/// Elements summed first by sum_squares.
inline constexpr int64_t square_block = 4096;

inline constexpr size_t cuda_library_cap = size_t{32} << 20;  ///< GEMM and attention plans

/// On the cuda target: the most blocks of tokens that rmsnorm's sum over tokens is cut into, two for each
/// multiprocessor of an H100 or H200.
inline constexpr int64_t cuda_partials = 264;
/// The same for sum_squares, whose blocks have at least square_block elements.
inline constexpr int64_t cuda_square_partials = 1024;

/// Bytes of one thread's slot in the cpu kernel.
size_t matmul_slot();
size_t attention_forward_slot(DType storage, const AttentionShape& shape);
size_t attention_backward_slot(DType storage, const AttentionShape& shape);
size_t rope_slot(DType storage, const AttentionShape& shape);

/// Blocks that a sum over `count` terms is cut into on the cuda target: `size` terms or more each, `limit`
/// blocks at most.
int64_t cuda_blocks(int64_t count, int64_t size, int64_t limit);

/// The same for the gradient of rmsnorm's weight.
int64_t cuda_norm_blocks(int64_t tokens);

/// Bytes of the whole op; `storage` is the dtype of the activations.
size_t matmul(Target target, DType storage);
size_t rmsnorm_backward(Target target, DType storage, int64_t tokens, int64_t width);
size_t qk_norm_rope_forward(Target target, DType storage, const AttentionShape& shape);
size_t qk_norm_rope_backward(Target target, DType storage, int64_t tokens, const AttentionShape& shape);
size_t attention_forward(Target target, DType storage, const AttentionShape& shape);
size_t attention_backward(Target target, DType storage, int64_t tokens, const AttentionShape& shape);
size_t cross_entropy(Target target, int64_t rows);
size_t sum_squares(Target target, int64_t count);

}  // namespace deltatune::scratch
