// The cuda table: every row filled, or it does not compile.
#include "cuda/cuda_ops.h"
#include "cuda/matmul.h"

namespace deltatune::cuda {

const Kernels& cuda_kernels() {
  static const Kernels table{
      .name = "cuda",
      .embedding_forward = cuda::embedding_forward,
      .embedding_backward = cuda::embedding_backward,
      .rmsnorm_forward = cuda::rmsnorm_forward,
      .rmsnorm_backward = cuda::rmsnorm_backward,
      .add_rmsnorm_forward = cuda::add_rmsnorm_forward,
      .add_rmsnorm_backward = cuda::add_rmsnorm_backward,
      .matmul = cuda::matmul,
      .qk_norm_rope_forward = cuda::qk_norm_rope_forward,
      .qk_norm_rope_backward = cuda::qk_norm_rope_backward,
      .attention_forward = cuda::attention_forward,
      .attention_backward = cuda::attention_backward,
      .sigmoid_gate_forward = cuda::sigmoid_gate_forward,
      .sigmoid_gate_backward = cuda::sigmoid_gate_backward,
      .gdn_prologue_forward = cuda::gdn_prologue_forward,
      .gdn_prologue_backward = cuda::gdn_prologue_backward,
      .gated_delta_forward = cuda::gated_delta_forward,
      .gated_delta_backward = cuda::gated_delta_backward,
      .gated_rmsnorm_forward = cuda::gated_rmsnorm_forward,
      .gated_rmsnorm_backward = cuda::gated_rmsnorm_backward,
      .swiglu_forward = cuda::swiglu_forward,
      .swiglu_backward = cuda::swiglu_backward,
      .gather_rows = cuda::gather_rows,
      .scatter_rows = cuda::scatter_rows,
      .cross_entropy = cuda::cross_entropy,
      .sum_squares = cuda::sum_squares,
      .grad_scale = cuda::grad_scale,
      .adamw = cuda::adamw,
      .fill = cuda::fill,
      .cast = cuda::cast,
      .add = cuda::add,
  };
  return table;
}

const Kernels& plain_kernels() {
  static const Kernels table = [] {
    Kernels plain = cuda_kernels();
    plain.name = "cuda plain";
    plain.matmul = cuda::matmul_plain;
    return plain;
  }();
  return table;
}

}  // namespace deltatune::cuda
