// Gated attention, forward and backward.
#include "model/attention.h"

#include "ops/ops.h"

namespace deltatune {
namespace {
constexpr MatmulSpec nt{MatmulLayout::nt, false};
constexpr MatmulSpec nn{MatmulLayout::nn, false};

// [T, heads, width] as the [T, heads * width] of a matmul.
Tensor flat(Tensor x) {
  return x.reshaped({x.dim(0), x.dim(1) * x.dim(2)});
}
}  // namespace

Attention::Saved Attention::saved(SavedLayout& layout, AttentionShape a) {
  const int64_t T = layout.tokens();
  Saved s;
  s.proj_TN = layout.activation(SavedPart::projection, {T, a.columns()});
  s.q_THK = layout.activation(SavedPart::prologue, {T, a.query_heads, a.head_dim});
  s.k_TGK = layout.activation(SavedPart::prologue, {T, a.kv_heads, a.head_dim});
  s.q_rstd_TH = layout.statistic(SavedPart::prologue, {T, a.query_heads});
  s.k_rstd_TG = layout.statistic(SavedPart::prologue, {T, a.kv_heads});
  s.o_THK = layout.activation(SavedPart::mixer, {T, a.query_heads, a.head_dim});
  s.lse_HT = layout.statistic(SavedPart::mixer, {a.query_heads, T});
  s.y_THK = layout.activation(SavedPart::gated, {T, a.query_heads, a.head_dim});
  return s;
}

void Attention::forward(Stream& s, const Weights& w, CTensor x_TD, Tensor y_TD, const Saved& saved, Pass pass,
                        AttentionShape a, const Row& row) {
  if (!saved.proj_TN.skip(pass)) ops::matmul(s, saved.proj_TN.t, x_TD, w.qkv_ND, nt);
  if (!saved.q_THK.skip(pass)) {
    ops::qk_norm_rope_forward(s, saved.q_THK.t, saved.k_TGK.t, saved.q_rstd_TH.side(pass),
                              saved.k_rstd_TG.side(pass), saved.proj_TN.t, w.q_norm_K, w.k_norm_K,
                              row.segments.positions_T, row.inv_freq, a, row.eps);
  }
  if (!saved.o_THK.skip(pass)) {
    ops::attention_forward(s, saved.o_THK.t, saved.lse_HT.side(pass), saved.q_THK.t, saved.k_TGK.t,
                           saved.proj_TN.t, row.segments, a);
  }
  if (!saved.y_THK.skip(pass)) ops::sigmoid_gate_forward(s, saved.y_THK.t, saved.o_THK.t, saved.proj_TN.t, a);
  if (!y_TD.empty()) ops::matmul(s, y_TD, flat(saved.y_THK.t), w.out_DN, nt);
}

void Attention::backward(Stream& s, const Weights& w, const Grads& g, CTensor x_TD, CTensor dy_TD,
                         Tensor dx_TD, const Saved& saved, AttentionShape a, const Row& row) {
  Arena& work = *row.work;
  const Arena::Scope scope(work);
  const Shape heads = saved.o_THK.t.shape;
  const Tensor dproj_TN = work.take(row.storage, saved.proj_TN.t.shape);
  const Tensor do_THK = work.take(row.storage, heads);
  {
    const Arena::Scope inner(work);
    const Tensor dgated_THK = work.take(row.storage, heads);
    ops::matmul(s, flat(dgated_THK), dy_TD, w.out_DN, nn);
    ops::matmul(s, g.out_DN, dy_TD, flat(saved.y_THK.t), row.gradient_product());
    ops::sigmoid_gate_backward(s, do_THK, dproj_TN, dgated_THK, saved.o_THK.t, saved.proj_TN.t, a);
  }
  const Tensor dq_THK = work.take(row.storage, heads);
  const Tensor dk_TGK = work.take(row.storage, saved.k_TGK.t.shape);
  ops::attention_backward(s, dq_THK, dk_TGK, dproj_TN, do_THK, saved.o_THK.t, saved.q_THK.t, saved.k_TGK.t,
                          saved.proj_TN.t, saved.lse_HT.t, row.segments, a);
  ops::qk_norm_rope_backward(s, dproj_TN, g.q_norm_K, g.k_norm_K, dq_THK, dk_TGK, saved.proj_TN.t, w.q_norm_K,
                             w.k_norm_K, saved.q_rstd_TH.t, saved.k_rstd_TG.t, row.segments.positions_T,
                             row.inv_freq, a);
  ops::matmul(s, g.qkv_ND, dproj_TN, x_TD, row.gradient_product());
  ops::matmul(s, dx_TD, dproj_TN, w.qkv_ND, nn);
}

}  // namespace deltatune
