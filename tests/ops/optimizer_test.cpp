// sum_squares, grad_scale and AdamW.
#include "ops/optimizer.h"

#include <bit>
#include <cmath>

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

/// Parameters, moments and gradients of one update, in chosen dtypes.
struct Update {
  Array param, master, m, v, grad;
  AdamwOptions options;

  Update(DType param_dtype, DType moments, int64_t count, Rounding rounding)
      : param(parity::random(param_dtype, {count}, 1, 0.02)),
        master(DType::f32, {count}, param.values()),
        m(parity::random(moments, {count}, 3, 1e-3)),
        v(moments, {count}, squares(count)),
        grad(parity::random(DType::f32, {count}, 5)) {
    options = {.weight_decay = 0.1f, .rounding = rounding, .seed = 11};
  }
  static std::vector<double> squares(int64_t count) {
    std::vector<double> out = parity::normal(count, 4, 1e-2);
    for (double& x : out) x *= x;
    return out;
  }
  /// Elements [begin, end), as a rank would that holds only them.
  void run(int64_t begin, int64_t end, bool own_master, double step = 1) {
    const Array scalars(DType::f32, {8}, {1e-3, 0.19, 0.0975, 0.125, 0.11, 3, 0, step});
    const auto cut = [&](Array& x) { return x.view().slice(begin, end - begin); };
    parity::Runner runner;
    runner([&](Stream& s) {
      AdamwTensors t{cut(param), own_master ? Tensor{} : cut(master), cut(m), cut(v), cut(grad)};
      t.first = begin;
      t.group = 3;
      ops::adamw(s, t, scalars.view(), options);
    });
  }
};

TEST(Adamw, NearestBf16IsTheRoundedResultInFp32) {
  const int64_t count = 20001;
  for (const DType param : {DType::f32, DType::bf16}) {
    for (const DType moments : {DType::f32, DType::bf16}) {
      Update narrow(param, moments, count, Rounding::nearest);
      Update wide(DType::f32, DType::f32, count, Rounding::nearest);
      wide.param.set(narrow.param.values());
      wide.m.set(narrow.m.values());
      wide.v.set(narrow.v.values());
      narrow.run(0, count, true);
      wide.run(0, count, true);
      EXPECT_TRUE(narrow.param == Array(param, {count}, wide.param.values()));
      EXPECT_TRUE(narrow.m == Array(moments, {count}, wide.m.values()));
      EXPECT_TRUE(narrow.v == Array(moments, {count}, wide.v.values()));
    }
  }
}

TEST(Adamw, StochasticRoundingGoesToANeighbourAndIsRightOnAverage) {
  const int64_t count = 200000;
  Update narrow(DType::bf16, DType::bf16, count, Rounding::stochastic);
  Update wide(DType::f32, DType::f32, count, Rounding::nearest);
  wide.param.set(narrow.param.values());
  wide.m.set(narrow.m.values());
  wide.v.set(narrow.v.values());
  narrow.run(0, count, true);
  wide.run(0, count, true);
  const auto check = [&](const char* name, const Array& rounded, const Array& exact) {
    SCOPED_TRACE(name);
    const auto* bits = rounded.view().as<bf16>();
    double sum = 0, variance = 0;
    int64_t up = 0;
    for (int64_t i = 0; i < count; ++i) {
      const float x = exact.view().as<float>()[i];
      const auto below = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);  // towards zero
      const double low = static_cast<double>(widen(bf16{below}));
      const double high = static_cast<double>(widen(bf16{static_cast<uint16_t>(below + 1)}));
      const double got = static_cast<double>(widen(bits[i]));
      ASSERT_TRUE(got == low || got == high) << i << ": " << got << " for " << x;
      up += got == high && got != low;
      const double share = (static_cast<double>(x) - low) / (high - low);
      // In units of the gap: mean 0 and variance share (1 - share) where rounding is unbiased.
      sum += (got - static_cast<double>(x)) / (high - low);
      variance += share * (1 - share);
    }
    EXPECT_GT(up, count / 4);
    EXPECT_LE(std::abs(sum), 5 * std::sqrt(variance));
  };
  check("param", narrow.param, wide.param);
  check("m", narrow.m, wide.m);
  check("v", narrow.v, wide.v);
}

TEST(Adamw, StochasticRoundingKnowsElementAndStepButNotTheCut) {
  const int64_t count = 1003;
  Update whole(DType::bf16, DType::bf16, count, Rounding::stochastic);
  Update parts = whole;
  Update later = whole;
  whole.run(0, count, true);
  parts.run(0, 333, true);
  parts.run(333, 334, true);
  parts.run(334, count, true);
  EXPECT_TRUE(whole.param == parts.param && whole.m == parts.m && whole.v == parts.v);
  later.run(0, count, true, 2);
  EXPECT_FALSE(whole.param == later.param);
}

TEST(Adamw, SmallUpdatesMoveBf16WeightsOnlyByChance) {
  // Half a gap at 1 is 2^-8; the update of lr = 1e-4 is far below.
  const int64_t count = 100000;
  for (const Rounding rounding : {Rounding::nearest, Rounding::stochastic}) {
    Update update(DType::bf16, DType::f32, count, rounding);
    update.options.weight_decay = 0;
    update.param.set(std::vector<double>(static_cast<size_t>(count), 1.0));
    update.m.set(std::vector<double>(static_cast<size_t>(count), 0.0));
    update.v.set(std::vector<double>(static_cast<size_t>(count), 0.0));
    update.grad.set(std::vector<double>(static_cast<size_t>(count), -1.0));
    const Array scalars(DType::f32, {8}, {1e-4, 1 - 0.9, 1 - 0.95, 1, 1, 1, 0, 1});
    parity::Runner runner;
    runner([&](Stream& s) {
      ops::adamw(s, {update.param.view(), Tensor{}, update.m.view(), update.v.view(), update.grad.view()},
                 scalars.view(), update.options);
    });
    double moved = 0;
    for (const double p : update.param.values()) moved += p - 1;
    const double gap = 0x1p-7, share = 1e-4 / gap;
    if (rounding == Rounding::nearest) {
      EXPECT_EQ(moved, 0);
    } else {
      const double n = static_cast<double>(count);
      EXPECT_NEAR(moved, 1e-4 * n, 5 * gap * std::sqrt(n * share * (1 - share)));
    }
  }
}

}  // namespace
}  // namespace deltatune
