// What all layers share: slots for saved activations, and the row they work on.
//
// T tokens, D hidden size, F MLP width, N columns of a fused projection, H query heads, G kv heads, K head
// width, V value width, C chunks. A layer is Weights, Grads, Saved and two static functions next to each
// other. Saved names every tensor that backward needs; a SavedLayout decides for each whether it is kept from
// the first pass or computed again, into a slot that all blocks share, right before the block's backward.
// Recompute is forward called again: an op whose outputs are all kept is skipped.
#pragma once

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

/// Which saved activations are kept; what `recompute` chooses between.
struct Keep {
  bool gemm_outputs = false;  ///< fused projections, the residual after the mixer, gate_up
  bool mixer = false;         ///< q, k, v, gates, attention and delta-rule outputs and states
  bool cheap = false;         ///< norms' outputs, the SwiGLU product, statistics

  static constexpr Keep all() { return {true, true, true}; }
  static constexpr Keep outputs() { return {true, false, false}; }
  static constexpr Keep nothing() { return {}; }
};

/// Hands out slots: kept ones from one arena, the others from an arena that every block starts anew.
class SavedLayout {
 public:
  SavedLayout(Arena& kept, Arena& shared, Keep keep, DType storage, int64_t tokens)
      : kept_(kept), shared_(shared), keep_(keep), storage_(storage), tokens_(tokens) {}

  Slot gemm_output(Shape shape) { return take(keep_.gemm_outputs, storage_, shape); }
  Slot mixer(Shape shape) { return take(keep_.mixer, storage_, shape); }
  Slot mixer_statistic(Shape shape) { return take(keep_.mixer, compute_dtype(storage_), shape); }
  Slot cheap(Shape shape) { return take(keep_.cheap, storage_, shape); }
  Slot statistic(Shape shape) { return take(keep_.cheap, compute_dtype(storage_), shape); }
  /// Always kept.
  Tensor kept(Shape shape) { return kept_.take(storage_, shape); }
  int64_t tokens() const { return tokens_; }

 private:
  Slot take(bool keep, DType dtype, Shape shape) {
    return {(keep ? kept_ : shared_).take(dtype, shape), keep};
  }
  Arena& kept_;
  Arena& shared_;
  Keep keep_;
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
