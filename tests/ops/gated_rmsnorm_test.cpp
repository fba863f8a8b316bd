// gated_rmsnorm: against its formula, gradients against central differences, precision, repeatability.
#include <gtest/gtest.h>

#include "ops/delta_net_case.h"

namespace deltatune::delta_net_case {
namespace {

constexpr float eps = 1e-6f;

struct Inputs {
  GdnShape shape;
  int64_t tokens;
  std::vector<double> o, proj, w, dy;
};

Inputs make_inputs(const GdnShape& shape, int64_t tokens) {
  Rng rng(5);
  Inputs in{shape,
            tokens,
            normals(rng, tokens * shape.values()),
            normals(rng, tokens * shape.columns(), 3),
            normals(rng, shape.value_dim, 0.2),
            normals(rng, tokens * shape.values())};
  for (double& w : in.w) w += 1;
  in.proj[static_cast<size_t>(shape.z_column())] = -90;  // silu' at both ends
  in.proj[static_cast<size_t>(shape.z_column()) + 1] = 90;
  return in;
}

struct Outputs {
  Array y, rstd, dout, dproj, dw;
  std::vector<Array*> all() { return {&y, &rstd, &dout, &dproj, &dw}; }
};

Outputs run_both(const Inputs& in, DType storage, double dw_start = 0) {
  const GdnShape& s = in.shape;
  const DType compute = compute_dtype(storage);
  const Shape heads{in.tokens, s.value_heads, s.value_dim};
  Array o(storage, heads, in.o), proj(storage, {in.tokens, s.columns()}, in.proj);
  Array w(compute, {s.value_dim}, in.w), dy(storage, heads, in.dy);
  Outputs out{Array(storage, heads), Array(compute, {in.tokens, s.value_heads}), Array(storage, heads),
              Array(storage, {in.tokens, s.columns()}),
              Array(compute, {s.value_dim}, std::vector<double>(static_cast<size_t>(s.value_dim), dw_start))};
  run(Op::gated_rmsnorm_forward, [&](Stream& stream) {
    ops::gated_rmsnorm_forward(stream, out.y.view(), out.rstd.view(), o.view(), proj.view(), w.view(), s,
                               eps);
  });
  run(Op::gated_rmsnorm_backward, [&](Stream& stream) {
    ops::gated_rmsnorm_backward(stream, out.dout.view(), out.dproj.view(), out.dw.view(), dy.view(), o.view(),
                                proj.view(), w.view(), out.rstd.view(), s);
  });
  for (Array* a : out.all()) EXPECT_TRUE(a->intact());
  return out;
}

/// The z columns of dproj; all others must still be NaN.
std::vector<double> dz_of(const Outputs& out, const GdnShape& s) {
  const std::vector<double> dproj = out.dproj.values();
  std::vector<double> dz;
  for (size_t i = 0; i < dproj.size(); ++i) {
    const int64_t column = static_cast<int64_t>(i) % s.columns();
    if (column >= s.z_column() && column < s.b_column()) {
      dz.push_back(dproj[i]);
    } else {
      EXPECT_TRUE(std::isnan(dproj[i])) << "column " << column << " written";
    }
  }
  return dz;
}

const GdnShape shapes[] = {{1, 1, 2, 3, 4}, {1, 2, 4, 16, 4}, {2, 6, 4, 9, 4}};

TEST(GatedRmsnorm, EqualsItsFormula) {
  for (const GdnShape& s : shapes) {
    const Inputs in = make_inputs(s, 70);
    const std::vector<double> y = run_both(in, DType::f64).y.values();
    for (int64_t row = 0; row < in.tokens * s.value_heads; ++row) {
      const int64_t t = row / s.value_heads, h = row % s.value_heads;
      double squares = 0;
      for (int64_t j = 0; j < s.value_dim; ++j) {
        squares += std::pow(in.o[static_cast<size_t>(row * s.value_dim + j)], 2);
      }
      const double rstd =
          1 / std::sqrt(squares / static_cast<double>(s.value_dim) + static_cast<double>(eps));
      for (int64_t j = 0; j < s.value_dim; ++j) {
        const size_t i = static_cast<size_t>(row * s.value_dim + j);
        const double z = in.proj[static_cast<size_t>(t * s.columns() + s.z_column() + h * s.value_dim + j)];
        const double expected = in.o[i] * rstd * in.w[static_cast<size_t>(j)] * z / (1 + std::exp(-z));
        ASSERT_NEAR(y[i], expected, 1e-13 * (1 + std::fabs(expected)));
      }
    }
  }
}

TEST(GatedRmsnorm, GradientIsTheDerivative) {
  for (const GdnShape& s : shapes) {
    for (const int64_t tokens : {1, 63, 64, 129}) {
      Inputs in = make_inputs(s, tokens);
      const Outputs out = run_both(in, DType::f64);
      const auto loss = [&] { return dot(run_both(in, DType::f64).y.values(), in.dy); };
      check_gradient("o", in.o, out.dout.values(), loss);
      check_gradient("w", in.w, out.dw.values(), loss);
      std::vector<double> dproj(in.proj.size(), 0);
      const std::vector<double> dz = dz_of(out, s);
      for (size_t i = 0; i < dz.size(); ++i) {
        const int64_t t = static_cast<int64_t>(i) / s.values(), column = static_cast<int64_t>(i) % s.values();
        dproj[static_cast<size_t>(t * s.columns() + s.z_column() + column)] = dz[i];
      }
      check_gradient("proj", in.proj, dproj, loss);
    }
  }
}

// f32 1e-10 by contract; bf16: one rounding at the store of fp32 values costs 1.4e-6, and rstd and dw are
// fp32.
TEST(GatedRmsnorm, PrecisionInF32AndBf16) {
  for (const DType storage : {DType::f32, DType::bf16}) {
    for (const GdnShape& s : shapes) {
      Inputs in = make_inputs(s, 200);
      for (std::vector<double>* x : {&in.o, &in.proj, &in.dy}) *x = rounded(*x, storage);
      in.w = rounded(in.w, DType::f32);
      const Outputs low = run_both(in, storage), exact = run_both(in, DType::f64);
      const double stored = storage == DType::bf16 ? 3e-6 : 1e-10;
      EXPECT_LE(nmse(low.y.values(), exact.y.values()), stored);
      EXPECT_LE(nmse(low.rstd.values(), exact.rstd.values()), 1e-10);
      EXPECT_LE(nmse(low.dout.values(), exact.dout.values()), stored);
      EXPECT_LE(nmse(dz_of(low, s), dz_of(exact, s)), stored);
      EXPECT_LE(nmse(low.dw.values(), exact.dw.values()), 1e-10);
    }
  }
}

TEST(GatedRmsnorm, ZeroRowsStayFinite) {
  Inputs in = make_inputs({1, 1, 2, 8, 4}, 3);
  std::fill(in.o.begin(), in.o.end(), 0.0);
  Outputs out = run_both(in, DType::f32);
  for (const double x : out.y.values()) EXPECT_EQ(x, 0);
  for (const double x : out.rstd.values()) EXPECT_NEAR(x, 1e3, 0.1);
  for (const double x : out.dout.values()) EXPECT_TRUE(std::isfinite(x));
}

TEST(GatedRmsnorm, WeightGradientAccumulates) {
  const Inputs in = make_inputs({1, 2, 4, 16, 4}, 129);
  std::vector<double> expected = run_both(in, DType::f64).dw.values();
  for (double& x : expected) x += 1;
  EXPECT_LE(largest_difference(run_both(in, DType::f64, 1).dw.values(), expected), 1e-12);
}

TEST(GatedRmsnorm, RepeatsBitForBitOnAnyNumberOfThreads) {
  for (const DType storage : {DType::f32, DType::bf16}) {
    const Inputs in = make_inputs({2, 6, 4, 16, 4}, 333);
    Outputs first = run_both(in, storage), second = run_both(in, storage), alone;
    parallel_for(1, 1, [&](int64_t, int64_t, int) { alone = run_both(in, storage); });
    for (size_t i = 0; i < first.all().size(); ++i) {
      EXPECT_TRUE(*first.all()[i] == *second.all()[i]) << i;
      EXPECT_TRUE(*first.all()[i] == *alone.all()[i]) << i;
    }
  }
}

}  // namespace
}  // namespace deltatune::delta_net_case
