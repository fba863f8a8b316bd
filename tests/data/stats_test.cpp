// data/stats: percentiles, shares and predicted steps against numbers worked out by hand.
#include "data/stats.h"

#include <gtest/gtest.h>

#include "data/helpers.h"

namespace deltatune {
namespace {

TEST(Stats, PercentileIsNearestRank) {
  const std::vector<int32_t> ten = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  EXPECT_EQ(percentile(ten, 50), 5);
  EXPECT_EQ(percentile(ten, 90), 9);
  EXPECT_EQ(percentile(ten, 99), 10);
  EXPECT_EQ(percentile(ten, 100), 10);
  EXPECT_EQ(percentile({7}, 1), 7);
}

TEST(Stats, CountsAddUp) {
  DatasetOptions options;
  options.max_length = 4;
  options.max_tokens = 8;
  options.vocab_size = 100;
  options.on_bad_row = OnBadRow::skip;
  TokenizedSetBuilder builder(options, {});
  builder.add_lines(
      "{\"input_ids\": [1,2,3], \"labels\": [-100,2,3]}\n"
      "{\"input_ids\": [1,2,3], \"labels\": [-100,2,3]}\n"
      "{\"input_ids\": [1,2,3,4,5], \"labels\": [-100,2,3,-100,5]}\n"
      "{\"input_ids\": [1,200], \"labels\": [-100,200]}\n"
      "nonsense\n",
      "x.jsonl");
  const TokenizedSet set = builder.finish();
  StreamOptions stream;
  stream.max_tokens = 8;
  const DataStats stats = data_stats(set, set, stream, options.max_length, 2.5);
  // 4 + 3 share a row of 8, the other 3 has its own.
  EXPECT_EQ(stats.rows, 2);
  EXPECT_DOUBLE_EQ(stats.fill, 10.0 / 16);
  EXPECT_DOUBLE_EQ(stats.supervised_share, 6.0 / 10);
  EXPECT_EQ(stats.steps_per_epoch, 2);
  EXPECT_EQ(stats.steps, 5);
  EXPECT_EQ(stats.lengths.max, 5);
  // What is held out counts among the rows, not among the steps.
  const std::vector<int32_t> kept = {0};
  const DataStats some = data_stats(set, set.subset(kept), stream, options.max_length, 2.5);
  EXPECT_EQ(some.held_out, set.size() - 1);
  EXPECT_EQ(some.counts.conversations, set.size());
  EXPECT_EQ(some.steps_per_epoch, 1);
  EXPECT_EQ(stats.lengths.p50, 3);
  EXPECT_DOUBLE_EQ(stats.lengths.mean, 11.0 / 3);
  // Lengths 3, 3 and 5: up to 4, and up to 8.
  const json::Value kept_of_it = dataset_json(set);
  EXPECT_EQ(json::dump(kept_of_it.at("histogram")), "[[4, 2], [8, 1]]");
  EXPECT_EQ(kept_of_it.at("skipped").as_integer(), 2);
  EXPECT_EQ(kept_of_it.at("tokens_cut").as_integer(), 1);
  const json::Value report = stats.to_json();
  EXPECT_EQ(report.at("truncated").as_integer(), 1);
  EXPECT_EQ(report.at("duplicates").as_integer(), 1);
  EXPECT_EQ(report.at("skipped").at("labels").as_integer(), 1);
  EXPECT_EQ(report.at("skipped").at("malformed_json").as_integer(), 1);
  EXPECT_EQ(report.at("skipped").find("image"), nullptr);
  std::string lines;
  for (const std::string& line : stats.to_lines()) lines += line + "\n";
  for (const char* part : {"rows            5  kept 3", "skipped       1  malformed_json", "fill 62.5 %",
                           "supervised 6 (60.0 %)", "2 per epoch  5 in 2.5 epochs", "duplicates      1"}) {
    EXPECT_NE(lines.find(part), std::string::npos) << part << "\n" << lines;
  }
  EXPECT_EQ(lines.find("image"), std::string::npos);
}

}  // namespace
}  // namespace deltatune
