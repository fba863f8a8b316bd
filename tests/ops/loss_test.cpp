// Cross-entropy: loss and gradient against the formula in double, in place, extremes, gradient of the sum.
#include "ops/loss.h"

#include "ops/gradcheck.h"
#include "ops/parity.h"

namespace deltatune {
namespace {

using parity::Array;

class Loss : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Storage, Loss, testing::ValuesIn(parity::storage_dtypes),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(Loss, EqualsFormulaAndWorksInPlace) {
  const DType dtype = GetParam();
  const std::vector<std::pair<int64_t, int64_t>> all_sizes = {{1, 1}, {1, 2}, {3, 63}, {65, 65}, {5, 2500}};
  for (const auto& [rows, width] : all_sizes) {
    SCOPED_TRACE(testing::Message() << rows << " x " << width);
    const Array logits = parity::random(dtype, {rows, width}, 1, 4.0);
    Array targets = parity::random_ids({rows}, static_cast<int32_t>(width), 2);
    if (rows > 2) targets.view().as<int32_t>()[1] = -100;
    const auto x = logits.values();
    double loss = 0.25;
    std::vector<double> gradient(x.size(), 0.0);
    for (int64_t n = 0; n < rows; ++n) {
      const int32_t target = targets.view().as<int32_t>()[n];
      if (target < 0) continue;
      double sum = 0;
      const auto at = [&](int64_t j) { return static_cast<size_t>(n * width + j); };
      for (int64_t j = 0; j < width; ++j) sum += std::exp(x[at(j)]);
      loss += std::log(sum) - x[at(target)];
      for (int64_t j = 0; j < width; ++j) gradient[at(j)] = std::exp(x[at(j)]) / sum - (j == target ? 1 : 0);
    }
    Array sum(DType::f64, {1}, {0.25});
    Array dlogits(dtype, logits.shape());
    parity::run_twice({&sum, &dlogits}, [&](Stream& s) {
      ops::cross_entropy(s, sum.view(), dlogits.view(), logits.view(), targets.view());
    });
    EXPECT_NEAR(sum.values()[0], loss, (dtype == DType::f64 ? 1e-13 : 2e-7) * std::max(1.0, loss));
    if (width > 1) parity::expect_close(dlogits, gradient, "dlogits");
    Array in_place = logits;
    Array sum_again(DType::f64, {1}, {0.25});
    Array sum_only(DType::f64, {1}, {0.25});
    parity::Runner run;
    run([&](Stream& s) {
      ops::cross_entropy(s, sum_only.view(), Tensor{}, in_place.view(), targets.view());
    });
    EXPECT_TRUE(in_place == logits) << "evaluation wrote";
    run([&](Stream& s) {
      ops::cross_entropy(s, sum_again.view(), in_place.view(), in_place.view(), targets.view());
    });
    EXPECT_TRUE(in_place == dlogits);
    EXPECT_TRUE(sum_again == sum);
    EXPECT_TRUE(sum_only == sum);
  }
}

TEST_P(Loss, LargeLogitsDoNotOverflow) {
  const DType dtype = GetParam();
  const Array logits(dtype, {2, 3}, {1e4, 0, -1e4, -1e4, -1e4, -1e4});
  const Array targets(DType::i32, {2}, {1, 2});
  Array sum(DType::f64, {1}, {0});
  Array dlogits(dtype, {2, 3});
  parity::run_twice({&sum, &dlogits}, [&](Stream& s) {
    ops::cross_entropy(s, sum.view(), dlogits.view(), logits.view(), targets.view());
  });
  EXPECT_NEAR(sum.values()[0], logits.values()[0] + std::log(3.0), 1e-3);
  const auto d = dlogits.values();
  EXPECT_EQ(d[0], 1);
  EXPECT_EQ(d[1], -1);
  EXPECT_NEAR(d[3], 1 / 3.0, 2e-3);
  EXPECT_NEAR(d[5], -2 / 3.0, 3e-3);
}

TEST(LossOp, NanInOneRowReachesTheLoss) {
  const Array logits(DType::f32, {2, 3}, {1, NAN, 2, 1, 2, 3});
  const Array targets(DType::i32, {2}, {0, 1});
  Array sum(DType::f64, {1}, {0});
  parity::Runner run;
  run([&](Stream& s) { ops::cross_entropy(s, sum.view(), Tensor{}, logits.view(), targets.view()); });
  EXPECT_TRUE(std::isnan(sum.values()[0]));
}

TEST(LossOp, Gradient) {
  for (const int64_t width : {2, 17, 65}) {
    for (const int64_t tokens : gradcheck::edge_lengths()) {
      SCOPED_TRACE(testing::Message() << tokens << " x " << width);
      const Array targets = parity::random_ids({tokens}, static_cast<int32_t>(width), 1);
      gradcheck::Case c;
      c.inputs = {{"logits", parity::random(DType::f64, {tokens, width}, 2), false}};
      c.outputs = {Array(DType::f64, {1}, {0})};
      c.forward = [&](Stream& s, const auto& in, auto& out) {
        ops::cross_entropy(s, out[0].view(), Tensor{}, in[0].value.view(), targets.view());
      };
      c.backward = [&](Stream& s, const auto& in, const auto&, const auto& dout, auto& din) {
        Array unused(DType::f64, {1}, {0});
        ops::cross_entropy(s, unused.view(), din[0].view(), in[0].value.view(), targets.view());
        if (s.device().is_null()) return;
        // The op gives the gradient of the sum; the check weighs it.
        auto values = din[0].values();
        for (double& value : values) value *= dout[0].values()[0];
        din[0].set(values);
      };
      gradcheck::check(c);
    }
  }
}

}  // namespace
}  // namespace deltatune
