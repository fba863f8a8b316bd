// SwiGLU, fill, fill_normal, cast and add.
#include "ops/elementwise.h"

#include "ops/gradcheck.h"
#include "ops/parity.h"

namespace deltatune {
namespace {

using parity::Array;

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

class Elementwise : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Storage, Elementwise, testing::ValuesIn(parity::storage_dtypes),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(Elementwise, SwigluEqualsFormulaAndWorksInPlace) {
  const DType dtype = GetParam();
  const std::vector<std::pair<int64_t, int64_t>> all_sizes = {{1, 1}, {3, 17}, {65, 64}, {2, 1000}};
  for (const auto& [tokens, width] : all_sizes) {
    const Array gate_up = parity::random(dtype, {tokens, 2 * width}, 1, 3.0);
    const Array dy = parity::random(dtype, {tokens, width}, 2);
    std::vector<double> y_expected, dgate_up_expected(static_cast<size_t>(tokens * 2 * width));
    const auto x = gate_up.values();
    const auto d = dy.values();
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t j = 0; j < width; ++j) {
        const auto g = static_cast<size_t>(t * 2 * width + j);
        const auto u = g + static_cast<size_t>(width);
        const double dv = d[static_cast<size_t>(t * width + j)];
        const double s = sigmoid(x[g]);
        y_expected.push_back(x[g] * s * x[u]);
        dgate_up_expected[g] = dv * x[u] * (s + x[g] * s * (1 - s));
        dgate_up_expected[u] = dv * x[g] * s;
      }
    }
    Array y(dtype, {tokens, width});
    parity::run_twice({&y}, [&](Stream& s) { ops::swiglu_forward(s, y.view(), gate_up.view()); });
    parity::expect_close(y, y_expected, "y");
    Array dgate_up(dtype, gate_up.shape());
    parity::run_twice(
        {&dgate_up}, [&](Stream& s) { ops::swiglu_backward(s, dgate_up.view(), dy.view(), gate_up.view()); });
    parity::expect_close(dgate_up, dgate_up_expected, "dgate_up");
    Array in_place = gate_up;
    parity::Runner run;
    run([&](Stream& s) { ops::swiglu_backward(s, in_place.view(), dy.view(), in_place.view()); });
    EXPECT_TRUE(in_place == dgate_up);
  }
}

TEST_P(Elementwise, SwigluAtExtremesIsFinite) {
  const DType dtype = GetParam();
  const Array gate_up(dtype, {1, 8}, {-1e4, -100, 100, 1e4, 2, 2, 2, 2});
  const Array dy(dtype, {1, 4}, {1, 1, 1, 1});
  Array y(dtype, {1, 4});
  Array dgate_up(dtype, {1, 8});
  parity::run_twice({&y, &dgate_up}, [&](Stream& s) {
    ops::swiglu_forward(s, y.view(), gate_up.view());
    ops::swiglu_backward(s, dgate_up.view(), dy.view(), gate_up.view());
  });
  const auto values = gate_up.values();
  EXPECT_NEAR(y.values()[0], 0, 1e-30);
  EXPECT_NEAR(y.values()[1], 0, 1e-30);
  EXPECT_EQ(y.values()[2], 2 * values[2]);
  EXPECT_EQ(y.values()[3], 2 * values[3]);
  EXPECT_EQ(dgate_up.values()[2], 2);
  EXPECT_EQ(dgate_up.values()[3], 2);
}

TEST(ElementwiseOp, SwigluGradient) {
  for (const int64_t tokens : gradcheck::edge_lengths()) {
    SCOPED_TRACE(tokens);
    gradcheck::Case c;
    c.inputs = {{"gate_up", parity::random(DType::f64, {tokens, 34}, 1, 2.0), false}};
    c.outputs = {Array(DType::f64, {tokens, 17})};
    c.forward = [](Stream& s, const auto& in, auto& out) {
      ops::swiglu_forward(s, out[0].view(), in[0].value.view());
    };
    c.backward = [](Stream& s, const auto& in, const auto&, const auto& dout, auto& din) {
      ops::swiglu_backward(s, din[0].view(), dout[0].view(), in[0].value.view());
    };
    gradcheck::check(c);
  }
}

TEST(ElementwiseOp, FillEveryDtype) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32}) {
    Array y(dtype, {3, 7});
    parity::run_twice({&y}, [&](Stream& s) { ops::fill(s, y.view(), -2.0); });
    EXPECT_EQ(y.values(), std::vector<double>(21, -2.0)) << name_of(dtype);
  }
  std::vector<int64_t> wide(3);
  std::vector<uint8_t> bytes(3);
  parity::Runner run;
  run([&](Stream& s) {
    ops::fill(s, {reinterpret_cast<std::byte*>(wide.data()), DType::i64, {3}}, -5.0);
    ops::fill(s, {reinterpret_cast<std::byte*>(bytes.data()), DType::u8, {3}}, 7.0);
  });
  EXPECT_EQ(wide, (std::vector<int64_t>{-5, -5, -5}));
  EXPECT_EQ(bytes, (std::vector<uint8_t>{7, 7, 7}));
}

// Against the C library's functions, which are not the same everywhere: to the last place that f32 keeps.
TEST(ElementwiseOp, NormalValuesArePureFunctionsOfTheirPlace) {
  constexpr int64_t count = 40001;
  const NormalStream which{42, 7, 100};
  Array y(DType::f64, {count});
  parity::run_twice({&y}, [&](Stream& s) { ops::fill_normal(s, y.view(), 0.5, which); });
  const std::vector<double> values = y.values();
  double mean = 0, square = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Philox4 r = philox(42, 7, 100 + static_cast<uint64_t>(i));
    const auto uniform = [](uint32_t high, uint32_t low) {
      return std::ldexp(static_cast<double>((uint64_t{high} << 32 | low) >> 11), -53);
    };
    const double expected = std::sqrt(-2 * std::log(1 - uniform(r.x[0], r.x[1]))) *
                            std::cos(6.283185307179586 * uniform(r.x[2], r.x[3]));
    const double x = values[static_cast<size_t>(i)] / 0.5;
    ASSERT_NEAR(x, expected, 1e-14) << i;
    mean += x / count;
    square += x * x / count;
  }
  EXPECT_NEAR(mean, 0, 5 / std::sqrt(double{count}));
  EXPECT_NEAR(square, 1, 5 * std::sqrt(2 / double{count}));
  // A later piece is the same values, and f32 and bf16 are those rounded.
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t n : {int64_t{1}, int64_t{3}, int64_t{1000}}) {
      Array piece(dtype, {n});
      parity::run_twice({&piece}, [&](Stream& s) {
        ops::fill_normal(s, piece.view(), 0.5, {42, 7, 100 + 5});
      });
      EXPECT_TRUE(piece == Array(dtype, {n}, {values.begin() + 5, values.begin() + 5 + n})) << name_of(dtype);
    }
  }
}

TEST(ElementwiseOp, CastRoundsOnceBetweenAllFloatingDtypes) {
  const std::vector<DType> dtypes = {DType::f32, DType::bf16, DType::f16, DType::f64};
  for (const DType from : dtypes) {
    for (const DType to : dtypes) {
      for (const int64_t count : {int64_t{1}, int64_t{65}, int64_t{40000}}) {
        const Array x = parity::random(from, {count}, 1, 100.0);
        Array y(to, {count});
        parity::run_twice({&y}, [&](Stream& s) { ops::cast(s, y.view(), x.view()); });
        EXPECT_TRUE(y == Array(to, {count}, x.values())) << name_of(from) << " to " << name_of(to);
      }
    }
  }
}

TEST(ElementwiseOp, CastToBf16RoundsToEvenAndKeepsNanAndInfinity) {
  const double ulp = 0x1p-7;  // of bf16 at 1
  const Array x(DType::f32, {6},
                {1 + ulp / 2, 1 + 3 * ulp / 2, 1 + ulp / 2 + 0x1p-20, 3.4e38, INFINITY, NAN});
  Array y(DType::bf16, {6});
  parity::Runner run;
  run([&](Stream& s) { ops::cast(s, y.view(), x.view()); });
  const auto values = y.values();
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], 1 + 2 * ulp);
  EXPECT_EQ(values[2], 1 + ulp);
  EXPECT_EQ(values[3], INFINITY);
  EXPECT_EQ(values[4], INFINITY);
  EXPECT_TRUE(std::isnan(values[5]));
}

TEST(ElementwiseOp, AddRoundsTheSumOnce) {
  for (const DType y_dtype : parity::storage_dtypes) {
    for (const DType x_dtype : parity::storage_dtypes) {
      if (x_dtype == DType::f64 && y_dtype != DType::f64) continue;
      Array y = parity::random(y_dtype, {3, 333}, 1);
      const Array x = parity::random(x_dtype, {3, 333}, 2);
      std::vector<double> sum = y.values();
      for (size_t i = 0; i < sum.size(); ++i) {
        // bf16 stores round the fp32 sum, as the contract says.
        const double exact = sum[i] + x.values()[i];
        sum[i] = y_dtype == DType::bf16 ? static_cast<double>(static_cast<float>(exact)) : exact;
      }
      parity::run_twice({&y}, [&](Stream& s) { ops::add(s, y.view(), x.view()); });
      EXPECT_TRUE(y == Array(y_dtype, {3, 333}, sum)) << name_of(y_dtype) << " += " << name_of(x_dtype);
    }
  }
}

}  // namespace
}  // namespace deltatune
