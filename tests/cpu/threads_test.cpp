// Results do not depend on the number of threads: every op with a parallel reduction, on the pool and on one
// thread (inside a parallel_for, where nested calls run inline).
#include "base/thread_pool.h"
#include "ops/parity.h"

namespace deltatune {
namespace {

using parity::Array;

/// Runs the op on the pool and on one thread, from the same start of the outputs; expects equal bits.
void expect_same_bits(const std::vector<Array*>& outputs, const std::function<void(Stream&)>& op) {
  std::vector<Array> start;
  for (const Array* output : outputs) start.push_back(*output);
  parity::Runner run;
  run(op);
  std::vector<Array> pooled;
  for (size_t i = 0; i < outputs.size(); ++i) {
    pooled.push_back(*outputs[i]);
    *outputs[i] = start[i];
  }
  parallel_for(1, 1, [&](int64_t, int64_t, int) { run(op); });
  for (size_t i = 0; i < outputs.size(); ++i) EXPECT_TRUE(*outputs[i] == pooled[i]) << "output " << i;
}

class Threads : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Storage, Threads, testing::Values(DType::f32, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(Threads, Matmul) {
  const Array a = parity::random(GetParam(), {700, 600}, 1);
  const Array b = parity::random(GetParam(), {530, 600}, 2);
  Array c(GetParam(), {700, 530});
  expect_same_bits({&c}, [&](Stream& s) { ops::matmul(s, c.view(), a.view(), b.view(), {}); });
}

TEST_P(Threads, Norms) {
  const Array x = parity::random(GetParam(), {500, 300}, 1);
  const Array w = parity::random(GetParam(), {300}, 2);
  const Array dy = parity::random(GetParam(), {500, 300}, 3);
  Array y(GetParam(), x.shape());
  Array dx(GetParam(), x.shape());
  Array rstd(DType::f32, {500});
  Array dw = parity::random(DType::f32, {300}, 4);
  expect_same_bits({&y, &rstd, &dx, &dw}, [&](Stream& s) {
    ops::rmsnorm_forward(s, y.view(), rstd.view(), x.view(), w.view(), 1e-6f);
    ops::rmsnorm_backward(s, dx.view(), dw.view(), dy.view(), x.view(), w.view(), rstd.view());
  });
}

TEST_P(Threads, AttentionAndRope) {
  const AttentionShape shape{4, 2, 64, 16};
  const parity::Row row({300, 1, 200});
  const DType dtype = GetParam();
  const Array proj = parity::random(dtype, {row.tokens, shape.columns()}, 1);
  const Array norm = parity::random(dtype, {64}, 2);
  const Array frequency = parity::random(DType::f32, {8}, 3);
  const Array d_o = parity::random(dtype, {row.tokens, 4, 64}, 4);
  Array q(dtype, d_o.shape()), o(dtype, d_o.shape()), dq(dtype, d_o.shape());
  Array k(dtype, {row.tokens, 2, 64}), dk(dtype, k.shape());
  Array q_rstd(DType::f32, {row.tokens, 4}), k_rstd(DType::f32, {row.tokens, 2});
  Array lse(DType::f32, {4, row.tokens});
  Array dproj(dtype, proj.shape(), std::vector<double>(static_cast<size_t>(proj.count()), 0.0));
  Array dq_norm = parity::random(DType::f32, {64}, 5), dk_norm = dq_norm;
  expect_same_bits({&q, &k, &o, &lse, &dq, &dk, &dproj, &dq_norm, &dk_norm}, [&](Stream& s) {
    ops::qk_norm_rope_forward(s, q.view(), k.view(), q_rstd.view(), k_rstd.view(), proj.view(), norm.view(),
                              norm.view(), row.positions.view(), frequency.view(), shape, 1e-6f);
    ops::attention_forward(s, o.view(), lse.view(), q.view(), k.view(), proj.view(), row.segments(), shape);
    ops::attention_backward(s, dq.view(), dk.view(), dproj.view(), d_o.view(), o.view(), q.view(), k.view(),
                            proj.view(), lse.view(), row.segments(), shape);
    ops::qk_norm_rope_backward(s, dproj.view(), dq_norm.view(), dk_norm.view(), dq.view(), dk.view(),
                               proj.view(), norm.view(), norm.view(), q_rstd.view(), k_rstd.view(),
                               row.positions.view(), frequency.view(), shape);
  });
}

TEST_P(Threads, LossAndNorm) {
  const Array logits = parity::random(GetParam(), {100, 3000}, 1);
  const Array targets = parity::random_ids({100}, 3000, 2);
  Array sum(DType::f64, {1}, {0});
  Array squares(DType::f64, {1}, {0});
  Array dlogits(GetParam(), logits.shape());
  expect_same_bits({&sum, &squares, &dlogits}, [&](Stream& s) {
    ops::cross_entropy(s, sum.view(), dlogits.view(), logits.view(), targets.view());
    ops::sum_squares(s, squares.view(), dlogits.view());
  });
}

}  // namespace
}  // namespace deltatune
