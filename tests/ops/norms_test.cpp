// RMSNorm, alone and with a residual: values against the formula in double, gradients, aliasing.
#include "ops/norms.h"

#include "ops/gradcheck.h"
#include "ops/parity.h"

namespace deltatune {
namespace {

using parity::Array;

struct Sizes {
  int64_t tokens, width;
};
// Around the token block (64), the lanes (16) and the column block (64).
const std::vector<Sizes> all_sizes = {{1, 1},   {1, 64},  {2, 15},   {3, 65},
                                      {63, 16}, {64, 63}, {65, 129}, {200, 48}};
constexpr float eps = 1e-6f;

struct Reference {
  std::vector<double> y, rstd, dx, dw;
};

/// y and rstd; with dy also dx (without any dsum) and dw.
Reference reference(Sizes s, const std::vector<double>& x, const std::vector<double>& w,
                    const std::vector<double>& dy) {
  Reference out;
  out.dw.resize(static_cast<size_t>(s.width));
  for (int64_t t = 0; t < s.tokens; ++t) {
    const double* row = x.data() + t * s.width;
    double squares = 0;
    for (int64_t j = 0; j < s.width; ++j) squares += row[j] * row[j];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(s.width) + static_cast<double>(eps));
    out.rstd.push_back(rstd);
    double inner = 0;
    for (int64_t j = 0; j < s.width; ++j) {
      const auto i = static_cast<size_t>(t * s.width + j);
      const double gain = 1 + w[static_cast<size_t>(j)];
      out.y.push_back(row[j] * rstd * gain);
      inner += dy[i] * gain * row[j];
      out.dw[static_cast<size_t>(j)] += dy[i] * row[j] * rstd;
    }
    for (int64_t j = 0; j < s.width; ++j) {
      const auto i = static_cast<size_t>(t * s.width + j);
      const double gain = 1 + w[static_cast<size_t>(j)];
      out.dx.push_back(rstd * dy[i] * gain -
                       rstd * rstd * rstd * inner * row[j] / static_cast<double>(s.width));
    }
  }
  return out;
}

std::vector<double> plus(std::vector<double> x, const std::vector<double>& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  return x;
}

class Norms : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Storage, Norms, testing::ValuesIn(parity::storage_dtypes),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(Norms, EqualsFormula) {
  const DType dtype = GetParam();
  const DType compute = compute_dtype(dtype);
  for (const Sizes s : all_sizes) {
    SCOPED_TRACE(testing::Message() << s.tokens << " x " << s.width);
    const Array x = parity::random(dtype, {s.tokens, s.width}, 1);
    const Array w = parity::random(dtype, {s.width}, 2, 0.3);
    const Array dy = parity::random(dtype, {s.tokens, s.width}, 3);
    Array y(dtype, x.shape());
    Array rstd(compute, {s.tokens});
    parity::run_twice({&y, &rstd}, [&](Stream& stream) {
      ops::rmsnorm_forward(stream, y.view(), rstd.view(), x.view(), w.view(), eps);
    });
    const Reference expected = reference(s, x.values(), w.values(), dy.values());
    parity::expect_close(y, expected.y, "y");
    parity::expect_close(rstd, expected.rstd, "rstd");
    Array dx(dtype, x.shape());
    Array dw = parity::random(compute, {s.width}, 4);
    const auto start = dw.values();
    parity::run_twice({&dx, &dw}, [&](Stream& stream) {
      ops::rmsnorm_backward(stream, dx.view(), dw.view(), dy.view(), x.view(), w.view(), rstd.view());
    });
    // A width of 1 has a gradient of rounding size.
    if (s.width > 1) parity::expect_close(dx, expected.dx, "dx");
    EXPECT_LE(parity::nmse(dw.values(), plus(expected.dw, start)), parity::bound(compute)) << "dw";
  }
}

TEST_P(Norms, AddRoundsTheSumFirst) {
  const DType dtype = GetParam();
  const Sizes s{65, 130};
  const Array x = parity::random(dtype, {s.tokens, s.width}, 1);
  const Array delta = parity::random(dtype, x.shape(), 5, 0.1);
  const Array w = parity::random(dtype, {s.width}, 2, 0.3);
  Array sum(dtype, x.shape());
  Array y(dtype, x.shape());
  Array rstd(compute_dtype(dtype), {s.tokens});
  parity::run_twice({&sum, &y, &rstd}, [&](Stream& stream) {
    ops::add_rmsnorm_forward(stream, sum.view(), y.view(), rstd.view(), x.view(), delta.view(), w.view(),
                             eps);
  });
  // The sum of two stored values, rounded once: exact to compare.
  std::vector<double> exact = plus(x.values(), delta.values());
  EXPECT_TRUE(sum == Array(dtype, x.shape(), exact));
  Array alone(dtype, x.shape());
  Array alone_rstd(compute_dtype(dtype), {s.tokens});
  parity::run_twice({&alone, &alone_rstd}, [&](Stream& stream) {
    ops::rmsnorm_forward(stream, alone.view(), alone_rstd.view(), sum.view(), w.view(), eps);
  });
  EXPECT_TRUE(y == alone);
  EXPECT_TRUE(rstd == alone_rstd);
}

TEST_P(Norms, AddBackwardAddsTheResidualGradientOnceAndWorksInPlace) {
  const DType dtype = GetParam();
  const Sizes s{65, 130};
  const Array sum = parity::random(dtype, {s.tokens, s.width}, 1);
  const Array w = parity::random(dtype, {s.width}, 2, 0.3);
  const Array dy = parity::random(dtype, sum.shape(), 3);
  const Array dsum = parity::random(dtype, sum.shape(), 6);
  Array rstd(compute_dtype(dtype), {s.tokens});
  const Reference expected = reference(s, sum.values(), w.values(), dy.values());
  rstd.set(expected.rstd);
  Array dx(dtype, sum.shape());
  Array dw(compute_dtype(dtype), {s.width}, std::vector<double>(static_cast<size_t>(s.width), 0.0));
  Array dw_again = dw;
  parity::run_twice({&dx, &dw}, [&](Stream& stream) {
    ops::add_rmsnorm_backward(stream, dx.view(), dw.view(), dy.view(), dsum.view(), sum.view(), w.view(),
                              rstd.view());
  });
  parity::expect_close(dx, plus(expected.dx, dsum.values()), "dx");
  Array over_dsum = dsum;
  parity::Runner run;
  run([&](Stream& stream) {
    ops::add_rmsnorm_backward(stream, over_dsum.view(), dw_again.view(), dy.view(), over_dsum.view(),
                              sum.view(), w.view(), rstd.view());
  });
  EXPECT_TRUE(over_dsum == dx);
  EXPECT_TRUE(dw_again == dw);
  Array over_dy = dy;
  run([&](Stream& stream) {
    ops::add_rmsnorm_backward(stream, over_dy.view(), Tensor{}, over_dy.view(), dsum.view(), sum.view(),
                              w.view(), rstd.view());
  });
  EXPECT_TRUE(over_dy == dx);
}

TEST(NormsGradient, RmsNorm) {
  for (const Sizes s : {Sizes{1, 2}, Sizes{3, 17}, Sizes{65, 5}, Sizes{2, 129}}) {
    SCOPED_TRACE(testing::Message() << s.tokens << " x " << s.width);
    gradcheck::Case c;
    c.inputs = {{"x", parity::random(DType::f64, {s.tokens, s.width}, 1), false},
                {"w", parity::random(DType::f64, {s.width}, 2, 0.3), true}};
    c.outputs = {Array(DType::f64, {s.tokens, s.width})};
    Array rstd(DType::f64, {s.tokens});
    c.forward = [&](Stream& stream, const auto& in, auto& out) {
      ops::rmsnorm_forward(stream, out[0].view(), rstd.view(), in[0].value.view(), in[1].value.view(), eps);
    };
    c.backward = [&](Stream& stream, const auto& in, const auto&, const auto& dout, auto& din) {
      ops::rmsnorm_backward(stream, din[0].view(), din[1].view(), dout[0].view(), in[0].value.view(),
                            in[1].value.view(), rstd.view());
    };
    c.relative = 1e-7;  // rows of two elements bend sharply: the fifth derivative is 1e3 times larger
    gradcheck::check(c);
  }
}

TEST(NormsGradient, AddRmsNorm) {
  for (const int64_t tokens : gradcheck::edge_lengths()) {
    SCOPED_TRACE(tokens);
    const Sizes s{tokens, 33};
    gradcheck::Case c;
    c.inputs = {{"x", parity::random(DType::f64, {s.tokens, s.width}, 1), false},
                {"delta", parity::random(DType::f64, {s.tokens, s.width}, 2), false},
                {"w", parity::random(DType::f64, {s.width}, 3, 0.3), true}};
    c.outputs = {Array(DType::f64, {s.tokens, s.width}), Array(DType::f64, {s.tokens, s.width})};
    Array rstd(DType::f64, {s.tokens});
    c.forward = [&](Stream& stream, const auto& in, auto& out) {
      ops::add_rmsnorm_forward(stream, out[0].view(), out[1].view(), rstd.view(), in[0].value.view(),
                               in[1].value.view(), in[2].value.view(), eps);
    };
    c.backward = [&](Stream& stream, const auto& in, const auto& out, const auto& dout, auto& din) {
      ops::add_rmsnorm_backward(stream, din[0].view(), din[2].view(), dout[1].view(), dout[0].view(),
                                out[0].view(), in[2].value.view(), rstd.view());
      din[1] = din[0];  // one gradient for both summands
    };
    c.relative = 1e-8;
    gradcheck::check(c);
  }
}

}  // namespace
}  // namespace deltatune
