// Names of the ops.
#include "ops/op.h"

#include <array>

namespace deltatune {

const char* name_of(Op op) {
  static constexpr std::array<const char*, static_cast<size_t>(Op::count)> names = {
      "embedding_forward",
      "embedding_backward",
      "rmsnorm_forward",
      "rmsnorm_backward",
      "add_rmsnorm_forward",
      "add_rmsnorm_backward",
      "matmul",
      "qk_norm_rope_forward",
      "qk_norm_rope_backward",
      "attention_forward",
      "attention_backward",
      "sigmoid_gate_forward",
      "sigmoid_gate_backward",
      "gdn_prologue_forward",
      "gdn_prologue_backward",
      "gated_delta_forward",
      "gated_delta_backward",
      "gated_rmsnorm_forward",
      "gated_rmsnorm_backward",
      "swiglu_forward",
      "swiglu_backward",
      "gather_rows",
      "scatter_rows",
      "cross_entropy",
      "sum_squares",
      "grad_scale",
      "adamw",
      "fill",
      "fill_normal",
      "cast",
      "add",
  };
  return names[static_cast<size_t>(op)];
}

}  // namespace deltatune
