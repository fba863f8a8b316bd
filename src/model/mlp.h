// y = W_down (silu(W_gate x) * (W_up x)).
#pragma once

#include "model/layer.h"

namespace deltatune {

struct Mlp {
  struct Weights {
    CTensor gate_up_2FD, down_DF;
  };
  struct Grads {
    Tensor gate_up_2FD, down_DF;
  };
  struct Saved {
    Slot gate_up_T2F;
    Slot act_TF;
  };
  static Saved saved(SavedLayout&, int64_t intermediate_size);
  /// y_TD empty: up to what backward needs, without down_proj.
  static void forward(Stream&, const Weights&, CTensor x_TD, Tensor y_TD, const Saved&, Pass);
  /// Overwrites saved.gate_up with its gradient.
  static void backward(Stream&, const Weights&, const Grads&, CTensor x_TD, CTensor dy_TD, Tensor dx_TD,
                       const Saved&, const Row&);
};

}  // namespace deltatune
