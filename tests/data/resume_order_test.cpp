// Resuming in the middle of an epoch: a cursor that two ranks saved, taken up by one, two and four, with the
// same or another accumulation: every example once, in the order of the run that was not stopped.
#include <gtest/gtest.h>

#include "data/batch_stream.h"
#include "data/helpers.h"

namespace deltatune {
namespace {

using testing_data::lognormal_lengths;
using testing_data::set_of_lengths;

constexpr int64_t T = 64;

StreamOptions options_for(int64_t world, int64_t rank, int64_t accumulation, Batching batching) {
  StreamOptions options;
  options.max_tokens = T;
  options.world_size = world;
  options.rank = rank;
  options.gradient_accumulation_steps = accumulation;
  options.batching = batching;
  return options;
}

// Micro-batches of all ranks from the cursor to the end of its epoch, in the order in which they are dealt.
// Checks that the ranks make equally many, in whole steps, as many as was said before.
std::vector<Batch> rest_of_epoch(const TokenizedSet& set, int64_t world, int64_t accumulation,
                                 Batching batching, const Cursor* cursor) {
  std::vector<std::vector<Batch>> ranks;
  for (int64_t rank = 0; rank < world; ++rank) {
    BatchStream stream(set, options_for(world, rank, accumulation, batching));
    if (cursor != nullptr) stream.seek(*cursor);
    const int64_t epoch = stream.cursor().epoch;
    const int64_t micro_batches =
        stream.steps_left(static_cast<double>(epoch + 1)) * accumulation - stream.cursor().micro_batch;
    std::vector<Batch>& out = ranks.emplace_back();
    while (stream.cursor().epoch == epoch) out.push_back(stream.next());
    EXPECT_EQ(static_cast<int64_t>(out.size()), micro_batches) << "rank " << rank;
    EXPECT_EQ(stream.cursor().row, 0);
    EXPECT_EQ(stream.cursor().micro_batch, 0);
  }
  std::vector<Batch> dealt;
  for (size_t i = 0; i < ranks[0].size(); ++i) {
    for (const std::vector<Batch>& rank : ranks) dealt.push_back(rank.at(i));
  }
  return dealt;
}

// The rows without those of filler, which may only come last.
std::vector<std::vector<int32_t>> real_rows(const std::vector<Batch>& batches) {
  std::vector<std::vector<int32_t>> out;
  bool filler = false;
  for (const Batch& batch : batches) {
    filler = filler || batch.row < 0;
    EXPECT_EQ(batch.row < 0, filler) << "a row behind one of filler";
    if (!filler) out.push_back(batch.tokens);
  }
  return out;
}

TEST(ResumeOrder, CursorOfTwoRanksOnOneTwoAndFour) {
  const TokenizedSet set = set_of_lengths(lognormal_lengths(230, 17, 0.7, T, 6), T);
  for (const Batching batching : {Batching::packed, Batching::padded, Batching::sorted}) {
    for (const int64_t accumulation : {1, 2, 3}) {
      // Both ranks of the first run, stopped after any number of micro-batches of the second epoch.
      BatchStream first(set, options_for(2, 0, accumulation, batching));
      BatchStream second(set, options_for(2, 1, accumulation, batching));
      while (first.cursor().epoch < 1) {
        first.next();
        second.next();
      }
      const Cursor start = first.cursor();
      const std::vector<std::vector<int32_t>> whole =
          real_rows(rest_of_epoch(set, 2, accumulation, batching, &start));
      ASSERT_EQ(static_cast<int64_t>(whole.size()), first.rows_in_epoch(1));
      std::vector<Batch> used;
      while (first.cursor().epoch == 1) {
        const Cursor cursor = first.cursor();
        ASSERT_EQ(cursor, second.cursor());
        for (const int64_t world : {1, 2, 4}) {
          for (const int64_t changed : {accumulation, accumulation + 1, int64_t{1}}) {
            // A window that is under way has a place only in windows that are long enough.
            if (cursor.micro_batch >= changed) continue;
            std::vector<Batch> all = used;
            for (const Batch& batch : rest_of_epoch(set, world, changed, batching, &cursor))
              all.push_back(batch);
            ASSERT_EQ(real_rows(all), whole) << "world " << world << ", accumulation " << accumulation
                                             << " then " << changed << ", row " << cursor.row;
          }
        }
        used.push_back(first.next());
        used.push_back(second.next());
      }
    }
  }
}

}  // namespace
}  // namespace deltatune
