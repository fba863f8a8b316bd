// sum_squares, grad_scale and AdamW.
#include "ops/optimizer.h"

#include "ops/parity.h"

namespace deltatune {
namespace {

using parity::Array;

TEST(SumSquares, AddsToTheSum) {
  for (const DType dtype : parity::storage_dtypes) {
    for (const int64_t count : {1, 15, 4095, 4096, 4097, 50000}) {
      const Array x = parity::random(dtype, {count}, 1);
      double expected = 3;
      for (const double value : x.values()) expected += value * value;
      Array sum(DType::f64, {1}, {3});
      parity::run_twice({&sum}, [&](Stream& s) { ops::sum_squares(s, sum.view(), x.view()); });
      EXPECT_NEAR(sum.values()[0], expected, 1e-12 * expected) << name_of(dtype) << " " << count;
    }
  }
}

/// Scalars with inverse_count 1/8 after grad_scale.
std::vector<double> scaled(double sum_of_squares, float max_norm) {
  Array scalars(DType::f32, {8}, {0.5, 0.25, 0.125, 0.125, -1, -1, -1, 9});
  const Array sum(DType::f64, {1}, {sum_of_squares});
  parity::run_twice({&scalars}, [&](Stream& s) { ops::grad_scale(s, scalars.view(), sum.view(), max_norm); });
  const auto out = scalars.values();
  // The inputs and the unused entry are left alone.
  EXPECT_EQ(out[StepScalar::learning_rate], 0.5);
  EXPECT_EQ(out[StepScalar::inverse_count], 0.125);
  EXPECT_EQ(out[7], 9);
  return out;
}

TEST(GradScale, BelowTheLimitOnlyDivides) {
  const auto out = scaled(64.0, 2.0f);  // norm 8 / 8 = 1
  EXPECT_EQ(out[StepScalar::gradient_norm], 1);
  EXPECT_EQ(out[StepScalar::gradient_scale], 0.125);
  EXPECT_EQ(out[StepScalar::nonfinite], 0);
}

TEST(GradScale, AboveTheLimitClips) {
  const auto out = scaled(6400.0, 2.0f);  // norm 10
  EXPECT_EQ(out[StepScalar::gradient_norm], 10);
  EXPECT_NEAR(out[StepScalar::gradient_scale], 0.125 * 2.0 / (10.0 + 1e-6), 1e-8);
  EXPECT_EQ(out[StepScalar::nonfinite], 0);
}

TEST(GradScale, NoLimit) {
  for (const float none : {0.0f, -1.0f}) EXPECT_EQ(scaled(6400.0, none)[StepScalar::gradient_scale], 0.125);
}

TEST(GradScale, NonFiniteIsFlagged) {
  for (const double bad : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    Array scalars(DType::f32, {8}, {0.5, 1, 1, 0.125, -1, -1, -1, 9});
    const Array sum(DType::f64, {1}, {bad});
    parity::Runner run;
    run([&](Stream& s) { ops::grad_scale(s, scalars.view(), sum.view(), 1.0f); });
    EXPECT_EQ(scalars.values()[StepScalar::nonfinite], 1);
    EXPECT_EQ(scalars.values()[StepScalar::gradient_scale], 0);
    EXPECT_FALSE(std::isfinite(scalars.values()[StepScalar::gradient_norm]));
  }
}

struct Reference {
  std::vector<double> p, m, v;
  void step(int n, const std::vector<double>& grad, double scale, double lr, const AdamwOptions& o) {
    for (size_t i = 0; i < p.size(); ++i) {
      const double b1 = static_cast<double>(o.beta1);
      const double b2 = static_cast<double>(o.beta2);
      const double g = scale * grad[i];
      p[i] *= 1 - lr * static_cast<double>(o.weight_decay);
      m[i] = b1 * m[i] + (1 - b1) * g;
      v[i] = b2 * v[i] + (1 - b2) * g * g;
      p[i] -= lr * (m[i] / (1 - std::pow(b1, n))) /
              (std::sqrt(v[i] / (1 - std::pow(b2, n))) + static_cast<double>(o.eps));
    }
  }
};

Array scalars_of(int n, double lr, double scale, const AdamwOptions& o, double nonfinite = 0) {
  return {DType::f32,
          {8},
          {lr, 1 - std::pow(static_cast<double>(o.beta1), n), 1 - std::pow(static_cast<double>(o.beta2), n),
           1, scale, 1, nonfinite, 0}};
}

TEST(Adamw, ThreeStepsEqualTheFormula) {
  const AdamwOptions options{.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
  const double lr = 1e-2;
  const double scale = 0.37;
  for (const bool separate_master : {false, true}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      if (!separate_master && dtype == DType::bf16) continue;
      const int64_t count = 20001;
      Array master = parity::random(DType::f32, {count}, 1);
      Array param = separate_master ? Array(dtype, {count}) : master;
      const std::vector<double> zeros(static_cast<size_t>(count), 0.0);
      Array m(DType::f32, {count}, zeros);
      Array v(DType::f32, {count}, zeros);
      const std::vector<double> start = master.values();
      Reference reference{start, zeros, zeros};
      for (int n = 1; n <= 3; ++n) {
        const Array grad = parity::random(DType::f32, {count}, 10 + static_cast<uint64_t>(n));
        const Array scalars = scalars_of(n, lr, scale, options);
        const auto update = [&](Stream& s) {
          ops::adamw(
              s, {param.view(), separate_master ? master.view() : Tensor{}, m.view(), v.view(), grad.view()},
              scalars.view(), options);
        };
        parity::run_twice({&param, &master, &m, &v}, update);
        reference.step(n, grad.values(), scale, lr, options);
      }
      const Array& result = separate_master ? master : param;
      std::vector<double> moved = result.values();
      std::vector<double> expected = reference.p;
      for (size_t i = 0; i < moved.size(); ++i) {
        moved[i] -= start[i];
        expected[i] -= start[i];
      }
      // The update, not the value: 0.03 of order-1 parameters, so fp32 leaves 1e-7 / 3e-2.
      EXPECT_LE(parity::nmse(moved, expected), 1e-10);
      EXPECT_LE(parity::nmse(m.values(), reference.m), 1e-13);
      EXPECT_LE(parity::nmse(v.values(), reference.v), 1e-13);
      if (separate_master) {
        EXPECT_TRUE(param == Array(dtype, {count}, master.values()));
      }
    }
  }
}

TEST(Adamw, NonFiniteChangesNothing) {
  const AdamwOptions options{.weight_decay = 0.1f};
  const int64_t count = 100;
  Array master = parity::random(DType::f32, {count}, 1);
  Array param = parity::random(DType::bf16, {count}, 2);
  Array m = parity::random(DType::f32, {count}, 3);
  Array v = parity::random(DType::f32, {count}, 4);
  const Array before[] = {master, param, m, v};
  const Array grad(DType::f32, {count}, std::vector<double>(static_cast<size_t>(count), NAN));
  const Array scalars = scalars_of(1, 1e-2, 0, options, 1);
  parity::Runner run;
  run([&](Stream& s) {
    ops::adamw(s, {param.view(), master.view(), m.view(), v.view(), grad.view()}, scalars.view(), options);
  });
  EXPECT_TRUE(master == before[0] && param == before[1] && m == before[2] && v == before[3]);
}

TEST(Adamw, DecayReachesParametersWithoutGradient) {
  const AdamwOptions options{.weight_decay = 0.5f};
  Array param(DType::f32, {2}, {1, -4});
  Array m(DType::f32, {2}, {0, 0});
  Array v(DType::f32, {2}, {0, 0});
  const Array grad(DType::f32, {2}, {0, 0});
  const Array scalars = scalars_of(1, 0.5, 1, options);
  parity::run_twice({&param, &m, &v}, [&](Stream& s) {
    ops::adamw(s, {param.view(), Tensor{}, m.view(), v.view(), grad.view()}, scalars.view(), options);
  });
  EXPECT_EQ(param.values(), (std::vector<double>{0.75, -3}));
}

}  // namespace
}  // namespace deltatune
