// matmul in its three layouts against a naive double product; gradients; the bits of a row depend on nothing
// but the row.
#include <tuple>

#include "ops/gradcheck.h"
#include "ops/parity.h"

namespace deltatune {
namespace {

using parity::Array;

struct Sizes {
  int64_t m, n, k;
};

// Around the tile (256 x 256 x 512), one row, one column, one term.
const std::vector<Sizes> all_sizes = {{1, 1, 1},      {1, 300, 65},  {5, 1, 7},       {3, 64, 130},
                                      {64, 63, 1},    {65, 257, 33}, {257, 255, 513}, {256, 256, 512},
                                      {300, 5, 1030}, {4, 129, 64},  {17, 520, 1025}};

Shape a_shape(MatmulLayout layout, Sizes s) {
  return layout == MatmulLayout::tn ? Shape{s.k, s.m} : Shape{s.m, s.k};
}
Shape b_shape(MatmulLayout layout, Sizes s) {
  return layout == MatmulLayout::nt ? Shape{s.n, s.k} : Shape{s.k, s.n};
}

std::vector<double> reference(MatmulLayout layout, Sizes s, const std::vector<double>& a,
                              const std::vector<double>& b, std::vector<double> c) {
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < s.k; ++l) {
        const int64_t a_index = layout == MatmulLayout::tn ? l * s.m + i : i * s.k + l;
        const int64_t b_index = layout == MatmulLayout::nt ? j * s.k + l : l * s.n + j;
        sum += a[static_cast<size_t>(a_index)] * b[static_cast<size_t>(b_index)];
      }
      c[static_cast<size_t>(i * s.n + j)] += sum;
    }
  }
  return c;
}

using Param = std::tuple<MatmulLayout, std::pair<DType, DType>, bool>;
class Matmul : public testing::TestWithParam<Param> {};

TEST_P(Matmul, EqualsNaiveDouble) {
  const auto [layout, dtypes, accumulate] = GetParam();
  for (const Sizes s : all_sizes) {
    const Array a = parity::random(dtypes.first, a_shape(layout, s), 1);
    const Array b = parity::random(dtypes.first, b_shape(layout, s), 2);
    Array c(dtypes.second, {s.m, s.n});
    std::vector<double> start(static_cast<size_t>(s.m * s.n), 0.0);
    if (accumulate) {
      c = parity::random(dtypes.second, {s.m, s.n}, 3);
      start = c.values();
    }
    parity::run_twice({&c}, [&](Stream& stream) {
      ops::matmul(stream, c.view(), a.view(), b.view(), {layout, accumulate});
    });
    SCOPED_TRACE(testing::Message() << s.m << " x " << s.n << " x " << s.k);
    parity::expect_close(c, reference(layout, s, a.values(), b.values(), start), "c");
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Matmul,
    testing::Combine(testing::Values(MatmulLayout::nt, MatmulLayout::nn, MatmulLayout::tn),
                     testing::Values(std::pair{DType::f64, DType::f64}, std::pair{DType::f32, DType::f32},
                                     std::pair{DType::bf16, DType::bf16}, std::pair{DType::bf16, DType::f32}),
                     testing::Bool()));

TEST(MatmulOp, RowDoesNotDependOnOtherRows) {
  for (const DType dtype : parity::storage_dtypes) {
    const Sizes s{130, 70, 600};
    Array a = parity::random(dtype, {s.m, s.k}, 1);
    const Array b = parity::random(dtype, {s.n, s.k}, 2);
    Array before(dtype, {s.m, s.n});
    Array after(dtype, {s.m, s.n});
    parity::Runner run;
    run([&](Stream& stream) { ops::matmul(stream, before.view(), a.view(), b.view(), {}); });
    auto values = a.values();
    for (int64_t i = 0; i < s.m; ++i) {
      if (i == 65) continue;
      for (int64_t l = 0; l < s.k; ++l)
        values[static_cast<size_t>(i * s.k + l)] = -3.0 * static_cast<double>(l);
    }
    a.set(values);
    run([&](Stream& stream) { ops::matmul(stream, after.view(), a.view(), b.view(), {}); });
    const auto x = before.values();
    const auto y = after.values();
    for (int64_t j = 0; j < s.n; ++j)
      EXPECT_EQ(x[static_cast<size_t>(65 * s.n + j)], y[static_cast<size_t>(65 * s.n + j)]);
  }
}

// y = x W^T with dx = dy W (nn) and dW += dy^T x (tn): the three layouts belong together.
TEST(MatmulOp, GradientsOfLinearLayer) {
  for (const int64_t tokens : gradcheck::edge_lengths()) {
    const Sizes s{tokens, 7, 66};
    SCOPED_TRACE(tokens);
    gradcheck::Case c;
    c.inputs = {{"x", parity::random(DType::f64, {s.m, s.k}, 1), false},
                {"w", parity::random(DType::f64, {s.n, s.k}, 2), true}};
    c.outputs = {Array(DType::f64, {s.m, s.n})};
    c.forward = [](Stream& stream, const auto& in, auto& out) {
      ops::matmul(stream, out[0].view(), in[0].value.view(), in[1].value.view(), {MatmulLayout::nt, false});
    };
    c.backward = [](Stream& stream, const auto& in, const auto&, const auto& dout, auto& din) {
      ops::matmul(stream, din[0].view(), dout[0].view(), in[1].value.view(), {MatmulLayout::nn, false});
      ops::matmul(stream, din[1].view(), dout[0].view(), in[0].value.view(), {MatmulLayout::tn, true});
    };
    gradcheck::check(c);
  }
}

TEST(MatmulOp, WrongShapeNamesOpAndArgument) {
  Array a(DType::f32, {2, 3});
  Array b(DType::f32, {4, 5});
  Array c(DType::f32, {2, 4});
  parity::Runner run;
  try {
    run([&](Stream& stream) { ops::matmul(stream, c.view(), a.view(), b.view(), {}); });
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::internal);
    EXPECT_STREQ(error.what(), "matmul: b: expected f32 [4, 3], found f32 [4, 5]");
  }
}

}  // namespace
}  // namespace deltatune
