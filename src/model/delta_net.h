// Gated DeltaNet: one fused projection to q, k, v, z, b and a; short convolution, SiLU, l2 norms and gates;
// the gated delta rule; y = W_out (rmsnorm(o) w silu(z)). Everything stops at document boundaries.
#pragma once

#include "model/layer.h"

namespace deltatune {

struct DeltaNet {
  struct Weights {
    CTensor in_ND, conv_CW, A_log_H, dt_bias_H, norm_V, out_DN;
  };
  struct Grads {
    Tensor in_ND, conv_CW, A_log_H, dt_bias_H, norm_V, out_DN;
  };
  struct Saved {
    Slot proj_TN;
    Slot q_THK, k_THK, v_THV, g_TH, beta_TH, q_rstd_TH, k_rstd_TH;
    Slot o_THV, states_CHKV;
    Slot y_THV, rstd_TH;
  };
  /// max_chunks: the most chunks a row can have (ops/segments.h).
  static Saved saved(SavedLayout&, GdnShape, int64_t max_chunks);
  /// y_TD empty: up to what backward needs, without out_proj.
  static void forward(Stream&, const Weights&, CTensor x_TD, Tensor y_TD, const Saved&, Pass, GdnShape,
                      const Row&);
  static void backward(Stream&, const Weights&, const Grads&, CTensor x_TD, CTensor dy_TD, Tensor dx_TD,
                       const Saved&, GdnShape, const Row&);
};

}  // namespace deltatune
