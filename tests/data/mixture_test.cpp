// data/mixture: exact counts of uses per epoch and over epochs.
#include "data/mixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "data/batch_stream.h"
#include "data/helpers.h"

namespace deltatune {
namespace {

std::vector<int64_t> times_of(const std::vector<int32_t>& documents, int64_t count) {
  std::vector<int64_t> times(static_cast<size_t>(count));
  for (const int32_t d : documents) ++times[static_cast<size_t>(d)];
  return times;
}

TEST(Mixture, UsesAreExactInEveryEpochAndEvenOverEpochs) {
  const std::vector<MixturePart> parts = {{"a", 0, 10, 0.5},  {"b", 10, 17, 1},      {"c", 17, 17, 3},
                                          {"d", 17, 20, 2.4}, {"e", 20, 120, 0.001}, {"f", 120, 131, 1.27}};
  const std::vector<int64_t> uses = {5, 7, 0, 7, 1, 14};
  for (size_t p = 0; p < parts.size(); ++p) EXPECT_EQ(parts[p].uses(), uses[p]) << p;
  check_mixture(parts, 131);
  std::vector<int64_t> sums(131);
  for (int64_t epoch = 0; epoch < 7; ++epoch) {
    const std::vector<int32_t> documents = mixed_documents(parts, 131, 3, epoch);
    EXPECT_TRUE(std::is_sorted(documents.begin(), documents.end()));
    const std::vector<int64_t> times = times_of(documents, 131);
    for (size_t p = 0; p < parts.size(); ++p) {
      const MixturePart& part = parts[p];
      if (part.size() == 0) continue;
      const auto begin = times.begin() + part.begin, end = times.begin() + part.end;
      EXPECT_EQ(std::accumulate(begin, end, int64_t{0}), uses[p]) << part.name;
      EXPECT_GE(*std::min_element(begin, end), uses[p] / part.size()) << part.name;
      EXPECT_LE(*std::max_element(begin, end), (uses[p] + part.size() - 1) / part.size()) << part.name;
    }
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += times[i];
    for (const MixturePart& part : parts) {
      if (part.size() == 0) continue;
      const auto [least, most] = std::minmax_element(sums.begin() + part.begin, sums.begin() + part.end);
      EXPECT_LE(*most - *least, 1) << part.name << ", epoch " << epoch;
    }
  }
  EXPECT_EQ(mixed_documents(parts, 131, 3, 2), mixed_documents(parts, 131, 3, 2));
  EXPECT_NE(mixed_documents(parts, 131, 3, 2), mixed_documents(parts, 131, 4, 2));
  // Far epochs do not overflow.
  EXPECT_EQ(mixed_documents(parts, 131, 3, (int64_t{1} << 40) + 1).size(), 34u);
}

TEST(Mixture, NoPartsMeanEachOnce) {
  EXPECT_EQ(mixed_documents({}, 4, 1, 9), (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(Mixture, RefusesEpochsBeyondAllCounting) {
  const std::vector<MixturePart> parts = {{"a", 0, 3000000, 1000}};
  EXPECT_THROW(check_mixture(parts, 3000000), Error);
}

// Weights reach the rows: every use is in exactly one row, on any number of ranks.
TEST(Mixture, StreamsShowEveryUseOnce) {
  const TokenizedSet set =
      testing_data::set_of_lengths(testing_data::lognormal_lengths(60, 12, 0.6, 40, 3), 40);
  StreamOptions options;
  options.max_tokens = 64;
  options.mixture = {{"a", 0, 40, 0.5}, {"b", 40, 60, 2.25}};
  std::string fingerprint;
  for (options.world_size = 1; options.world_size <= 3; ++options.world_size) {
    std::multiset<int32_t> seen;
    for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
      BatchStream stream(set, options);
      fingerprint = stream.fingerprint();
      const int64_t steps = stream.steps_in_epoch(1);
      while (stream.cursor().epoch == 0) stream.next();
      for (int64_t s = 0; s < steps; ++s) {
        const Batch batch = stream.next();
        for (size_t k = 0; k + 1 < batch.cu_seqlens.size(); ++k) {
          const int32_t first = batch.tokens[static_cast<size_t>(batch.cu_seqlens[k])];
          if (first != options.pad_id) seen.insert(first);
        }
      }
      EXPECT_EQ(stream.cursor().epoch, 2);
    }
    std::multiset<int32_t> expected;
    for (const int32_t d : mixed_documents(options.mixture, 60, options.seed, 1))
      expected.insert(set.ids(d)[0]);
    EXPECT_EQ(seen, expected) << options.world_size;
    EXPECT_EQ(seen.size(), 65u);
  }
  options.world_size = 1;
  options.rank = 0;
  options.mixture[0].weight = 0.6;
  EXPECT_NE(BatchStream(set, options).fingerprint(), fingerprint);
}

}  // namespace
}  // namespace deltatune
