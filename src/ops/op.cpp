// Names of the ops, and what a trace gets of a call.
#include "ops/op.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ops/kernel_list.h"

namespace deltatune {

const char* name_of(Op op) {
  static constexpr std::array<const char*, static_cast<size_t>(Op::count)> names = {
      "embedding_forward",
      "embedding_backward",
      "embedding_part_forward",
      "embedding_part_backward",
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

void OpScope::begin(const Stream& stream, Op op, OpCost cost, const CTensor& sizes) {
  if (stream.device().is_null()) return;  // a plan's step beside the real one
  event_ = current_trace->begin(name_of(op), TraceKind::op, stream.name());
  if (!event_) return;
  trace_ = current_trace;
  trace_->open_op = event_;
  const KernelEntry& kernel = kernel_of(stream, op);
  event_->kernel = std::strchr(kernel.name, '.') + 1;
  event_->slow = kernel.speed == KernelSpeed::plain;
  event_->bytes = cost.bytes;
  event_->flops = cost.flops;
  if (sizes.empty()) return;
  event_->shape.dtype = name_of(sizes.dtype);
  event_->shape.rank = sizes.shape.rank;
  std::copy(sizes.shape.d.begin(), sizes.shape.d.end(), event_->shape.d);
}

void OpScope::end() {
  trace_->open_op = nullptr;
  trace_->end(*event_);
}

}  // namespace deltatune
