// The cpu table: every row filled, or it does not compile.
#include "cpu/cpu_ops.h"

namespace deltatune {

const Kernels& cpu_kernels() {
  static const Kernels table{
      .name = "cpu",
      .embedding_forward = cpu::embedding_forward,
      .embedding_backward = cpu::embedding_backward,
      .embedding_part_forward = cpu::embedding_part_forward,
      .embedding_part_backward = cpu::embedding_part_backward,
      .rmsnorm_forward = cpu::rmsnorm_forward,
      .rmsnorm_backward = cpu::rmsnorm_backward,
      .add_rmsnorm_forward = cpu::add_rmsnorm_forward,
      .add_rmsnorm_backward = cpu::add_rmsnorm_backward,
      .matmul = cpu::matmul,
      .qk_norm_rope_forward = cpu::qk_norm_rope_forward,
      .qk_norm_rope_backward = cpu::qk_norm_rope_backward,
      .attention_forward = cpu::attention_forward,
      .attention_backward = cpu::attention_backward,
      .sigmoid_gate_forward = cpu::sigmoid_gate_forward,
      .sigmoid_gate_backward = cpu::sigmoid_gate_backward,
      .gdn_prologue_forward = cpu::gdn_prologue_forward,
      .gdn_prologue_backward = cpu::gdn_prologue_backward,
      .gated_delta_forward = cpu::gated_delta_forward,
      .gated_delta_backward = cpu::gated_delta_backward,
      .gated_rmsnorm_forward = cpu::gated_rmsnorm_forward,
      .gated_rmsnorm_backward = cpu::gated_rmsnorm_backward,
      .swiglu_forward = cpu::swiglu_forward,
      .swiglu_backward = cpu::swiglu_backward,
      .gather_rows = cpu::gather_rows,
      .scatter_rows = cpu::scatter_rows,
      .cross_entropy = cpu::cross_entropy,
      .sum_squares = cpu::sum_squares,
      .grad_scale = cpu::grad_scale,
      .adamw = cpu::adamw,
      .fill = cpu::fill,
      .fill_normal = cpu::fill_normal,
      .cast = cpu::cast,
      .add = cpu::add,
  };
  return table;
}

}  // namespace deltatune
