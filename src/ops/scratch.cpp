// Scratch bytes. Every piece is rounded up to 256 bytes, so that the pieces after it stay aligned.
#include "ops/scratch.h"

#include <algorithm>

#include "base/thread_pool.h"

namespace deltatune::scratch {
namespace {

size_t aligned(int64_t elements, size_t element_size) {
  return (static_cast<size_t>(elements) * element_size + 255) / 256 * 256;
}

size_t per_thread(size_t slot) {
  return slot * static_cast<size_t>(thread_count());
}

size_t compute_size(DType storage) {
  return size_of(compute_dtype(storage));
}

int64_t blocks(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

}  // namespace

int64_t cuda_blocks(int64_t count, int64_t size, int64_t limit) {
  const int64_t wanted = blocks(count, size);
  return wanted < limit ? wanted : limit;
}

int64_t cuda_norm_blocks(int64_t tokens) {
  return cuda_blocks(tokens, cuda_norm_block, cuda_partials);
}

size_t matmul_slot() {
  using Tile = MatmulTile;
  return aligned(Tile::rows * Tile::depth + Tile::columns * Tile::depth + Tile::rows * Tile::columns,
                 sizeof(float));
}

size_t attention_forward_slot(DType storage, const AttentionShape& shape) {
  using Tile = AttentionTile;
  // Widened q, k and v; the output; the scores.
  const int64_t rows = 2 * Tile::queries + 2 * Tile::keys;
  return aligned(rows * shape.head_dim + Tile::queries * Tile::keys, compute_size(storage));
}

size_t attention_backward_slot(DType storage, const AttentionShape& shape) {
  using Tile = AttentionTile;
  // Widened q, do, k and v; dk and dv, or dq; the scores and their gradient.
  const int64_t rows = 2 * Tile::queries + 4 * Tile::keys;
  return aligned(rows * shape.head_dim + 2 * Tile::queries * Tile::keys, compute_size(storage));
}

size_t rope_slot(DType storage, const AttentionShape& shape) {
  // Cosines and sines of one token, and one head's gradient.
  return aligned(shape.rotary_dim + shape.head_dim, compute_size(storage));
}

size_t matmul(Target target, DType storage) {
  if (target == Target::cuda) return cuda_library_cap;
  return storage == DType::bf16 ? per_thread(matmul_slot()) : 0;
}

size_t rmsnorm_backward(Target target, DType storage, int64_t tokens, int64_t width) {
  if (target != Target::cuda) return 0;
  // Partial sums of dw for each block of tokens.
  return aligned(cuda_norm_blocks(tokens) * width, compute_size(storage));
}

size_t qk_norm_rope_forward(Target target, DType storage, const AttentionShape& shape) {
  return target == Target::cuda ? 0 : per_thread(rope_slot(storage, shape));
}

size_t qk_norm_rope_backward(Target target, DType storage, int64_t tokens, const AttentionShape& shape) {
  if (target == Target::cuda)
    return aligned(2 * blocks(tokens, cuda_norm_block) * shape.head_dim, sizeof(float));
  // Partial sums of dq_norm and dk_norm for each block of tokens.
  return per_thread(rope_slot(storage, shape)) +
         aligned(2 * blocks(tokens, norm_block) * shape.head_dim, compute_size(storage));
}

size_t attention_forward(Target target, DType storage, const AttentionShape& shape) {
  return target == Target::cuda ? cuda_library_cap : per_thread(attention_forward_slot(storage, shape));
}

size_t attention_backward(Target target, DType storage, int64_t tokens, const AttentionShape& shape) {
  // Sum of do * o per query head and token.
  if (target == Target::cuda)
    return std::max(cuda_library_cap, aligned(tokens * shape.query_heads, sizeof(float)));
  return per_thread(attention_backward_slot(storage, shape)) +
         aligned(tokens * shape.query_heads, compute_size(storage));
}

size_t cross_entropy(Target, int64_t rows) {
  return aligned(rows, sizeof(double));
}

size_t sum_squares(Target target, int64_t count) {
  const int64_t sums = target == Target::cuda ? cuda_blocks(count, square_block, cuda_square_partials)
                                              : blocks(count, square_block);
  return aligned(sums, sizeof(double));
}

}  // namespace deltatune::scratch
