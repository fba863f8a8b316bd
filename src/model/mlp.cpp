// SwiGLU MLP, forward and backward.
#include "model/mlp.h"

#include "ops/ops.h"

namespace deltatune {
namespace {
constexpr MatmulSpec nt{MatmulLayout::nt, false};
constexpr MatmulSpec nn{MatmulLayout::nn, false};
}  // namespace

Mlp::Saved Mlp::saved(SavedLayout& layout, int64_t intermediate_size) {
  const int64_t T = layout.tokens();
  return {layout.activation(SavedPart::gate_up, {T, 2 * intermediate_size}),
          layout.activation(SavedPart::act, {T, intermediate_size})};
}

void Mlp::forward(Stream& s, const Weights& w, CTensor x_TD, Tensor y_TD, const Saved& saved, Pass pass) {
  if (!saved.gate_up_T2F.skip(pass)) ops::matmul(s, saved.gate_up_T2F.t, x_TD, w.gate_up_2FD, nt);
  if (!saved.act_TF.skip(pass)) ops::swiglu_forward(s, saved.act_TF.t, saved.gate_up_T2F.t);
  if (!y_TD.empty()) ops::matmul(s, y_TD, saved.act_TF.t, w.down_DF, nt);
}

void Mlp::backward(Stream& s, const Weights& w, const Grads& g, CTensor x_TD, CTensor dy_TD, Tensor dx_TD,
                   const Saved& saved, const Row& row) {
  const Arena::Scope scope(*row.work);
  const Tensor dact_TF = row.work->take(row.storage, saved.act_TF.t.shape);
  const Tensor dgate_up_T2F = saved.gate_up_T2F.t;
  ops::matmul(s, dact_TF, dy_TD, w.down_DF, nn);
  ops::matmul(s, g.down_DF, dy_TD, saved.act_TF.t, row.gradient_product());
  ops::swiglu_backward(s, dgate_up_T2F, dact_TF, saved.gate_up_T2F.t);
  ops::matmul(s, g.gate_up_2FD, dgate_up_T2F, x_TD, row.gradient_product());
  ops::matmul(s, dx_TD, dgate_up_T2F, w.gate_up_2FD, nn);
}

}  // namespace deltatune
