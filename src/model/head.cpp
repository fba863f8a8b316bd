// Final norm, head and loss.
#include "model/head.h"

#include <algorithm>

#include "base/trace.h"
#include "ops/ops.h"

namespace deltatune {
namespace {
constexpr MatmulSpec nt{MatmulLayout::nt, false};
constexpr MatmulSpec nn{MatmulLayout::nn, false};

// Normalises the model's output: sum = in.sum + in.delta, x = norm(sum).
struct Normed {
  Tensor sum_TD, x_TD, rstd_T;
};
Normed final_norm(Stream& s, CTensor norm_D, Residual in, bool want_rstd, const Row& row) {
  const Shape shape = in.sum_TD.shape;
  Normed out;
  out.sum_TD = row.work->take(row.storage, shape);
  out.x_TD = row.work->take(row.storage, shape);
  if (want_rstd) out.rstd_T = row.work->take(compute_dtype(row.storage), {shape[0]});
  ops::add_rmsnorm_forward(s, out.sum_TD, out.x_TD, out.rstd_T, in.sum_TD, in.delta_TD, norm_D, row.eps);
  return out;
}
}  // namespace

int64_t Head::chunk_rows(const ModelConfig& c, DType storage, int64_t tokens) {
  const int64_t row_bytes = c.vocab_size * static_cast<int64_t>(size_of(storage));
  const int64_t rows = std::max<int64_t>(64, (int64_t{1} << 30) / row_bytes);
  return std::min(tokens, rows < 128 ? rows : rows / 128 * 128);
}

void Head::loss(Stream& s, const Weights& w, const Grads& g, Residual in, Tensor dout_TD, Tensor loss_sum_1,
                const Targets& targets, const ModelConfig& c, const Row& row) {
  const bool train = !dout_TD.empty();
  const Shape hidden = in.sum_TD.shape;
  const int64_t chunk = chunk_rows(c, row.storage, hidden[0]);
  Arena& work = *row.work;
  const Arena::Scope scope(work);
  const Normed normed = final_norm(s, w.norm_D, in, train, row);
  const Tensor x_ND = work.take(row.storage, hidden);
  const Tensor dx_ND = train ? work.take(row.storage, hidden) : Tensor{};
  const Tensor logits = work.take(row.storage, {chunk, c.vocab_size});
  ops::gather_rows(s, x_ND.slice(0, targets.padded), normed.x_TD, targets.rows_N.slice(0, targets.padded));
  for (int64_t begin = 0; begin < targets.padded; begin += chunk) {
    const int64_t rows = std::min(chunk, targets.padded - begin);
    const Tensor logits_NV = logits.slice(0, rows);
    ops::matmul(s, logits_NV, x_ND.slice(begin, rows), w.head_VD, nt);
    ops::cross_entropy(s, loss_sum_1, train ? logits_NV : Tensor{}, logits_NV,
                       targets.targets_N.slice(begin, rows));
    if (!train) continue;
    const TracePhaseScope phase(TracePhase::backward);
    ops::matmul(s, dx_ND.slice(begin, rows), logits_NV, w.head_VD, nn);
    // A later chunk adds to the first one's product.
    const bool add = begin > 0 || !row.fresh_gradients;
    ops::matmul(s, g.head_VD, logits_NV, x_ND.slice(begin, rows), {MatmulLayout::tn, add});
  }
  if (!train) return;
  const TracePhaseScope phase(TracePhase::backward);
  if (targets.padded == 0 && row.fresh_gradients) ops::fill(s, g.head_VD, 0);
  // The normed rows are no longer needed: their memory takes the scattered gradient.
  ops::scatter_rows(s, normed.x_TD, dx_ND.slice(0, targets.padded), targets.rows_N.slice(0, targets.padded));
  ops::rmsnorm_backward(s, dout_TD, g.norm_D, normed.x_TD, normed.sum_TD, w.norm_D, normed.rstd_T);
}

void Head::logits(Stream& s, const Weights& w, Residual in, const Targets& rows, const ModelConfig& c,
                  const Row& row, const std::function<void(int64_t, CTensor)>& each) {
  const int64_t chunk = chunk_rows(c, row.storage, in.sum_TD.dim(0));
  Arena& work = *row.work;
  const Arena::Scope scope(work);
  const Normed normed = final_norm(s, w.norm_D, in, false, row);
  const Tensor x = work.take(row.storage, {chunk, c.hidden_size});
  const Tensor logits = work.take(row.storage, {chunk, c.vocab_size});
  for (int64_t begin = 0; begin < rows.count; begin += chunk) {
    const int64_t count = std::min(chunk, rows.count - begin);
    ops::gather_rows(s, x.slice(0, count), normed.x_TD, rows.rows_N.slice(begin, count));
    ops::matmul(s, logits.slice(0, count), x.slice(0, count), w.head_VD, nt);
    each(begin, logits.slice(0, count));
  }
}

}  // namespace deltatune
