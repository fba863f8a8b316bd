// Gated DeltaNet, forward and backward.
#include "model/delta_net.h"

#include "ops/ops.h"

namespace deltatune {
namespace {
constexpr MatmulSpec nt{MatmulLayout::nt, false};
constexpr MatmulSpec nn{MatmulLayout::nn, false};

Tensor flat(Tensor x) {
  return x.reshaped({x.dim(0), x.dim(1) * x.dim(2)});
}
}  // namespace

DeltaNet::Saved DeltaNet::saved(SavedLayout& layout, GdnShape g, int64_t chunks) {
  const int64_t T = layout.tokens();
  Saved s;
  s.proj_TN = layout.activation(SavedPart::projection, {T, g.columns()});
  s.q_THK = layout.activation(SavedPart::prologue, {T, g.key_heads, g.key_dim});
  s.k_THK = layout.activation(SavedPart::prologue, {T, g.key_heads, g.key_dim});
  s.v_THV = layout.activation(SavedPart::prologue, {T, g.value_heads, g.value_dim});
  s.g_TH = layout.statistic(SavedPart::prologue, {T, g.value_heads});
  s.beta_TH = layout.statistic(SavedPart::prologue, {T, g.value_heads});
  s.q_rstd_TH = layout.statistic(SavedPart::prologue, {T, g.key_heads});
  s.k_rstd_TH = layout.statistic(SavedPart::prologue, {T, g.key_heads});
  s.o_THV = layout.activation(SavedPart::mixer, {T, g.value_heads, g.value_dim});
  s.states_CHKV = layout.activation(SavedPart::mixer, {chunks, g.value_heads, g.key_dim, g.value_dim});
  s.y_THV = layout.activation(SavedPart::gated, {T, g.value_heads, g.value_dim});
  s.rstd_TH = layout.statistic(SavedPart::gated, {T, g.value_heads});
  return s;
}

void DeltaNet::forward(Stream& s, const Weights& w, CTensor x_TD, Tensor y_TD, const Saved& saved, Pass pass,
                       GdnShape g, const Row& row) {
  if (!saved.proj_TN.skip(pass)) ops::matmul(s, saved.proj_TN.t, x_TD, w.in_ND, nt);
  if (!saved.q_THK.skip(pass)) {
    ops::gdn_prologue_forward(s, saved.q_THK.t, saved.k_THK.t, saved.v_THV.t, saved.g_TH.t, saved.beta_TH.t,
                              saved.q_rstd_TH.side(pass), saved.k_rstd_TH.side(pass), saved.proj_TN.t,
                              w.conv_CW, w.A_log_H, w.dt_bias_H, row.segments, g);
  }
  if (!saved.o_THV.skip(pass)) {
    ops::gated_delta_forward(s, saved.o_THV.t, saved.states_CHKV.side(pass), saved.q_THK.t, saved.k_THK.t,
                             saved.v_THV.t, saved.g_TH.t, saved.beta_TH.t, row.segments, g);
  }
  if (!saved.y_THV.skip(pass)) {
    ops::gated_rmsnorm_forward(s, saved.y_THV.t, saved.rstd_TH.side(pass), saved.o_THV.t, saved.proj_TN.t,
                               w.norm_V, g, row.eps);
  }
  if (!y_TD.empty()) ops::matmul(s, y_TD, flat(saved.y_THV.t), w.out_DN, nt);
}

void DeltaNet::backward(Stream& s, const Weights& w, const Grads& grads, CTensor x_TD, CTensor dy_TD,
                        Tensor dx_TD, const Saved& saved, GdnShape g, const Row& row) {
  Arena& work = *row.work;
  const Arena::Scope scope(work);
  const Shape values = saved.o_THV.t.shape;
  const Tensor dproj_TN = work.take(row.storage, saved.proj_TN.t.shape);
  const Tensor do_THV = work.take(row.storage, values);
  {
    const Arena::Scope inner(work);
    const Tensor dgated_THV = work.take(row.storage, values);
    ops::matmul(s, flat(dgated_THV), dy_TD, w.out_DN, nn);
    ops::matmul(s, grads.out_DN, dy_TD, flat(saved.y_THV.t), row.gradient_product());
    ops::gated_rmsnorm_backward(s, do_THV, dproj_TN, grads.norm_V, dgated_THV, saved.o_THV.t, saved.proj_TN.t,
                                w.norm_V, saved.rstd_TH.t, g);
  }
  const Tensor dq_THK = work.take(row.storage, saved.q_THK.t.shape);
  const Tensor dk_THK = work.take(row.storage, saved.k_THK.t.shape);
  const Tensor dv_THV = work.take(row.storage, values);
  const Tensor dg_TH = work.take(compute_dtype(row.storage), saved.g_TH.t.shape);
  const Tensor dbeta_TH = work.take(compute_dtype(row.storage), saved.beta_TH.t.shape);
  ops::gated_delta_backward(s, dq_THK, dk_THK, dv_THV, dg_TH, dbeta_TH, do_THV, saved.states_CHKV.t,
                            saved.q_THK.t, saved.k_THK.t, saved.v_THV.t, saved.g_TH.t, saved.beta_TH.t,
                            row.segments, g);
  ops::gdn_prologue_backward(s, dproj_TN, grads.conv_CW, grads.A_log_H, grads.dt_bias_H, dq_THK, dk_THK,
                             dv_THV, dg_TH, dbeta_TH, saved.proj_TN.t, w.conv_CW, w.A_log_H, w.dt_bias_H,
                             saved.q_THK.t, saved.k_THK.t, saved.q_rstd_TH.t, saved.k_rstd_TH.t, row.segments,
                             g);
  ops::matmul(s, grads.in_ND, dproj_TN, x_TD, row.gradient_product());
  ops::matmul(s, dx_TD, dproj_TN, w.in_ND, nn);
}

}  // namespace deltatune
