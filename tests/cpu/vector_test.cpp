// The vector loops: accuracy of exp, sums of any length, rounding of rows.
#include "cpu/vector.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/rng.h"

namespace deltatune::cpu {
namespace {

TEST(Exp, WithinTwoUlpOverTheWholeRange) {
  double worst = 0;
  // All results from the smallest subnormal to overflow.
  for (double x = -103.9; x < 88.8; x += 1.7e-4) {
    const auto argument = static_cast<float>(x);
    const double exact = std::exp(static_cast<double>(argument));
    if (exact > static_cast<double>(std::numeric_limits<float>::max())) continue;
    const auto nearest = static_cast<float>(exact);
    const double ulp = static_cast<double>(std::nextafter(nearest, INFINITY)) - static_cast<double>(nearest);
    worst = std::max(worst, std::abs(static_cast<double>(exp_of(argument)) - exact) / ulp);
  }
  EXPECT_LE(worst, 2.0);
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST(Exp, Extremes) {
  EXPECT_EQ(exp_of(0.0f), 1.0f);
  EXPECT_EQ(exp_of(-INFINITY), 0.0f);
  EXPECT_EQ(exp_of(-1e30f), 0.0f);
  EXPECT_EQ(exp_of(INFINITY), INFINITY);
  EXPECT_EQ(exp_of(100.0f), INFINITY);
  EXPECT_TRUE(std::isnan(exp_of(NAN)));
  EXPECT_EQ(sigmoid(-1000.0f), 0.0f);
  EXPECT_EQ(sigmoid(1000.0f), 1.0f);
  EXPECT_EQ(sigmoid(0.0f), 0.5f);
}

TEST(Sums, EveryLengthIsCoveredOnce) {
  for (int64_t n = 0; n <= 100; ++n) {
    const auto square = [](int64_t i) { return static_cast<double>(i * i); };
    EXPECT_EQ(sum_of<double>(n, square), static_cast<double>((n - 1) * n * (2 * n - 1) / 6)) << n;
    if (n == 0) continue;
    for (int64_t top = 0; top < n; ++top)
      EXPECT_EQ(max_of<float>(n, [&](int64_t i) { return i == top ? -1.0f : -2.0f; }), -1.0f);
  }
}

TEST(Rows, StoreRoundsEveryPatternLikeNarrow) {
  Rng rng(1);
  std::vector<float> values(100000);
  for (float& value : values) value = std::bit_cast<float>(rng.next_u32());
  std::vector<bf16> stored(values.size());
  store_row(stored.data(), values.data(), static_cast<int64_t>(values.size()));
  std::vector<float> loaded(values.size());
  load_row(loaded.data(), stored.data(), static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(stored[i].bits, narrow<bf16>(values[i]).bits);
    EXPECT_EQ(std::bit_cast<uint32_t>(loaded[i]), static_cast<uint32_t>(stored[i].bits) << 16);
  }
}

}  // namespace
}  // namespace deltatune::cpu
