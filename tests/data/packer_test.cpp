// data/packer: every conversation once, no row over T, and how full the rows get.
#include "data/packer.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/clock.h"
#include "data/helpers.h"

namespace deltatune {
namespace {

std::vector<int32_t> all_of(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

int64_t slots_of(const PackedRows& rows, const std::vector<int32_t>& lengths, int64_t r) {
  const int32_t padded = rows.padded_to[static_cast<size_t>(r)];
  int64_t sum = 0;
  for (const int32_t d : rows.row(r)) sum += padded ? padded : lengths[static_cast<size_t>(d)];
  return sum;
}

void expect_partition(const PackedRows& rows, const std::vector<int32_t>& lengths, const PackLimits& limits) {
  std::vector<int> used(lengths.size(), 0);
  for (int64_t r = 0; r < rows.rows(); ++r) {
    EXPECT_FALSE(rows.row(r).empty());
    EXPECT_LE(slots_of(rows, lengths, r), limits.max_tokens);
    if (limits.max_segments) {
      EXPECT_LE(static_cast<int64_t>(rows.row(r).size()) + 1, limits.max_segments);
    }
    const int32_t padded = rows.padded_to[static_cast<size_t>(r)];
    for (const int32_t d : rows.row(r)) {
      ++used[static_cast<size_t>(d)];
      if (padded) {
        EXPECT_LE(lengths[static_cast<size_t>(d)], padded);
      }
    }
  }
  for (const int count : used) EXPECT_EQ(count, 1);
}

TEST(Packer, PartitionsRandomLengths) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    const auto most = static_cast<int32_t>(1 + rng.below(200));
    std::vector<int32_t> lengths(1 + rng.below(500));
    for (int32_t& length : lengths) length = static_cast<int32_t>(1 + rng.below(static_cast<uint64_t>(most)));
    const PackLimits limits{most + static_cast<int64_t>(rng.below(300)),
                            seed % 3 ? 0 : static_cast<int64_t>(2 + rng.below(10))};
    for (const Batching batching : {Batching::packed, Batching::padded, Batching::sorted}) {
      expect_partition(pack_in_windows(lengths, all_of(lengths), limits, batching), lengths, limits);
    }
  }
}

// Best-fit decreasing needs at most 11/9 of the optimum + 4 rows (Johnson 1973).
TEST(Packer, StaysBelowTheTheoremsBound) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Rng rng(seed, 3);
    std::vector<int32_t> lengths(200 + rng.below(2000));
    for (int32_t& length : lengths) length = static_cast<int32_t>(1 + rng.below(1 + seed * 25));
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const PackedRows rows = pack_best_fit(lengths, all_of(lengths), {1024, 0});
    int64_t halves = 0;  // documents longer than T / 2 cannot share: another lower bound of the optimum
    for (const int32_t length : lengths) halves += length > 512;
    const int64_t lower_bound = std::max((tokens + 1023) / 1024, halves);
    EXPECT_LE(static_cast<double>(rows.rows()), 11.0 / 9 * static_cast<double>(lower_bound) + 4) << seed;
  }
}

TEST(Packer, TakesTheTightestRow) {
  // 6 and 5 open rows with room 4 and 5; 4 fits both and goes to the first, 5 to the second.
  const std::vector<int32_t> lengths = {5, 6, 4, 5};
  const PackedRows rows = pack_best_fit(lengths, all_of(lengths), {10, 0});
  ASSERT_EQ(rows.rows(), 2);
  EXPECT_EQ(std::vector<int32_t>(rows.row(0).begin(), rows.row(0).end()), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(std::vector<int32_t>(rows.row(1).begin(), rows.row(1).end()), (std::vector<int32_t>{0, 3}));
}

// Conversations as long as those of UltraChat 200k (mean 1,240 tokens, coefficient of variation about a
// third).
TEST(Packer, FillsRowsOfManyConversations) {
  const std::vector<int32_t> lengths = testing_data::lognormal_lengths(207865, 1240, 0.325, 8192, 5);
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const auto fill = [&](const PackedRows& rows) {
    return static_cast<double>(tokens) / static_cast<double>(rows.rows() * 8192);
  };
  const PackLimits limits{8192, 0};
  const Stopwatch watch;
  const PackedRows windows = pack_in_windows(lengths, all_of(lengths), limits, Batching::packed);
  const double seconds = watch.seconds();
  const double packed = fill(windows);
  const double whole = fill(pack_rows(lengths, all_of(lengths), limits));
  const double padded = fill(pack_in_windows(lengths, all_of(lengths), limits, Batching::padded));
  const double sorted = fill(pack_in_windows(lengths, all_of(lengths), limits, Batching::sorted));
  std::printf("fill: packed %.4f (all at once %.4f), padded %.4f, sorted %.4f; packed in %.3f s\n", packed,
              whole, padded, sorted, seconds);
  EXPECT_GE(packed, 0.998);
  EXPECT_GT(packed, whole - 0.001);
  EXPECT_NEAR(padded, 0.64, 0.01);
  EXPECT_GT(sorted, padded + 0.1);
  EXPECT_LT(seconds, 20);
}

}  // namespace
}  // namespace deltatune
