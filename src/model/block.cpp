// The decoder block.
#include "model/block.h"

#include <array>

#include "ops/ops.h"

namespace deltatune {

const char* name_of(SavedPart part) {
  static constexpr std::array<const char*, static_cast<size_t>(SavedPart::count)> names = {
      "norm1", "projection", "prologue", "mixer", "gated", "mid", "norm2", "gate_up", "act"};
  return names[static_cast<size_t>(part)];
}

namespace {

template <class View>
View pick(const std::vector<View>& views, int index) {
  return index < 0 ? View{} : views[static_cast<size_t>(index)];
}

void mixer_forward(Stream& s, const Block::Weights& w, CTensor x_TD, Tensor y_TD, const Block::Saved& saved,
                   Pass pass, const ModelConfig& c, const Row& row) {
  if (w.full_attention) {
    Attention::forward(s, w.attention, x_TD, y_TD, saved.attention, pass, c.attention, row);
  } else {
    DeltaNet::forward(s, w.delta_net, x_TD, y_TD, saved.delta_net, pass, c.gdn, row);
  }
}

}  // namespace

Block::Weights Block::weights(const LayerParams& p, const std::vector<CTensor>& v) {
  Weights w;
  w.input_norm_D = pick(v, p.input_norm);
  w.post_norm_D = pick(v, p.post_norm);
  w.full_attention = p.qkv >= 0;
  w.attention = {pick(v, p.qkv), pick(v, p.q_norm), pick(v, p.k_norm), pick(v, p.out_proj)};
  w.delta_net = {pick(v, p.in_proj), pick(v, p.conv),       pick(v, p.A_log),
                 pick(v, p.dt_bias), pick(v, p.gated_norm), pick(v, p.out_proj)};
  w.mlp = {pick(v, p.gate_up), pick(v, p.down)};
  return w;
}

Block::Grads Block::grads(const LayerParams& p, const std::vector<Tensor>& v) {
  Grads g;
  g.input_norm_D = pick(v, p.input_norm);
  g.post_norm_D = pick(v, p.post_norm);
  g.attention = {pick(v, p.qkv), pick(v, p.q_norm), pick(v, p.k_norm), pick(v, p.out_proj)};
  g.delta_net = {pick(v, p.in_proj), pick(v, p.conv),       pick(v, p.A_log),
                 pick(v, p.dt_bias), pick(v, p.gated_norm), pick(v, p.out_proj)};
  g.mlp = {pick(v, p.gate_up), pick(v, p.down)};
  return g;
}

Block::Saved Block::saved(SavedLayout& layout, const ModelConfig& c, bool full_attention,
                          int64_t max_chunks) {
  const Shape hidden{layout.tokens(), c.hidden_size};
  const Shape tokens{layout.tokens()};
  Saved s;
  s.input_TD = layout.kept(hidden);
  s.x1_TD = layout.activation(SavedPart::norm1, hidden);
  s.rstd1_T = layout.statistic(SavedPart::norm1, tokens);
  if (full_attention) {
    s.attention = Attention::saved(layout, c.attention);
  } else {
    s.delta_net = DeltaNet::saved(layout, c.gdn, max_chunks);
  }
  s.mid_TD = layout.activation(SavedPart::mid, hidden);
  s.x2_TD = layout.activation(SavedPart::norm2, hidden);
  s.rstd2_T = layout.statistic(SavedPart::norm2, tokens);
  s.mlp = Mlp::saved(layout, c.intermediate_size);
  return s;
}

Residual Block::forward(Stream& s, const Weights& w, Residual in, Tensor mid_TD, Tensor delta_TD,
                        const Saved& saved, const ModelConfig& c, const Row& row) {
  constexpr Pass pass = Pass::first;
  if (in.delta_TD.empty()) {
    ops::rmsnorm_forward(s, saved.x1_TD.t, saved.rstd1_T.side(pass), saved.input_TD, w.input_norm_D, row.eps);
  } else {
    ops::add_rmsnorm_forward(s, saved.input_TD, saved.x1_TD.t, saved.rstd1_T.side(pass), in.sum_TD,
                             in.delta_TD, w.input_norm_D, row.eps);
  }
  mixer_forward(s, w, saved.x1_TD.t, delta_TD, saved, pass, c, row);
  // A shared slot would be overwritten by the next block before it has read the sum.
  const Tensor mid = saved.mid_TD.kept ? saved.mid_TD.t : mid_TD;
  ops::add_rmsnorm_forward(s, mid, saved.x2_TD.t, saved.rstd2_T.side(pass), saved.input_TD, delta_TD,
                           w.post_norm_D, row.eps);
  Mlp::forward(s, w.mlp, saved.x2_TD.t, delta_TD, saved.mlp, pass);
  return {mid, delta_TD};
}

void Block::recompute(Stream& s, const Weights& w, const Saved& saved, const ModelConfig& c, const Row& row) {
  constexpr Pass pass = Pass::recompute;
  if (!saved.x1_TD.skip(pass)) {
    ops::rmsnorm_forward(s, saved.x1_TD.t, saved.rstd1_T.side(pass), saved.input_TD, w.input_norm_D, row.eps);
  }
  if (saved.mid_TD.kept) {
    mixer_forward(s, w, saved.x1_TD.t, Tensor{}, saved, pass, c, row);
    if (!saved.x2_TD.skip(pass)) {
      ops::rmsnorm_forward(s, saved.x2_TD.t, saved.rstd2_T.side(pass), saved.mid_TD.t, w.post_norm_D,
                           row.eps);
    }
  } else {
    const Arena::Scope scope(*row.work);
    const Tensor mixed_TD = row.work->take(row.storage, saved.input_TD.shape);
    mixer_forward(s, w, saved.x1_TD.t, mixed_TD, saved, pass, c, row);
    ops::add_rmsnorm_forward(s, saved.mid_TD.t, saved.x2_TD.t, saved.rstd2_T.side(pass), saved.input_TD,
                             mixed_TD, w.post_norm_D, row.eps);
  }
  Mlp::forward(s, w.mlp, saved.x2_TD.t, Tensor{}, saved.mlp, pass);
}

void Block::backward(Stream& s, const Weights& w, const Grads& g, CTensor dout_TD, Tensor din_TD,
                     const Saved& saved, const ModelConfig& c, const Row& row) {
  const Arena::Scope scope(*row.work);
  const Tensor dx_TD = row.work->take(row.storage, dout_TD.shape);
  const Tensor dmid_TD = row.work->take(row.storage, dout_TD.shape);
  Mlp::backward(s, w.mlp, g.mlp, saved.x2_TD.t, dout_TD, dx_TD, saved.mlp, row);
  ops::add_rmsnorm_backward(s, dmid_TD, g.post_norm_D, dx_TD, dout_TD, saved.mid_TD.t, w.post_norm_D,
                            saved.rstd2_T.t);
  if (w.full_attention) {
    Attention::backward(s, w.attention, g.attention, saved.x1_TD.t, dmid_TD, dx_TD, saved.attention,
                        c.attention, row);
  } else {
    DeltaNet::backward(s, w.delta_net, g.delta_net, saved.x1_TD.t, dmid_TD, dx_TD, saved.delta_net, c.gdn,
                       row);
  }
  ops::add_rmsnorm_backward(s, din_TD, g.input_norm_D, dx_TD, dmid_TD, saved.input_TD, w.input_norm_D,
                            saved.rstd1_T.t);
}

}  // namespace deltatune
