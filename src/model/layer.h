// What all layers share: slots for saved activations, and the row they work on.
//
// T tokens, D hidden size, F MLP width, N columns of a fused projection, H query heads, G kv heads, K head
// width, V value width, C chunks. A layer is Weights, Grads, Saved and two static functions next to each
// other. Saved names every tensor that backward needs; a SavedLayout decides for each whether it is kept from
// the first pass or computed again, into a slot that all blocks share, right before the block's backward.
// Recompute is forward called again: an op whose outputs are all kept is skipped.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "ops/kernels.h"
#include "ops/segments.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace deltatune {

enum class Pass { first, recompute };

/// A saved activation: its place, and whether it survives from the first pass to backward.
struct Slot {
  Tensor t;
  bool kept = false;

  /// An op all of whose outputs are kept has nothing to do when recomputing.
  bool skip(Pass pass) const { return pass == Pass::recompute && kept; }
  /// Where a side output (something only backward reads) goes in this pass; empty: not wanted.
  Tensor side(Pass pass) const { return (pass == Pass::first) == kept ? t : Tensor{}; }
};

/// The saved activations of a block, by the op that makes them: what is kept or computed again as one.
enum class SavedPart : uint8_t {
  norm1,       ///< the first norm's output and statistic
  projection,  ///< the mixer's fused projection
  prologue,    ///< q, k (and v, gates) as attention or the delta rule takes them, with their statistics
  mixer,       ///< what attention or the delta rule gives, with log-sum-exp or chunk states
  gated,       ///< the same after its gate (and norm)
  mid,         ///< the residual after the mixer: with it out_proj is not computed again
  norm2,       ///< the second norm's output and statistic
  gate_up,     ///< the MLP's first projection
  act,         ///< the SwiGLU product
  count
};
/// "norm1", ...: for the plan.
const char* name_of(SavedPart part);

/// A set of parts.
class SavedParts {
 public:
  constexpr SavedParts() = default;
  constexpr SavedParts(std::initializer_list<SavedPart> parts) {
    for (const SavedPart part : parts) add(part);
  }
  static constexpr SavedParts all() {
    SavedParts out;
    for (int i = 0; i < static_cast<int>(SavedPart::count); ++i) out.add(static_cast<SavedPart>(i));
    return out;
  }
  constexpr bool has(SavedPart part) const { return (bits_ >> static_cast<int>(part) & 1u) != 0; }
  constexpr void add(SavedPart part) { bits_ |= 1u << static_cast<int>(part); }
  constexpr bool operator==(const SavedParts&) const = default;

 private:
  uint32_t bits_ = 0;
};

/// Which parts each block keeps; what `recompute` chooses between.
struct Keep {
  SavedParts every;                ///< of blocks that `blocks` has no entry for
  std::vector<SavedParts> blocks;  ///< per block; empty: all as `every`

  const SavedParts& of(int64_t block) const {
    const auto i = static_cast<size_t>(block);
    return i < blocks.size() ? blocks[i] : every;
  }
  static Keep all() { return {SavedParts::all(), {}}; }
  /// The outputs of matrix products, and the residual that out_proj's is part of.
  static Keep outputs() { return {{SavedPart::projection, SavedPart::mid, SavedPart::gate_up}, {}}; }
  static Keep nothing() { return {}; }
};

/// Hands out slots: kept ones from one arena, the others from an arena that every block starts anew.
class SavedLayout {
 public:
  SavedLayout(Arena& kept, Arena& shared, SavedParts keep, DType storage, int64_t tokens)
      : kept_(kept), shared_(shared), keep_(keep), storage_(storage), tokens_(tokens) {}

  Slot activation(SavedPart part, Shape shape) { return take(part, storage_, shape); }
  /// In compute dtype.
  Slot statistic(SavedPart part, Shape shape) { return take(part, compute_dtype(storage_), shape); }
  /// Always kept.
  Tensor kept(Shape shape) { return kept_.take(storage_, shape); }
  int64_t tokens() const { return tokens_; }

 private:
  Slot take(SavedPart part, DType dtype, Shape shape) {
    const bool keep = keep_.has(part);
    return {(keep ? kept_ : shared_).take(dtype, shape), keep};
  }
  Arena& kept_;
  Arena& shared_;
  SavedParts keep_;
  DType storage_;
  int64_t tokens_;
};

/// What a layer needs to know of the packed row, besides its own tensors.
struct Row {
  Segments segments;
  CTensor inv_freq;   ///< f32 [rotary/2]
  float eps = 1e-6f;  ///< of all RMS norms
  DType storage = DType::f32;
  Arena* work = nullptr;  ///< temporaries of one call, given back at its end
  /// Gradients that are one matrix product are written (=), all others are added to (+=).
  bool fresh_gradients = false;

  /// The product that gives a weight's gradient: dy^T x.
  MatmulSpec gradient_product() const { return {MatmulLayout::tn, !fresh_gradients}; }
};

}  // namespace deltatune
