// Gated attention: one fused projection to q, gate, k and v; per-head zero-centred norms and partial rotary
// on q and k; causal attention inside each document; y = W_out (o * sigmoid(gate)).
#pragma once

#include "model/layer.h"

namespace deltatune {

struct Attention {
  struct Weights {
    CTensor qkv_ND, q_norm_K, k_norm_K, out_DN;
  };
  struct Grads {
    Tensor qkv_ND, q_norm_K, k_norm_K, out_DN;
  };
  struct Saved {
    Slot proj_TN;
    Slot q_THK, k_TGK, q_rstd_TH, k_rstd_TG;
    Slot o_THK, lse_HT;
    Slot y_THK;
  };
  static Saved saved(SavedLayout&, AttentionShape);
  /// y_TD empty: up to what backward needs, without out_proj.
  static void forward(Stream&, const Weights&, CTensor x_TD, Tensor y_TD, const Saved&, Pass, AttentionShape,
                      const Row&);
  static void backward(Stream&, const Weights&, const Grads&, CTensor x_TD, CTensor dy_TD, Tensor dx_TD,
                       const Saved&, AttentionShape, const Row&);
};

}  // namespace deltatune
