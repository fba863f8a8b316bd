// The null table: one object that converts to any kernel and does nothing.
#include "ops/kernels.h"

namespace deltatune {
namespace {

struct Noop {
  template <class R, class... A>
  constexpr operator Fn<R(A...)>() const {  // NOLINT(google-explicit-constructor)
    return Fn<R(A...)>(+[](A...) -> R {});
  }
};

}  // namespace

const Kernels& null_kernels() {
  static constexpr Noop noop;
  static const Kernels table{
      .name = "null",
      .embedding_forward = noop,
      .embedding_backward = noop,
      .embedding_part_forward = noop,
      .embedding_part_backward = noop,
      .rmsnorm_forward = noop,
      .rmsnorm_backward = noop,
      .add_rmsnorm_forward = noop,
      .add_rmsnorm_backward = noop,
      .matmul = noop,
      .qk_norm_rope_forward = noop,
      .qk_norm_rope_backward = noop,
      .attention_forward = noop,
      .attention_backward = noop,
      .sigmoid_gate_forward = noop,
      .sigmoid_gate_backward = noop,
      .gdn_prologue_forward = noop,
      .gdn_prologue_backward = noop,
      .gated_delta_forward = noop,
      .gated_delta_backward = noop,
      .gated_rmsnorm_forward = noop,
      .gated_rmsnorm_backward = noop,
      .swiglu_forward = noop,
      .swiglu_backward = noop,
      .gather_rows = noop,
      .scatter_rows = noop,
      .cross_entropy = noop,
      .sum_squares = noop,
      .grad_scale = noop,
      .adamw = noop,
      .fill = noop,
      .fill_normal = noop,
      .cast = noop,
      .add = noop,
  };
  return table;
}

}  // namespace deltatune
