// The token-mixing rows of the cuda table against the cpu row: Gated DeltaNet (delta rule, gated
// norm), attention (norm and rotary embedding, attention, gate).
#include "cuda/mixer_cases.h"

namespace deltatune {
namespace {

using cuda_case::AttentionCase;
using cuda_case::compare;
using cuda_case::DeltaCase;
using cuda_case::On;
using cuda_case::ones;
using cuda_case::Op;
using cuda_case::Output;
using cuda_case::Result;
using cuda_case::rounds_inside;
using cuda_case::uniform;
using cuda_case::unit_rows;
using parity::Array;
using parity::random;
using parity::Row;

class CudaMixer : public cuda_case::CudaStorage {};
INSTANTIATE_TEST_SUITE_P(Storage, CudaMixer, testing::ValuesIn(cuda_case::cuda_dtypes),
                         [](const auto& test) { return std::string(name_of(test.param)); });

constexpr float eps = 1e-6f;

const std::vector<std::vector<int32_t>> document_lists = {{1},   {1, 1, 1},       {2, 63, 64, 65},
                                                          {300}, {129, 1, 70, 3}, {64, 128, 1, 31}};

/// Key heads, value heads, key_dim, value_dim, conv_width: ratios 1 to 3, sizes of real models and odd ones.
const std::vector<GdnShape> gdn_shapes = {
    {2, 2, 16, 16, 4}, {1, 2, 32, 16, 3}, {1, 3, 20, 36, 2}, {1, 1, 128, 128, 4}, {1, 2, 256, 64, 4}};
/// Query heads, kv heads, head_dim, rotary_dim.
const std::vector<AttentionShape> attention_shapes = {
    {2, 2, 16, 8}, {4, 2, 32, 32}, {3, 1, 20, 0}, {2, 1, 128, 32}, {4, 1, 256, 64}};

TEST_P(CudaMixer, GatedDelta) {
  for (const GdnShape& shape : gdn_shapes) {
    for (const auto& lengths : document_lists) {
      SCOPED_TRACE(testing::Message()
                   << shape.key_heads << "/" << shape.value_heads << " heads of " << shape.key_dim << "x"
                   << shape.value_dim << ", first document " << lengths[0]);
      DeltaCase c(GetParam(), shape, lengths);
      c.forward();
      c.backward();
    }
  }
}

/// More chunks than one window of backward holds, with documents across its edges.
TEST_P(CudaMixer, GatedDeltaManyChunks) {
  const GdnShape shape{1, 2, 16, 16, 4};
  for (const auto& lengths : {std::vector<int32_t>{2500}, ones(70), {1100, 1, 1, 1300, 64, 700, 3}}) {
    DeltaCase c(GetParam(), shape, lengths);
    c.forward();
    c.backward();
  }
}

/// Heads of the fast kernels: each ratio, documents of every edge length.
TEST_P(CudaMixer, GatedDeltaWideHeads) {
  for (const GdnShape& shape : {GdnShape{3, 3, 128, 128, 4}, {2, 4, 128, 128, 4}, {2, 6, 128, 128, 4}}) {
    for (const std::vector<int32_t>& lengths :
         {std::vector<int32_t>{1, 2, 63, 64, 65, 17, 129}, {200}, {15, 16, 1, 1, 33}}) {
      SCOPED_TRACE(testing::Message()
                   << shape.key_heads << "/" << shape.value_heads << " heads, first document " << lengths[0]);
      DeltaCase c(GetParam(), shape, lengths);
      c.forward();
      c.backward();
    }
  }
}

/// A long document of heads that hardly forget, in one row with a short one.
TEST_P(CudaMixer, GatedDeltaSlowDecay) {
  DeltaCase c(GetParam(), {1, 1, 128, 128, 4}, {1500, 1});
  c.g = uniform(DType::f32, c.g.shape(), 7, -0.002, 0);
  c.forward();
  c.backward();
}

/// Head sizes of real models, ratios 1 to 3: forward against the cpu row to the bound of kernels that round
/// their operands (S, W, D, P) to bf16.
TEST_P(CudaMixer, GatedDeltaForwardRealHeads) {
  const double bound = GetParam() == DType::bf16 ? 1e-4 : -1;
  const auto forward = [&](DeltaCase& c) {
    compare({{&c.o, bound}, {&c.states, bound}}, [&](Stream& stream, const On& on) {
      ops::gated_delta_forward(stream, on(c.o), on(c.states), on(c.q), on(c.k), on(c.v), on(c.g), on(c.beta),
                               on.segments(c.row), c.shape);
    });
  };
  const auto constant = [](Array& x, double value) {
    x.set(std::vector<double>(static_cast<size_t>(x.count()), value));
  };
  for (const int64_t ratio : {1, 2, 3}) {
    const GdnShape shape{2, 2 * ratio, 128, 128, 4};
    for (const auto& lengths : document_lists) {
      SCOPED_TRACE(testing::Message() << "ratio " << ratio << ", first document " << lengths[0]);
      DeltaCase c(GetParam(), shape, lengths);
      forward(c);
    }
  }
  const GdnShape shape{1, 3, 128, 128, 4};
  for (const double g : {0.0, -20.0, -1e-4}) {
    for (const double beta : {0.0, 1.0, 0.5}) {
      SCOPED_TRACE(testing::Message() << "g " << g << ", beta " << beta);
      DeltaCase c(GetParam(), shape, {150, 1, 64});
      constant(c.g, g);
      constant(c.beta, beta);
      forward(c);
    }
  }
  SCOPED_TRACE("a decay that closes inside a chunk, slow decays, and identical keys");
  DeltaCase sudden(GetParam(), shape, {200});
  std::vector<double> gates = sudden.g.values();
  for (size_t i = 0; i < gates.size(); i += 14) gates[i] = -1000;
  sudden.g.set(gates);
  forward(sudden);
  DeltaCase slow(GetParam(), shape, {2000});
  constant(slow.g, -1e-4);
  forward(slow);
  DeltaCase same(GetParam(), shape, {150, 3});
  std::vector<double> keys = same.k.values();
  for (size_t i = 128; i < keys.size(); ++i) keys[i] = keys[i % 128];
  same.k.set(keys);
  forward(same);
}

void set_constant(Array& x, double value) {
  x.set(std::vector<double>(static_cast<size_t>(x.count()), value));
}

/// All keys of a head the same, g = 0.
void test_identical_keys(DType storage, const GdnShape& shape, double beta) {
  SCOPED_TRACE(testing::Message() << "identical keys, beta " << beta);
  DeltaCase c(storage, shape, {150, 3});
  std::vector<double> keys = c.k.values();
  const size_t width = static_cast<size_t>(shape.keys());
  for (size_t i = width; i < keys.size(); ++i) keys[i] = keys[i % width];
  c.k.set(keys);
  set_constant(c.g, 0);
  set_constant(c.beta, beta);
  // Ill-conditioned: results are small differences of large products. The bounds (docs/numerics.md) follow
  // from the roundings: twice the worst of several draws of this case in double with each operand of a
  // product rounded to bf16, which gives for beta 0.5 (and 1): o 5.7e-5 (3.6e-4), states 1.6e-4 (1.8e-3),
  // dq 1.3e-4 (5.3e-4), dv 7e-5 (4.6e-4), dbeta 8e-5 (2.7e-4), dg 2e-3.
  const bool once = beta == 1.0;
  c.forward(once ? 7.2e-4 : 1.2e-4, once ? 3.6e-3 : 3.2e-4);
  // dg = <R', S'>, 128^2 terms: one unit of the last place of the sum of their absolute values, on either
  // side, is 5e-9 in fp32. With beta 1 each token forgets what the one before it stored: R' k = 0, S' has
  // only the direction of k, dg is 0 but for rounding (0.07 with rounded operands), and there is only its
  // size to compare (the error of unrelated numbers is at most 2).
  const bool wide = shape.key_dim == 128;
  const auto gradients = once ? c.backward(2, 1.1e-3, 2) : c.backward(wide ? 5e-9 : -1, 2.6e-4, 4e-3);
  if (beta < 1) return;
  for (const Result& result : gradients) {
    const double plain = storage == DType::bf16 ? 0.05 : 1e-4;
    const double bound = result.kernel->speed == KernelSpeed::fast ? 0.15 : plain;
    for (const double dg : result.outputs[3].values()) EXPECT_LE(std::fabs(dg), bound) << result.kernel->name;
  }
}

TEST_P(CudaMixer, GatedDeltaExtremes) {
  for (const GdnShape& shape : {GdnShape{1, 2, 32, 32, 4}, {1, 3, 128, 128, 4}}) {
    for (const double g : {0.0, -20.0, -1e-4}) {
      for (const double beta : {0.0, 1.0, 0.5}) {
        SCOPED_TRACE(testing::Message() << "g " << g << ", beta " << beta << ", heads of " << shape.key_dim);
        DeltaCase c(GetParam(), shape, {150, 1, 64});
        set_constant(c.g, g);
        set_constant(c.beta, beta);
        c.forward();
        c.backward();
      }
    }
    for (const double beta : {1.0, 0.5}) test_identical_keys(GetParam(), shape, beta);
    // Gates that close suddenly inside a chunk.
    DeltaCase c(GetParam(), shape, {200});
    std::vector<double> gates = c.g.values();
    for (size_t i = 0; i < gates.size(); i += 14) gates[i] = -1000;
    c.g.set(gates);
    c.forward();
    c.backward();
  }
}

/// Outputs that are not wanted are not written; the others are the same.
void test_parts(DType storage, const GdnShape& shape) {
  DeltaCase c(storage, shape, {70, 1});
  c.forward();
  const auto all = c.backward();
  const Tensor none;
  const auto some = compare({rounds_inside(&c.dk), rounds_inside(&c.dg)}, [&](Stream& stream, const On& on) {
    ops::gated_delta_backward(stream, none, on(c.dk), none, on(c.dg), none, on(c.d_o), on(c.states), on(c.q),
                              on(c.k), on(c.v), on(c.g), on(c.beta), on.segments(c.row), c.shape);
  });
  ASSERT_EQ(some.size(), all.size());
  for (size_t n = 0; n < some.size(); ++n) {
    EXPECT_TRUE(some[n].outputs[0] == all[n].outputs[1]) << some[n].kernel->name;
    EXPECT_TRUE(some[n].outputs[1] == all[n].outputs[3]) << some[n].kernel->name;
  }
  const auto o = compare({rounds_inside(&c.o)}, [&](Stream& stream, const On& on) {
    ops::gated_delta_forward(stream, on(c.o), none, on(c.q), on(c.k), on(c.v), on(c.g), on(c.beta),
                             on.segments(c.row), c.shape);
  });
  for (const Result& result : o) EXPECT_TRUE(result.outputs[0].intact()) << result.kernel->name;
}

TEST_P(CudaMixer, GatedDeltaPartsNotWanted) {
  for (const GdnShape& shape : {GdnShape{1, 2, 16, 16, 4}, {1, 2, 128, 128, 4}})
    test_parts(GetParam(), shape);
}

/// Bits of tokens [begin, end) of a [T, ...] array.
void expect_same_tokens(const Array& a, const Array& b, int64_t begin, int64_t end) {
  const CTensor x = a.view().slice(begin, end - begin), y = b.view().slice(begin, end - begin);
  EXPECT_EQ(std::memcmp(x.data, y.data, x.bytes()), 0) << "tokens " << begin << " to " << end;
}

/// With each kernel the same bits in all outputs that have a row per token, but for tokens 70 to 135 of 225.
void expect_same_outside(const std::vector<Result>& a, const std::vector<Result>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t n = 0; n < a.size(); ++n) {
    for (size_t i = 0; i < a[n].outputs.size(); ++i) {
      if (a[n].outputs[i].shape()[0] != 225) continue;
      SCOPED_TRACE(testing::Message() << a[n].kernel->name << ", output " << i);
      expect_same_tokens(a[n].outputs[i], b[n].outputs[i], 0, 70);
      expect_same_tokens(a[n].outputs[i], b[n].outputs[i], 135, 225);
    }
  }
}

/// Changes every value of tokens [begin, end). Without `shift` rows of q and k stay short.
void disturb(Array& x, int64_t begin, int64_t end, double shift = 0.25) {
  std::vector<double> values = x.values();
  const int64_t row = x.count() / x.shape()[0];
  for (int64_t i = begin * row; i < end * row; ++i)
    values[static_cast<size_t>(i)] = -0.5 * values[static_cast<size_t>(i)] + shift;
  x.set(values);
}

/// What happens in the second document changes no bit of the others, slow decay included.
TEST_P(CudaMixer, GatedDeltaDocumentsDoNotLeak) {
  for (const GdnShape& shape : {GdnShape{1, 2, 16, 16, 4}, {1, 2, 128, 128, 4}}) {
    DeltaCase c(GetParam(), shape, {70, 65, 90});
    set_constant(c.g, -1e-5);
    const auto before = c.forward();
    const auto gradients = c.backward();
    for (Array* x : {&c.q, &c.k}) disturb(*x, 70, 135, 0);
    for (Array* x : {&c.v, &c.d_o, &c.beta}) disturb(*x, 70, 135);
    const auto after = c.forward();
    const auto gradients_after = c.backward();
    expect_same_outside(before, after);
    expect_same_outside(gradients, gradients_after);
  }
}

void check_gated_rmsnorm(DType dtype, const GdnShape& shape, int64_t T) {
  SCOPED_TRACE(testing::Message() << T << " tokens, " << shape.value_heads << " heads of "
                                  << shape.value_dim);
  const Shape values{T, shape.value_heads, shape.value_dim};
  const Array proj = random(dtype, {T, shape.columns()}, 1, 2), o = random(dtype, values, 2);
  const Array w = uniform(DType::f32, {shape.value_dim}, 3, 0.5, 1.5), dy = random(dtype, values, 4);
  Array y(dtype, values), rstd(DType::f32, {T, shape.value_heads});
  compare({&y, &rstd}, [&](Stream& stream, const On& on) {
    ops::gated_rmsnorm_forward(stream, on(y), on(rstd), on(o), on(proj), on(w), shape, eps);
  });
  Array d_o(dtype, values), dproj(dtype, proj.shape()), dw = random(DType::f32, w.shape(), 5);
  compare({&d_o, &dproj, &dw}, [&](Stream& stream, const On& on) {
    ops::gated_rmsnorm_backward(stream, on(d_o), on(dproj), on(dw), on(dy), on(o), on(proj), on(w), on(rstd),
                                shape);
  });
}

TEST_P(CudaMixer, GatedRmsnorm) {
  std::vector<GdnShape> shapes = gdn_shapes;
  // Two heads of 128 to a warp: pairs that divide a block's eight warps, and pairs that do not.
  shapes.push_back({1, 4, 128, 128, 4});
  shapes.push_back({2, 12, 128, 128, 4});
  for (const GdnShape& shape : shapes) {
    for (const int64_t T : {1, 15, 16, 33, 300}) check_gated_rmsnorm(GetParam(), shape, T);
  }
  check_gated_rmsnorm(GetParam(), {1, 4, 128, 128, 4}, 6400);  // more than 16 tokens a block
}

TEST_P(CudaMixer, Attention) {
  for (const AttentionShape& shape : attention_shapes) {
    for (const auto& lengths : document_lists) {
      SCOPED_TRACE(testing::Message() << shape.query_heads << "/" << shape.kv_heads << " heads of "
                                      << shape.head_dim << ", first document " << lengths[0]);
      AttentionCase c(GetParam(), shape, lengths);
      c.forward();
      c.backward();
    }
  }
  AttentionCase many(GetParam(), attention_shapes[0], ones(500));
  many.forward();
  many.backward();
}

/// Scores far from 0: softmax with one key that takes all, and lse that is large.
TEST_P(CudaMixer, AttentionLargeScores) {
  AttentionCase c(GetParam(), {2, 1, 32, 32}, {150});
  for (Array* x : {&c.q, &c.k}) {
    std::vector<double> values = x->values();
    for (double& value : values) value *= 8;
    x->set(values);
  }
  c.forward();
  c.backward();
}

void check_attention_leaks(DType dtype, int64_t head_dim) {
  AttentionCase c(dtype, {2, 1, head_dim, 32}, {70, 65, 90});
  const auto before = c.forward();
  const auto gradients = c.backward();
  for (Array* x : {&c.q, &c.k, &c.proj, &c.d_o}) disturb(*x, 70, 135);
  const auto after = c.forward();
  const auto gradients_after = c.backward();
  expect_same_outside(before, after);
  expect_same_outside(gradients, gradients_after);
}

/// Heads of 256, for which there are kernels of their own: several tiles of queries and keys, large scores.
TEST_P(CudaMixer, AttentionOfWideHeads) {
  AttentionCase c(GetParam(), {6, 2, 256, 64}, {515, 1, 193, 64});
  c.forward();
  c.backward();
  AttentionCase large(GetParam(), {2, 1, 256, 64}, {150});
  for (Array* x : {&large.q, &large.k}) {
    std::vector<double> values = x->values();
    // Scores of up to about 40: further up f32 itself rounds them by more than its bound allows.
    for (double& value : values) value *= 3;
    x->set(values);
  }
  large.forward();
  large.backward();
  AttentionCase many(GetParam(), {2, 1, 256, 64}, ones(200));
  many.forward();
  many.backward();
}

TEST_P(CudaMixer, AttentionDocumentsDoNotLeak) {
  for (const int64_t head_dim : {32, 256}) {
    SCOPED_TRACE(testing::Message() << "heads of " << head_dim);
    check_attention_leaks(GetParam(), head_dim);
  }
}

TEST_P(CudaMixer, QkNormRope) {
  const DType dtype = GetParam();
  auto shapes = attention_shapes;
  shapes.push_back({35, 5, 256, 64});  // more heads than lanes, odd numbers of them
  for (const AttentionShape& shape : shapes) {
    for (const auto& lengths : document_lists) {
      SCOPED_TRACE(testing::Message() << shape.query_heads << "/" << shape.kv_heads << " heads of "
                                      << shape.head_dim << ", first document " << lengths[0]);
      const AttentionCase c(dtype, shape, lengths);
      const int64_t T = c.row.tokens;
      const Array q_norm = random(dtype, {shape.head_dim}, 5, 0.3),
                  k_norm = random(dtype, {shape.head_dim}, 6, 0.3);
      std::vector<double> frequencies;
      for (int64_t j = 0; j < shape.rotary_dim / 2; ++j) {
        frequencies.push_back(
            std::pow(1e7, -2.0 * static_cast<double>(j) / static_cast<double>(shape.rotary_dim)));
      }
      const Array inv_freq(DType::f32, {shape.rotary_dim / 2}, frequencies);
      Array q(dtype, c.q.shape()), k(dtype, c.k.shape());
      Array q_rstd(DType::f32, {T, shape.query_heads}), k_rstd(DType::f32, {T, shape.kv_heads});
      compare({&q, &k, &q_rstd, &k_rstd}, [&](Stream& stream, const On& on) {
        ops::qk_norm_rope_forward(stream, on(q), on(k), on(q_rstd), on(k_rstd), on(c.proj), on(q_norm),
                                  on(k_norm), on(c.row.positions), on(inv_freq), shape, eps);
      });
      Array dproj(dtype, c.proj.shape());
      Array dq_norm = random(DType::f32, {shape.head_dim}, 7),
            dk_norm = random(DType::f32, {shape.head_dim}, 8);
      compare({&dproj, &dq_norm, &dk_norm}, [&](Stream& stream, const On& on) {
        ops::qk_norm_rope_backward(stream, on(dproj), on(dq_norm), on(dk_norm), on(c.d_o), on(c.k),
                                   on(c.proj), on(q_norm), on(k_norm), on(q_rstd), on(k_rstd),
                                   on(c.row.positions), on(inv_freq), shape);
      });
    }
  }
}

TEST_P(CudaMixer, SigmoidGate) {
  for (const AttentionShape& shape : attention_shapes) {
    const AttentionCase c(GetParam(), shape, {65, 1});
    const Array o = random(GetParam(), c.o.shape(), 5);
    Array y(GetParam(), o.shape()), d_o(GetParam(), o.shape()), dproj(GetParam(), c.proj.shape());
    compare({&y}, [&](Stream& stream, const On& on) {
      ops::sigmoid_gate_forward(stream, on(y), on(o), on(c.proj), shape);
    });
    compare({&d_o, &dproj}, [&](Stream& stream, const On& on) {
      ops::sigmoid_gate_backward(stream, on(d_o), on(dproj), on(c.d_o), on(o), on(c.proj), shape);
    });
    // In place.
    Array in_place = o;
    compare({&in_place}, [&](Stream& stream, const On& on) {
      ops::sigmoid_gate_forward(stream, on(in_place), on(in_place), on(c.proj), shape);
    });
    EXPECT_TRUE(in_place == y);
  }
}

}  // namespace
}  // namespace deltatune
