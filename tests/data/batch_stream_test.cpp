// data/batch, data/batch_stream: targets at boundaries, filler, partition over ranks, resume at every cursor.
#include "data/batch_stream.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "data/helpers.h"

namespace deltatune {
namespace {

using testing_data::lognormal_lengths;
using testing_data::set_of_lengths;

constexpr int32_t pad = 0;  // made-up sets use ids from 1

bool equal(const Batch& a, const Batch& b) {
  return a.tokens == b.tokens && a.targets == b.targets && a.positions == b.positions &&
         a.cu_seqlens == b.cu_seqlens && a.documents == b.documents && a.real_tokens == b.real_tokens &&
         a.num_targets == b.num_targets && a.row == b.row;
}

// Everything a batch promises, from its own contents. Returns the conversations' first ids.
std::vector<int32_t> expect_sound(const Batch& batch, int64_t T) {
  const auto n = static_cast<size_t>(T);
  EXPECT_EQ(batch.tokens.size(), n);
  EXPECT_EQ(batch.targets.size(), n);
  EXPECT_EQ(batch.positions.size(), n);
  EXPECT_EQ(batch.cu_seqlens.front(), 0);
  EXPECT_EQ(batch.cu_seqlens.back(), T);
  std::vector<int32_t> firsts;
  int64_t real = 0;
  int64_t targets = 0;
  for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
    const auto begin = static_cast<size_t>(batch.cu_seqlens[s]);
    const auto end = static_cast<size_t>(batch.cu_seqlens[s + 1]);
    EXPECT_LT(begin, end);
    const bool filler = batch.tokens[begin] == pad;
    for (size_t t = begin; t < end; ++t) {
      EXPECT_EQ(batch.positions[t], static_cast<int32_t>(t - begin));
      EXPECT_EQ(batch.tokens[t] == pad, filler);
      if (batch.targets[t] != -100) {
        ++targets;
        EXPECT_LT(t + 1, end);
        EXPECT_EQ(batch.targets[t], batch.tokens[t + 1]);
        EXPECT_FALSE(filler);
      }
    }
    if (!filler) {
      firsts.push_back(batch.tokens[begin]);
      real += static_cast<int64_t>(end - begin);
    }
  }
  EXPECT_EQ(static_cast<int64_t>(firsts.size()), batch.documents);
  EXPECT_EQ(real, batch.real_tokens);
  EXPECT_EQ(targets, batch.num_targets);
  return firsts;
}

// Memory is sized by max_segments(): it has to hold for every row of every epoch, and lowering the limit to
// it may not change the first epoch.
TEST(BatchStreamTest, SegmentsOfTheFirstEpochBoundAllEpochs) {
  const TokenizedSet set = set_of_lengths(lognormal_lengths(700, 60, 0.9, 256, 5), 256);
  for (const Batching batching : {Batching::packed, Batching::padded, Batching::sorted}) {
    for (const int64_t limit : {0, 200, 12, 4}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(batching) << ", limit " << limit);
      StreamOptions options;
      options.max_tokens = 256;
      options.batching = batching;
      options.max_segments = limit;
      BatchStream stream(set, options);
      const int64_t bound = stream.max_segments();
      if (limit > 0) {
        EXPECT_LE(bound, limit);
      }
      options.max_segments = bound;
      BatchStream again(set, options);
      EXPECT_EQ(again.max_segments(), bound);
      int64_t fullest = 0;
      const int64_t rows = stream.rows_in_epoch(0);
      for (int64_t i = 0; i < 4 * rows; ++i) {
        const Batch batch = stream.next();
        EXPECT_TRUE(equal(batch, again.next())) << "row " << i;
        const auto segments = static_cast<int64_t>(batch.cu_seqlens.size()) - 1;
        EXPECT_LE(segments, bound);
        if (i < rows) fullest = std::max(fullest, segments);
      }
      if (batching == Batching::packed) {
        EXPECT_GE(fullest + 1, bound) << "no more than needed";
      }
      const EvalBatches eval(set, options);
      for (int64_t i = 0; i < eval.size(); ++i)
        EXPECT_LE(static_cast<int64_t>(eval.batch(i).cu_seqlens.size()) - 1, eval.max_segments());
    }
  }
}

TEST(Batch, ShiftsTargetsInsideDocuments) {
  DatasetOptions options;
  options.max_length = options.max_tokens = 10;
  options.vocab_size = 100;
  TokenizedSetBuilder builder(options, {});
  builder.add_lines(
      "{\"input_ids\": [11, 12, 13], \"labels\": [11, -100, 13]}\n{\"input_ids\": [21, 22], \"labels\": [21, "
      "22]}",
      "x");
  const TokenizedSet set = builder.finish();
  const std::vector<int32_t> documents = {0, 1};
  const Batch batch = make_batch(set, documents, 8, 99);
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{11, 12, 13, 21, 22, 99, 99, 99}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{-100, 13, -100, 22, -100, -100, -100, -100}));
  EXPECT_EQ(batch.positions, (std::vector<int32_t>{0, 1, 2, 0, 1, 0, 1, 2}));
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0, 3, 5, 8}));
  EXPECT_EQ(batch.documents, 2);
  EXPECT_EQ(batch.real_tokens, 5);
  EXPECT_EQ(batch.num_targets, 2);
  EXPECT_EQ(make_batch(set, documents, 5, 99).cu_seqlens,
            (std::vector<int32_t>{0, 3, 5}));  // full: no filler
  const Batch nothing = make_batch(set, {}, 4, 99);
  EXPECT_EQ(nothing.cu_seqlens, (std::vector<int32_t>{0, 4}));
  EXPECT_EQ(nothing.documents, 0);
  EXPECT_EQ(nothing.num_targets, 0);
  const Batch padded = make_batch(set, documents, 8, 99, 4);
  EXPECT_EQ(padded.tokens, (std::vector<int32_t>{11, 12, 13, 99, 21, 22, 99, 99}));
  EXPECT_EQ(padded.cu_seqlens, (std::vector<int32_t>{0, 3, 4, 6, 8}));
}

// All ranks together see each conversation exactly once per epoch, in the predicted number of steps.
TEST(BatchStream, PartitionsAnEpochOverRanks) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const int64_t T = 64;
    const TokenizedSet set = set_of_lengths(lognormal_lengths(150, 20, 0.8, 64, seed), T, seed);
    for (const Batching batching : {Batching::packed, Batching::padded, Batching::sorted}) {
      for (int64_t world = 1; world <= 4; ++world) {
        StreamOptions options;
        options.max_tokens = T;
        options.seed = seed;
        options.world_size = world;
        options.batching = batching;
        options.gradient_accumulation_steps = 1 + static_cast<int64_t>(seed % 3);
        options.pad_id = pad;
        std::vector<BatchStream> ranks;
        for (options.rank = 0; options.rank < world; ++options.rank) ranks.emplace_back(set, options);
        for (int64_t epoch = 0; epoch < 2; ++epoch) {
          std::multiset<int32_t> seen;
          int64_t targets = 0;
          for (BatchStream& stream : ranks) {
            EXPECT_EQ(stream.cursor().epoch, epoch);
            EXPECT_EQ(stream.cursor().micro_batch, 0);
            const int64_t count = stream.steps_in_epoch(epoch) * options.gradient_accumulation_steps;
            for (int64_t i = 0; i < count; ++i) {
              EXPECT_EQ(stream.cursor().epoch, epoch);
              const Batch batch = stream.next();
              for (const int32_t first : expect_sound(batch, T)) seen.insert(first);
              targets += batch.num_targets;
            }
          }
          EXPECT_EQ(targets, set.counts().targets);
          EXPECT_EQ(static_cast<int64_t>(seen.size()), set.size());
          for (int64_t i = 0; i < set.size(); ++i) EXPECT_EQ(seen.count(set.ids(i)[0]), 1u);
        }
      }
    }
  }
}

TEST(BatchStream, ResumesWithTheSameBitsAtEveryCursor) {
  const int64_t T = 48;
  const TokenizedSet set = set_of_lengths(lognormal_lengths(60, 15, 0.7, 48, 4), T);
  StreamOptions options;
  options.max_tokens = T;
  options.world_size = 2;
  options.rank = 1;
  options.gradient_accumulation_steps = 3;
  BatchStream whole(set, options);
  std::vector<Batch> batches;
  std::vector<Cursor> cursors;
  while (whole.cursor().epoch < 3) {
    cursors.push_back(whole.cursor());
    batches.push_back(whole.next());
  }
  for (size_t i = 0; i < cursors.size(); ++i) {
    const Cursor read = Cursor::from_json(json::parse(json::dump(cursors[i].to_json()), "state"));
    EXPECT_EQ(read, cursors[i]);
    BatchStream resumed(set, options);
    resumed.seek(read);
    EXPECT_EQ(resumed.cursor().step + resumed.steps_left(2.5), std::max(resumed.steps(2.5), read.step));
    for (size_t k = i; k < batches.size(); ++k)
      ASSERT_TRUE(equal(resumed.next(), batches[k])) << i << " " << k;
  }
}

TEST(BatchStream, EpochsAndSeedsDifferAndOrderIsKeptWithoutShuffle) {
  const int64_t T = 64;
  const TokenizedSet set = set_of_lengths(lognormal_lengths(200, 20, 0.5, 64, 1), T);
  const auto firsts = [&](uint64_t seed, bool shuffle, int64_t epoch) {
    StreamOptions options;
    options.max_tokens = T;
    options.seed = seed;
    options.shuffle = shuffle;
    BatchStream stream(set, options);
    while (stream.cursor().epoch < epoch) stream.next();
    std::vector<int32_t> out;
    while (stream.cursor().epoch == epoch) {
      for (const int32_t first : expect_sound(stream.next(), T)) out.push_back(first);
    }
    return out;
  };
  EXPECT_EQ(firsts(1, true, 0), firsts(1, true, 0));
  EXPECT_NE(firsts(1, true, 0), firsts(1, true, 1));
  EXPECT_NE(firsts(1, true, 0), firsts(2, true, 0));
  EXPECT_EQ(firsts(1, false, 0), firsts(2, false, 1));
}

TEST(BatchStream, ResumesWithAnotherWorldSize) {
  const int64_t T = 64;
  const TokenizedSet set = set_of_lengths(lognormal_lengths(300, 20, 0.5, 64, 2), T);
  const auto options_for = [&](int64_t world, int64_t rank) {
    StreamOptions options;
    options.max_tokens = T;
    options.world_size = world;
    options.rank = rank;
    return options;
  };
  std::multiset<int32_t> seen;
  Cursor cursor;
  for (int64_t rank = 0; rank < 2; ++rank) {
    BatchStream stream(set, options_for(2, rank));
    for (int step = 0; step < 7; ++step) {
      for (const int32_t first : expect_sound(stream.next(), T)) seen.insert(first);
    }
    cursor = stream.cursor();
  }
  for (int64_t rank = 0; rank < 3; ++rank) {
    BatchStream stream(set, options_for(3, rank));
    stream.seek(cursor);
    const int64_t left = stream.steps_left(1);
    int64_t steps = 0;
    for (; stream.cursor().epoch == 0; ++steps) {
      for (const int32_t first : expect_sound(stream.next(), T)) seen.insert(first);
    }
    EXPECT_EQ(steps, left);
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), set.size());
  EXPECT_EQ(std::set<int32_t>(seen.begin(), seen.end()).size(), seen.size());
}

TEST(BatchStream, RefusesForeignAndDamagedCursors) {
  const TokenizedSet set = set_of_lengths({5, 6, 7}, 16);
  StreamOptions options;
  options.max_tokens = 16;
  BatchStream stream(set, options);
  Cursor cursor = stream.cursor();
  cursor.fingerprint = "other";
  EXPECT_THROW(stream.seek(cursor), Error);
  cursor = stream.cursor();
  cursor.row = 1000;
  EXPECT_THROW(stream.seek(cursor), Error);
  cursor.micro_batch = 1;
  EXPECT_THROW(stream.seek(cursor), Error);
  EXPECT_THROW(Cursor::from_json(json::parse(R"({"epoch": -1})", "x")), Error);
  EXPECT_THROW(Cursor::from_json(json::parse("[]", "x")), Error);
  options.seed = 43;
  EXPECT_NE(BatchStream(set, options).fingerprint(), stream.fingerprint());
}

TEST(BatchStream, OneConversationOnManyRanks) {
  const TokenizedSet set = set_of_lengths({5}, 16);
  StreamOptions options;
  options.max_tokens = 16;
  options.world_size = 4;
  options.gradient_accumulation_steps = 2;
  int64_t documents = 0;
  for (options.rank = 0; options.rank < 4; ++options.rank) {
    BatchStream stream(set, options);
    EXPECT_EQ(stream.steps_per_epoch(), 1);
    for (int i = 0; i < 2; ++i) documents += stream.next().documents;
    EXPECT_EQ(stream.cursor().epoch, 1);
  }
  EXPECT_EQ(documents, 1);
}

TEST(BatchStream, RefusesConversationsThatDoNotFit) {
  const TokenizedSet set = set_of_lengths({17}, 32);
  StreamOptions options;
  options.max_tokens = 16;
  EXPECT_THROW(BatchStream(set, options), Error);
  EXPECT_THROW(EvalBatches(set, options), Error);
}

TEST(EvalBatches, SeesEveryConversationOnce) {
  const int64_t T = 64;
  const TokenizedSet set = set_of_lengths(lognormal_lengths(97, 20, 0.8, 64, 8), T);
  for (int64_t world = 1; world <= 3; ++world) {
    std::multiset<int32_t> seen;
    int64_t targets = 0;
    for (int64_t rank = 0; rank < world; ++rank) {
      StreamOptions options;
      options.max_tokens = T;
      options.world_size = world;
      options.rank = rank;
      const EvalBatches batches(set, options);
      for (int64_t i = 0; i < batches.size(); ++i) {
        const Batch batch = batches.batch(i);
        for (const int32_t first : expect_sound(batch, T)) seen.insert(first);
        targets += batch.num_targets;
      }
    }
    EXPECT_EQ(targets, set.counts().targets);
    EXPECT_EQ(static_cast<int64_t>(seen.size()), set.size());
    EXPECT_EQ(std::set<int32_t>(seen.begin(), seen.end()).size(), seen.size());
  }
}

}  // namespace
}  // namespace deltatune
