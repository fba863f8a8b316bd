// data/exact_fit: the rows of a plain search that does the same, every document once, bounded work.
#include "data/exact_fit.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <numeric>

#include "data/helpers.h"

namespace deltatune {
namespace {

std::vector<int32_t> all_of(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// The same rows by trying every pair and triple of a map of counts.
class Reference {
 public:
  Reference(const std::vector<int32_t>& lengths, const PackLimits& limits) : limits_(limits) {
    for (const int32_t length : lengths) ++left_[length];
  }
  std::vector<std::vector<int64_t>> pack() {
    std::vector<std::vector<int64_t>> rows;
    while (!left_.empty()) {
      std::vector<int64_t>& row = rows.emplace_back();
      const int64_t most = limits_.max_segments == 0 ? INT64_MAX : limits_.max_segments - 1;
      int64_t room = limits_.max_tokens;
      while (room > 0 && static_cast<int64_t>(row.size()) < most) {
        if (!row.empty() && close(room, most - static_cast<int64_t>(row.size()), row)) break;
        const int64_t length = longest(room);
        if (length == 0) break;
        take(length);
        row.push_back(length);
        room -= length;
      }
    }
    return rows;
  }

 private:
  int64_t longest(int64_t limit) const {
    int64_t out = 0;
    for (const auto& [length, count] : left_) {
      if (length <= limit) out = length;
    }
    return out;
  }
  void take(int64_t length) {
    if (--left_.at(length) == 0) left_.erase(length);
  }
  bool possible(const std::vector<int64_t>& lengths) const {
    std::map<int64_t, int64_t> wanted;
    for (const int64_t length : lengths) ++wanted[length];
    for (const auto& [length, count] : wanted) {
      const auto found = left_.find(length);
      if (found == left_.end() || found->second < count) return false;
    }
    return true;
  }
  bool close(int64_t room, int64_t places, std::vector<int64_t>& row) {
    std::vector<std::vector<int64_t>> ways;
    ways.push_back({room});
    for (const auto& [a, n] : left_) {
      if (places >= 2 && 2 * a >= room) ways.push_back({a, room - a});
    }
    int tries = 0;
    for (const auto& [a, n] : left_) {
      if (places < 3 || 3 * a < room || a > room - 2 || ++tries > 64) continue;
      for (const auto& [b, m] : left_) {
        if (2 * b >= room - a) ways.push_back({a, b, room - a - b});
      }
    }
    for (const std::vector<int64_t>& way : ways) {
      if (!possible(way)) continue;
      for (const int64_t length : way) {
        take(length);
        row.push_back(length);
      }
      return true;
    }
    return false;
  }
  PackLimits limits_;
  std::map<int64_t, int64_t> left_;
};

TEST(ExactFit, MakesTheRowsOfAPlainSearch) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed, 11);
    const auto most = static_cast<int32_t>(1 + rng.below(300));
    std::vector<int32_t> lengths(1 + rng.below(120));
    for (int32_t& length : lengths) length = static_cast<int32_t>(1 + rng.below(static_cast<uint64_t>(most)));
    const PackLimits limits{most + static_cast<int64_t>(rng.below(400)),
                            seed % 4 ? 0 : static_cast<int64_t>(2 + rng.below(6))};
    const PackedRows rows = pack_exact_fit(lengths, all_of(lengths), limits);
    const std::vector<std::vector<int64_t>> expected = Reference(lengths, limits).pack();
    ASSERT_EQ(rows.rows(), static_cast<int64_t>(expected.size()));
    std::vector<int> used(lengths.size(), 0);
    for (int64_t r = 0; r < rows.rows(); ++r) {
      std::vector<int64_t> row;
      for (const int32_t d : rows.row(r)) {
        row.push_back(lengths[static_cast<size_t>(d)]);
        ++used[static_cast<size_t>(d)];
      }
      EXPECT_EQ(row, expected[static_cast<size_t>(r)]) << "row " << r;
      EXPECT_LE(std::accumulate(row.begin(), row.end(), int64_t{0}), limits.max_tokens);
    }
    for (const int count : used) EXPECT_EQ(count, 1);
  }
}

// Fewest rows by trying every assignment; documents are given longest first.
int64_t fewest_rows(const std::vector<int32_t>& lengths, int64_t max_tokens) {
  auto best = static_cast<int64_t>(lengths.size());
  std::vector<int64_t> rooms;
  const std::function<void(size_t)> place = [&](size_t d) {
    if (static_cast<int64_t>(rooms.size()) >= best) return;
    if (d == lengths.size()) {
      best = static_cast<int64_t>(rooms.size());
      return;
    }
    for (size_t r = 0; r < rooms.size(); ++r) {
      if (rooms[r] < lengths[d]) continue;
      rooms[r] -= lengths[d];
      place(d + 1);
      rooms[r] += lengths[d];
    }
    rooms.push_back(max_tokens - lengths[d]);
    place(d + 1);
    rooms.pop_back();
  };
  place(0);
  return best;
}

TEST(ExactFit, IsRarelyAboveTheOptimumOfFewDocuments) {
  int64_t above = 0;
  constexpr uint64_t cases = 300;
  for (uint64_t seed = 0; seed < cases; ++seed) {
    Rng rng(seed, 12);
    std::vector<int32_t> lengths(4 + rng.below(6));
    for (int32_t& length : lengths) length = static_cast<int32_t>(1 + rng.below(60));
    std::sort(lengths.begin(), lengths.end(), std::greater<>());
    const int64_t optimum = fewest_rows(lengths, 100);
    const int64_t best_fit = pack_best_fit(lengths, all_of(lengths), {100, 0}).rows();
    const int64_t rows = pack_rows(lengths, all_of(lengths), {100, 0}).rows();
    EXPECT_GE(rows, optimum) << seed;
    EXPECT_LE(rows, optimum + 1) << seed;
    EXPECT_LE(rows, best_fit) << seed;
    above += rows - optimum;
  }
  EXPECT_LE(above, 3) << "of " << cases;
}

TEST(ExactFit, EqualLengthsKeepTheGivenOrder) {
  const std::vector<int32_t> lengths = {5, 5, 5, 5};
  const std::vector<int32_t> order = {2, 0, 3, 1};
  const PackedRows rows = pack_exact_fit(lengths, order, {10, 0});
  ASSERT_EQ(rows.rows(), 2);
  EXPECT_EQ(rows.documents, order);
}

TEST(ExactFit, ClosesARowWithATriple) {
  // 50 opens the row; no single and no pair has 50 left, 17 + 17 + 16 has.
  const std::vector<int32_t> lengths = {16, 50, 17, 45, 17, 45};
  const PackedRows rows = pack_exact_fit(lengths, all_of(lengths), {100, 0});
  ASSERT_EQ(rows.rows(), 2);
  EXPECT_EQ(std::vector<int32_t>(rows.row(0).begin(), rows.row(0).end()), (std::vector<int32_t>{1, 2, 4, 0}));
}

// Lengths that admit no exact row: even ones, an odd row. The search ends, by its count of work.
TEST(ExactFit, SearchIsBoundedWhereNothingFitsExactly) {
  Rng rng(3);
  std::vector<int32_t> lengths(60000);
  for (int32_t& length : lengths) length = static_cast<int32_t>(2 * (1 + rng.below(1500)));
  const PackedRows rows = pack_exact_fit(lengths, all_of(lengths), {8191, 0});
  EXPECT_EQ(static_cast<size_t>(rows.row_begin.back()), lengths.size());
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  EXPECT_GT(static_cast<double>(tokens) / static_cast<double>(rows.rows() * 8191), 0.99);
}

// The fill that training gets: rows of windows, on lengths of two shapes of chat data.
TEST(ExactFit, FillsRowsOfChatLengthsInWindows) {
  for (const double sigma : {0.325, 0.55}) {
    const std::vector<int32_t> lengths = testing_data::lognormal_lengths(60000, 1240, sigma, 8192, 5);
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const PackedRows rows = pack_in_windows(lengths, all_of(lengths), {8192, 0}, Batching::packed);
    EXPECT_GE(static_cast<double>(tokens) / static_cast<double>(rows.rows() * 8192), 0.998) << sigma;
  }
}

}  // namespace
}  // namespace deltatune
