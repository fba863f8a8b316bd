// data/pack_report: counts of small epochs by hand, and those of a plain loader of rectangles.
#include "data/pack_report.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "data/helpers.h"

namespace deltatune {
namespace {

// Rectangles of a loader that grows one while rows x longest <= T: their number and the padding in them.
std::pair<int64_t, int64_t> plain_rectangles(const std::vector<int32_t>& lengths, int64_t max_tokens) {
  int64_t batches = 0, padding = 0, rows = 0, longest = 0, sum = 0;
  const auto close = [&] {
    ++batches;
    padding += rows * longest - sum;
    rows = longest = sum = 0;
  };
  for (const int32_t length : lengths) {
    if (rows > 0 && (rows + 1) * std::max<int64_t>(longest, length) > max_tokens) close();
    ++rows;
    longest = std::max<int64_t>(longest, length);
    sum += length;
  }
  close();
  return {batches, padding};
}

TEST(PackReport, CountsAHandmadeEpoch) {
  StreamOptions options;
  options.max_tokens = 10;
  options.shuffle = false;
  options.gradient_accumulation_steps = 2;
  // padded: [6] [4 4 -> 4x2] [5 5]; packed: [6 4] [5 5] [4].
  const PackReport report = pack_report(std::vector<int32_t>{6, 4, 4, 5, 5}, options, true);
  ASSERT_EQ(report.lines.size(), 4u);
  EXPECT_EQ(report.tokens, 24);
  EXPECT_EQ(report.longest, 6);
  EXPECT_EQ(report.rows_per_step, 2);
  const PackLine &padded = report.lines[0], &sorted = report.lines[1], &packed = report.lines[2],
                 &limit = report.lines[3];
  EXPECT_EQ(padded.name, "padded");
  EXPECT_EQ(padded.rows, 3);
  EXPECT_EQ(padded.steps, 2);
  EXPECT_DOUBLE_EQ(padded.fill, 0.8);
  EXPECT_DOUBLE_EQ(padded.padding, 0);
  EXPECT_DOUBLE_EQ(padded.unused, 0.2);
  EXPECT_EQ(sorted.name, "sorted");
  EXPECT_EQ(sorted.rows, 3);
  EXPECT_EQ(packed.name, "packed");
  EXPECT_EQ(packed.rows, 3);
  EXPECT_EQ(limit.rows, 3);
  EXPECT_DOUBLE_EQ(limit.fewer_steps, 0);
}

TEST(PackReport, AgreesWithAPlainLoader) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<int32_t> lengths = testing_data::lognormal_lengths(700, 60, 0.8, 512, seed);
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    StreamOptions options;
    options.max_tokens = 512;
    options.shuffle = false;
    const PackReport report = pack_report(lengths, options, true);
    const auto [batches, padding] = plain_rectangles(lengths, 512);
    EXPECT_EQ(report.lines[0].rows, batches);
    const auto slots = static_cast<double>(batches * 512);
    EXPECT_NEAR(report.lines[0].padding, static_cast<double>(padding) / slots, 1e-12);
    EXPECT_NEAR(report.lines[0].rectangle_waste,
                static_cast<double>(padding) / static_cast<double>(padding + tokens), 1e-12);
    for (const PackLine& line : report.lines) {
      EXPECT_NEAR(line.fill + line.padding + line.unused, 1, 1e-12) << line.name;
      EXPECT_GE(line.rows, report.lines.back().rows) << line.name;
      EXPECT_NEAR(line.fewer_steps, 1 - static_cast<double>(line.steps) / static_cast<double>(batches),
                  1e-12);
    }
  }
}

TEST(PackReport, OneWayAlone) {
  StreamOptions options;
  options.max_tokens = 10;
  options.batching = Batching::sorted;
  const PackReport report = pack_report(std::vector<int32_t>{6, 4}, options, false);
  ASSERT_EQ(report.lines.size(), 2u);
  EXPECT_EQ(report.lines[0].name, "sorted");
  EXPECT_EQ(report.lines[1].name, "limit");
  const json::Value value = json::parse(json::dump(report.to_json()), "report");
  EXPECT_EQ(value.at("batchings").as_array().size(), 2u);
  options.max_tokens = 0;
  EXPECT_THROW(pack_report(std::vector<int32_t>{1}, options, false), Error);
}

}  // namespace
}  // namespace deltatune
