// Names to functions. The plain table is written out, so that an op without a kernel does not compile.
#include "cuda/kernel_functions.h"

#include <array>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cuda/cuda_ops.h"
#include "cuda/matmul.h"
#include "ops/kernel_list.h"

namespace deltatune::cuda {
namespace {

constexpr KernelFunction functions[] = {
    {"embedding_forward.plain", [](Kernels& table) { table.embedding_forward = embedding_forward; }},
    {"embedding_backward.plain", [](Kernels& table) { table.embedding_backward = embedding_backward; }},
    {"embedding_part_forward.plain",
     [](Kernels& table) { table.embedding_part_forward = embedding_part_forward; }},
    {"embedding_part_backward.plain",
     [](Kernels& table) { table.embedding_part_backward = embedding_part_backward; }},
    {"rmsnorm_forward.plain", [](Kernels& table) { table.rmsnorm_forward = rmsnorm_forward; }},
    {"rmsnorm_backward.plain", [](Kernels& table) { table.rmsnorm_backward = rmsnorm_backward; }},
    {"add_rmsnorm_forward.plain", [](Kernels& table) { table.add_rmsnorm_forward = add_rmsnorm_forward; }},
    {"add_rmsnorm_backward.plain", [](Kernels& table) { table.add_rmsnorm_backward = add_rmsnorm_backward; }},
    {"matmul.cublaslt", [](Kernels& table) { table.matmul = matmul; }},
    {"matmul.plain", [](Kernels& table) { table.matmul = matmul_plain; }},
    {"qk_norm_rope_forward.spread",
     [](Kernels& table) { table.qk_norm_rope_forward = qk_norm_rope_forward_spread; }},
    {"qk_norm_rope_forward.plain", [](Kernels& table) { table.qk_norm_rope_forward = qk_norm_rope_forward; }},
    {"qk_norm_rope_backward.spread",
     [](Kernels& table) { table.qk_norm_rope_backward = qk_norm_rope_backward_spread; }},
    {"qk_norm_rope_backward.plain",
     [](Kernels& table) { table.qk_norm_rope_backward = qk_norm_rope_backward; }},
    {"attention_forward.cudnn", [](Kernels& table) { table.attention_forward = attention_forward_cudnn; }},
    {"attention_forward.wgmma", [](Kernels& table) { table.attention_forward = attention_forward_wgmma; }},
    {"attention_forward.mma", [](Kernels& table) { table.attention_forward = attention_forward_mma; }},
    {"attention_forward.plain", [](Kernels& table) { table.attention_forward = attention_forward; }},
    {"attention_backward.wgmma", [](Kernels& table) { table.attention_backward = attention_backward_wgmma; }},
    {"attention_backward.mma", [](Kernels& table) { table.attention_backward = attention_backward_mma; }},
    {"attention_backward.plain", [](Kernels& table) { table.attention_backward = attention_backward; }},
    {"sigmoid_gate_forward.plain", [](Kernels& table) { table.sigmoid_gate_forward = sigmoid_gate_forward; }},
    {"sigmoid_gate_backward.plain",
     [](Kernels& table) { table.sigmoid_gate_backward = sigmoid_gate_backward; }},
    {"gdn_prologue_forward.bulk",
     [](Kernels& table) { table.gdn_prologue_forward = gdn_prologue_forward_bulk; }},
    {"gdn_prologue_forward.plain", [](Kernels& table) { table.gdn_prologue_forward = gdn_prologue_forward; }},
    {"gdn_prologue_backward.bulk",
     [](Kernels& table) { table.gdn_prologue_backward = gdn_prologue_backward_bulk; }},
    {"gdn_prologue_backward.plain",
     [](Kernels& table) { table.gdn_prologue_backward = gdn_prologue_backward; }},
    {"gated_delta_forward.mma", [](Kernels& table) { table.gated_delta_forward = gated_delta_forward_mma; }},
    {"gated_delta_forward.plain", [](Kernels& table) { table.gated_delta_forward = gated_delta_forward; }},
    {"gated_delta_backward.mma",
     [](Kernels& table) { table.gated_delta_backward = gated_delta_backward_mma; }},
    {"gated_delta_backward.plain", [](Kernels& table) { table.gated_delta_backward = gated_delta_backward; }},
    {"gated_rmsnorm_forward.plain",
     [](Kernels& table) { table.gated_rmsnorm_forward = gated_rmsnorm_forward; }},
    {"gated_rmsnorm_backward.plain",
     [](Kernels& table) { table.gated_rmsnorm_backward = gated_rmsnorm_backward; }},
    {"swiglu_forward.plain", [](Kernels& table) { table.swiglu_forward = swiglu_forward; }},
    {"swiglu_backward.plain", [](Kernels& table) { table.swiglu_backward = swiglu_backward; }},
    {"gather_rows.plain", [](Kernels& table) { table.gather_rows = gather_rows; }},
    {"scatter_rows.plain", [](Kernels& table) { table.scatter_rows = scatter_rows; }},
    {"cross_entropy.plain", [](Kernels& table) { table.cross_entropy = cross_entropy; }},
    {"sum_squares.plain", [](Kernels& table) { table.sum_squares = sum_squares; }},
    {"grad_scale.plain", [](Kernels& table) { table.grad_scale = grad_scale; }},
    {"adamw.plain", [](Kernels& table) { table.adamw = adamw; }},
    {"fill.plain", [](Kernels& table) { table.fill = fill; }},
    {"fill_normal.plain", [](Kernels& table) { table.fill_normal = fill_normal; }},
    {"cast.plain", [](Kernels& table) { table.cast = cast; }},
    {"add.plain", [](Kernels& table) { table.add = add; }},
};

const Kernels& plain_table() {
  static const Kernels table{
      .name = "cuda",
      .embedding_forward = cuda::embedding_forward,
      .embedding_backward = cuda::embedding_backward,
      .embedding_part_forward = cuda::embedding_part_forward,
      .embedding_part_backward = cuda::embedding_part_backward,
      .rmsnorm_forward = cuda::rmsnorm_forward,
      .rmsnorm_backward = cuda::rmsnorm_backward,
      .add_rmsnorm_forward = cuda::add_rmsnorm_forward,
      .add_rmsnorm_backward = cuda::add_rmsnorm_backward,
      .matmul = cuda::matmul_plain,
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
      .fill_normal = cuda::fill_normal,
      .cast = cuda::cast,
      .add = cuda::add,
  };
  return table;
}

}  // namespace

std::span<const KernelFunction> kernel_functions() {
  return functions;
}

Kernels table_of(const KernelChoice& choice) {
  Kernels table = plain_table();
  for (const KernelEntry* kernel : choice) {
    if (!kernel) continue;
    bool found = false;
    for (const KernelFunction& function : functions) {
      if (std::string_view(function.name) != kernel->name) continue;
      function.put(table);
      found = true;
    }
    if (!found) {
      throw Error(ErrorKind::internal, std::string("the plug-in has no function for kernel ") + kernel->name,
                  "kernel list", "build the program and the plug-in from the same sources");
    }
  }
  return table;
}

}  // namespace deltatune::cuda
