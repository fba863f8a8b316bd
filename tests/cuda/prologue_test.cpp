// The prologue of Gated DeltaNet in the cuda table against the cpu row: short convolution + SiLU, l2norm,
// gates.
#include "cuda/cuda_case.h"

namespace deltatune {
namespace {

using cuda_case::compare;
using cuda_case::On;
using cuda_case::Result;
using parity::Array;
using parity::random;
using parity::Row;

class CudaPrologue : public cuda_case::CudaStorage {};
INSTANTIATE_TEST_SUITE_P(Storage, CudaPrologue, testing::ValuesIn(cuda_case::cuda_dtypes),
                         [](const auto& test) { return std::string(name_of(test.param)); });

const std::vector<std::vector<int32_t>> document_lists = {{1},   {1, 1, 1},       {2, 63, 64, 65},
                                                          {300}, {129, 1, 70, 3}, {64, 128, 1, 31}};

/// Key heads, value heads, key_dim, value_dim, conv_width: ratios 1 to 3, odd sizes, rows of proj that no
/// pack divides (1/1 and 1/3 heads of 128), and whole packs as in the released models (2/4 heads of 128).
const std::vector<GdnShape> shapes = {{2, 2, 16, 16, 4},   {1, 2, 32, 16, 3},  {1, 3, 20, 36, 2},
                                      {1, 1, 128, 128, 4}, {1, 2, 256, 64, 4}, {1, 3, 128, 128, 4},
                                      {2, 4, 128, 128, 4}};

/// Values in [low, high].
Array uniform(DType dtype, Shape shape, uint64_t stream, double low, double high) {
  Rng rng(20240613, stream);
  std::vector<double> values(static_cast<size_t>(shape.count()));
  for (double& value : values) value = low + (high - low) * rng.uniform();
  return {dtype, shape, values};
}

/// Inputs and outputs of the prologue on one packed row.
struct PrologueCase {
  DType dtype;
  GdnShape shape;
  Row row;
  Array proj, conv, A_log, dt_bias, dq, dk, dv, dg, dbeta;
  Array q, k, v, g, beta, q_rstd, k_rstd, dproj, dconv, dA_log, ddt_bias;

  PrologueCase(DType storage, const GdnShape& s, const std::vector<int32_t>& lengths)
      : dtype(storage), shape(s), row(lengths) {
    const int64_t T = row.tokens, Hk = shape.key_heads, Hv = shape.value_heads;
    const Shape keys{T, Hk, shape.key_dim}, values{T, Hv, shape.value_dim};
    proj = random(dtype, {T, shape.columns()}, 1, 2);
    conv = random(dtype, {shape.channels(), shape.conv_width}, 2, 0.5);
    A_log = uniform(DType::f32, {Hv}, 3, -4, 3);
    dt_bias = uniform(DType::f32, {Hv}, 4, -25, 25);
    dq = random(dtype, keys, 5);
    dk = random(dtype, keys, 6);
    dv = random(dtype, values, 7);
    dg = random(DType::f32, {T, Hv}, 8);
    dbeta = random(DType::f32, {T, Hv}, 9);
    q = Array(dtype, keys);
    k = Array(dtype, keys);
    v = Array(dtype, values);
    g = Array(DType::f32, {T, Hv});
    beta = Array(DType::f32, {T, Hv});
    q_rstd = Array(DType::f32, {T, Hk});
    k_rstd = Array(DType::f32, {T, Hk});
    dproj = Array(dtype, proj.shape());
    dconv = random(DType::f32, conv.shape(), 10);
    dA_log = random(DType::f32, {Hv}, 11);
    ddt_bias = random(DType::f32, {Hv}, 12);
  }
  std::vector<Result> forward() {
    return compare({&q, &k, &v, &g, &beta, &q_rstd, &k_rstd}, [&](Stream& stream, const On& on) {
      ops::gdn_prologue_forward(stream, on(q), on(k), on(v), on(g), on(beta), on(q_rstd), on(k_rstd),
                                on(proj), on(conv), on(A_log), on(dt_bias), on.segments(row), shape);
    });
  }
  std::vector<Result> backward() {
    return compare({&dproj, &dconv, &dA_log, &ddt_bias}, [&](Stream& stream, const On& on) {
      ops::gdn_prologue_backward(stream, on(dproj), on(dconv), on(dA_log), on(ddt_bias), on(dq), on(dk),
                                 on(dv), on(dg), on(dbeta), on(proj), on(conv), on(A_log), on(dt_bias), on(q),
                                 on(k), on(q_rstd), on(k_rstd), on.segments(row), shape);
    });
  }
};

TEST_P(CudaPrologue, EqualsTheCpuRow) {
  for (const GdnShape& shape : shapes) {
    for (const auto& lengths : document_lists) {
      SCOPED_TRACE(testing::Message()
                   << shape.key_heads << "/" << shape.value_heads << " heads of " << shape.key_dim << "x"
                   << shape.value_dim << ", first document " << lengths[0]);
      PrologueCase c(GetParam(), shape, lengths);
      c.forward();
      c.backward();
    }
  }
}

/// Documents that start and end around the edges of what a warp walks, and of what a block sums.
TEST_P(CudaPrologue, DocumentEdges) {
  for (const int32_t edge : {32, 64, 128, 256}) {
    for (int32_t first = edge - 4; first <= edge + 4; ++first) {
      SCOPED_TRACE(testing::Message() << "first document " << first);
      PrologueCase c(GetParam(), {1, 1, 16, 16, 4}, {first, 1, 2, 3, 70, edge});
      c.forward();
      c.backward();
    }
  }
  // Heads that every kernel takes; 61 and 244 are a warp's and a block's tokens of one of them.
  for (const int32_t edge : {32, 61, 244}) {
    for (int32_t first = edge - 5; first <= edge + 5; ++first) {
      SCOPED_TRACE(testing::Message() << "heads of 128, first document " << first);
      PrologueCase c(GetParam(), {2, 4, 128, 128, 4}, {first, 1, 2, 3, 58});
      c.forward();
      c.backward();
    }
  }
  PrologueCase many(GetParam(), {1, 2, 16, 16, 4}, std::vector<int32_t>(600, 1));
  many.forward();
  many.backward();
}

TEST_P(CudaPrologue, PartsNotWanted) {
  PrologueCase c(GetParam(), {2, 4, 128, 128, 4}, {70, 1});
  const auto all = c.forward();
  const auto gradients = c.backward();
  const Tensor none;
  const auto some = compare({&c.k, &c.beta}, [&](Stream& stream, const On& on) {
    ops::gdn_prologue_forward(stream, none, on(c.k), none, none, on(c.beta), none, none, on(c.proj),
                              on(c.conv), on(c.A_log), on(c.dt_bias), on.segments(c.row), c.shape);
  });
  for (size_t n = 0; n < some.size(); ++n) {
    EXPECT_TRUE(some[n].outputs[0] == all[n].outputs[1]) << some[n].kernel->name;
    EXPECT_TRUE(some[n].outputs[1] == all[n].outputs[4]) << some[n].kernel->name;
  }
  const auto sums = [&](Array& dconv, Array& ddt_bias) {
    return compare({&dconv, &ddt_bias}, [&](Stream& stream, const On& on) {
      ops::gdn_prologue_backward(stream, none, on(dconv), none, on(ddt_bias), on(c.dq), on(c.dk), on(c.dv),
                                 on(c.dg), on(c.dbeta), on(c.proj), on(c.conv), on(c.A_log), on(c.dt_bias),
                                 on(c.q), on(c.k), on(c.q_rstd), on(c.k_rstd), on.segments(c.row), c.shape);
    });
  };
  Array dconv = random(DType::f32, c.conv.shape(), 10), ddt_bias = random(DType::f32, {4}, 12);
  const auto only = sums(dconv, ddt_bias);
  for (size_t n = 0; n < only.size(); ++n) {
    EXPECT_TRUE(only[n].outputs[0] == gradients[n].outputs[1]) << only[n].kernel->name;
    EXPECT_TRUE(only[n].outputs[1] == gradients[n].outputs[3]) << only[n].kernel->name;
  }
}

/// Bits of tokens [begin, end) of a [T, ...] array.
void expect_same_tokens(const Array& a, const Array& b, int64_t begin, int64_t end) {
  const CTensor x = a.view().slice(begin, end - begin), y = b.view().slice(begin, end - begin);
  EXPECT_EQ(std::memcmp(x.data, y.data, x.bytes()), 0) << "tokens " << begin << " to " << end;
}

/// What happens in the second document changes no bit of the others.
TEST_P(CudaPrologue, DocumentsDoNotLeak) {
  PrologueCase c(GetParam(), {1, 2, 16, 16, 4}, {70, 65, 90});
  const auto before = c.forward();
  const auto gradients = c.backward();
  for (Array* x : {&c.proj, &c.dq, &c.dk, &c.dv}) {
    std::vector<double> values = x->values();
    const int64_t row = x->count() / x->shape()[0];
    for (int64_t i = 70 * row; i < 135 * row; ++i) {
      double& value = values[static_cast<size_t>(i)];
      value = 0.25 - 0.5 * value;
    }
    x->set(values);
  }
  const auto after = c.forward();
  const auto gradients_after = c.backward();
  for (size_t n = 0; n < before.size(); ++n) {
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 70}, {135, 225}}) {
      for (size_t i = 0; i < before[n].outputs.size(); ++i)
        expect_same_tokens(before[n].outputs[i], after[n].outputs[i], begin, end);
      expect_same_tokens(gradients[n].outputs[0], gradients_after[n].outputs[0], begin, end);
    }
  }
}

}  // namespace
}  // namespace deltatune
