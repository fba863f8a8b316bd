// shard: none. Every rank has all weights, gradients and states, gathers nothing on the way, and ends with
// the bits that cut ones give where the sums are the same: with one micro-batch a step.
#include <gtest/gtest.h>

#include <cmath>

#include "comm/exchange.h"
#include "ops/ops.h"
#include "shard/rank_engine.h"

namespace deltatune {
namespace {

constexpr int64_t tokens = 48;

struct How {
  DType storage = DType::bf16;
  DType moments = DType::f32;
  bool master = true;
  bool release = false;
  bool tied = true;
  bool whole = false;
  int64_t rows = 1;  ///< of each rank in a step
  StreamMode mode = StreamMode::direct;
};

EngineOptions options_of(const How& how) {
  EngineOptions o = tiny_options(how.storage, tokens);
  o.max_grad_norm = how.release ? 0 : 0.05F;  // below the norms of these rows: everything is clipped
  o.moments.dtype = how.moments;
  o.master_weights = how.master;
  o.gradient_release = how.release;
  o.whole_states = how.whole;
  o.adamw.rounding = Rounding::stochastic;
  o.adamw.seed = 3;
  return o;
}

Batch row_of(int rank, int64_t step, int64_t row) {
  const auto seed = static_cast<uint64_t>(step * 64 + row * 16 + rank);
  Document masked = random_document(9, 1, 24, seed);
  masked.supervised = false;
  return packed_row({masked, random_document(20 + rank, 1, 24, seed + 7)}, tokens);
}

struct Trained {
  std::vector<double> losses, norms, weights;
  std::vector<std::vector<std::byte>> states;
};

// The weights that a rank's next forward pass would read.
std::string weights_in_use(Engine& engine) {
  engine.stream().sync();
  std::string out;
  for (const CTensor& w : engine.store().weights())
    out.append(reinterpret_cast<const char*>(w.data), w.bytes());
  return out;
}

Trained train(const How& how, int world) {
  Trained run;
  run.states.resize(static_cast<size_t>(world));
  run_ranks(world, [&](Communicator& comm) {
    RankEngine rank(comm, options_of(how), how.tied, make_cpu_device(how.mode));
    Engine& engine = rank.engine;
    for (int64_t step = 1; step <= 4; ++step) {
      int64_t targets = 0;
      for (int r = 0; r < world; ++r) {
        for (int64_t i = 0; i < how.rows; ++i) targets += row_of(r, step, i).num_targets;
      }
      UpdateResult result;
      if (how.rows == 1) {
        result = engine.single_step(row_of(comm.rank(), step, 0), 1e-2, step, targets);
      } else {
        engine.begin_window();
        for (int64_t i = 0; i < how.rows; ++i) engine.micro_step(row_of(comm.rank(), step, i));
        result = engine.update(1e-2, step, targets);
      }
      EXPECT_FALSE(result.nonfinite);
      if (comm.rank() != 0) continue;
      run.losses.push_back(result.loss_sum);
      run.norms.push_back(result.grad_norm);
    }
    engine.stream().sync();
    engine.store().sync_updates();
    if (how.whole) {
      const std::vector<std::string> all = comm.exchange(weights_in_use(engine));
      for (const std::string& other : all) EXPECT_TRUE(other == all[0]) << "ranks have different weights";
    }
    run.states[static_cast<size_t>(comm.rank())] = rank.state();
    const std::vector<double> weights = rank.weights();
    if (comm.rank() == 0) run.weights = weights;
  });
  return run;
}

void expect_same(How how, int world) {
  SCOPED_TRACE(testing::Message() << world << " ranks, moments " << name_of(how.moments) << ", storage "
                                  << name_of(how.storage) << (how.release ? ", release" : "")
                                  << (how.tied ? ", tied" : ""));
  const Trained cut = train(how, world);
  how.whole = true;
  const Trained whole = train(how, world);
  EXPECT_EQ(whole.losses, cut.losses);
  if (how.release) {  // the squares are added up in another order
    for (size_t i = 0; i < cut.norms.size(); ++i)
      EXPECT_NEAR(whole.norms[i], cut.norms[i], 1e-6 * cut.norms[i]);
  } else {
    EXPECT_GT(cut.norms[0], 0.05) << "nothing was clipped";
    EXPECT_EQ(whole.norms, cut.norms);
  }
  EXPECT_TRUE(whole.states == cut.states);
  EXPECT_FALSE(whole.states[0].empty());
}

TEST(WholeStatesTest, OneRowAStepGivesTheBitsOfCutStates) {
  for (const int world : {1, 2, 3}) {
    How how;
    how.tied = world == 2;
    expect_same(how, world);
    how.master = false;
    for (const DType moments : {DType::f32, DType::bf16, DType::u8}) {
      how.moments = moments;
      expect_same(how, world);
    }
  }
  How f32;
  f32.storage = DType::f32;
  f32.tied = false;
  expect_same(f32, 2);
}

TEST(WholeStatesTest, ReleaseGivesTheBitsOfCutStates) {
  for (const int world : {2, 3}) {
    How how;
    how.release = true;
    how.tied = world == 3;
    how.moments = world == 3 ? DType::u8 : DType::f32;
    expect_same(how, world);
  }
}

TEST(WholeStatesTest, StreamsOnThreadsGiveTheSameBits) {
  for (const bool release : {false, true}) {
    How how;
    how.whole = true;
    how.release = release;
    const Trained direct = train(how, 3);
    how.mode = StreamMode::threaded;
    const Trained threaded = train(how, 3);
    EXPECT_EQ(direct.losses, threaded.losses);
    EXPECT_EQ(direct.norms, threaded.norms);
    EXPECT_TRUE(direct.states == threaded.states);
  }
}

// Rows add up on their rank first, then over the ranks: another order than with cut gradients.
TEST(WholeStatesTest, SeveralRowsAStepAgreeWithCutStates) {
  How how;
  how.storage = DType::f32;
  how.rows = 3;
  how.tied = false;
  const Trained cut = train(how, 2);
  how.whole = true;
  const Trained whole = train(how, 2);
  const Trained again = train(how, 2);
  EXPECT_TRUE(whole.states == again.states);
  ASSERT_EQ(whole.weights.size(), cut.weights.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < cut.weights.size(); ++i) {
    difference += (whole.weights[i] - cut.weights[i]) * (whole.weights[i] - cut.weights[i]);
    norm += cut.weights[i] * cut.weights[i];
  }
  EXPECT_LT(std::sqrt(difference / norm), 1e-5);
  for (size_t i = 0; i < cut.losses.size(); ++i) {
    EXPECT_NEAR(whole.losses[i], cut.losses[i], 1e-5 * cut.losses[i]);
    EXPECT_NEAR(whole.norms[i], cut.norms[i], 1e-4 * cut.norms[i]);
  }
}

// Forward and backward of all rows send nothing; the update sends every gradient twice, in two halves.
TEST(WholeStatesTest, NothingIsGatheredOnTheWay) {
  for (const int64_t rows : {1, 3}) {
    run_ranks(3, [&](Communicator& comm) {
      How how;
      how.whole = true;
      RankEngine rank(comm, options_of(how));
      const CommTotals start = comm.totals();
      rank.engine.evaluate(row_of(comm.rank(), 1, 0));
      rank.engine.begin_window();
      for (int64_t i = 0; i < rows; ++i) rank.engine.micro_step(row_of(comm.rank(), 1, i));
      const CommTotals before = comm.totals();
      EXPECT_EQ(before.gather_bytes, start.gather_bytes);
      EXPECT_LT(before.calls - start.calls, 2) << "evaluation adds up its losses, no more";
      rank.engine.update(1e-2, 1, 60 * rows);
      const CommTotals after = comm.totals();
      int64_t elements = 0;
      const ShardLayout layout(rank.engine.store().table(), 3);
      for (const int64_t padded : layout.padded) elements += padded;
      EXPECT_EQ(after.gather_bytes - before.gather_bytes, static_cast<double>(elements) * 4 * 2 / 3);
      EXPECT_GE(after.reduce_bytes - before.reduce_bytes, static_cast<double>(elements) * 4 * 2 / 3);
    });
  }
}

TEST(WholeStatesTest, GradientsBeforeTheUpdateAreThoseOfAllRanks) {
  std::vector<std::vector<double>> gradients;
  for (const bool whole : {false, true}) {
    run_ranks(3, [&](Communicator& comm) {
      How how;
      how.storage = DType::f32;
      how.whole = whole;
      RankEngine rank(comm, options_of(how));
      rank.engine.begin_window();
      rank.engine.micro_step(row_of(comm.rank(), 1, 0));
      const std::vector<double> all = rank.gradients();
      if (comm.rank() == 0) gradients.push_back(all);
    });
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

// What one rank finds keeps all of them from updating, with release too.
TEST(WholeStatesTest, NotFiniteOnOneRankLeavesAllAlike) {
  for (const bool release : {false, true}) {
    run_ranks(3, [&](Communicator& comm) {
      How how;
      how.whole = true;
      how.release = release;
      how.storage = DType::f32;
      RankEngine rank(comm, options_of(how));
      Engine& engine = rank.engine;
      const auto& table = engine.store().table();
      // The last block's down projection of rank 1 alone: its own gradients are not finite from there on.
      const int last = engine.model().params().block_groups.back();
      for (size_t i = 0; comm.rank() == 1 && i < table.params.size(); ++i) {
        if (table.params[i].group == last && !table.params[i].keep_f32)
          const_cast<std::byte*>(engine.store().weights()[i].data)[3] = std::byte{0x7f};
      }
      const UpdateResult result = engine.single_step(row_of(comm.rank(), 1, 0), 1e-2, 1, 60);
      engine.stream().sync();
      engine.store().sync_updates();
      EXPECT_TRUE(result.nonfinite);
      EXPECT_EQ(ranks_where(comm, result.own_nonfinite), std::vector<int>{1});
      // Groups in front of the bad gradient may have been updated, on all ranks or on none.
      std::string mine;
      for (size_t i = 0; i < table.params.size(); ++i) {
        const CTensor& w = engine.store().weights()[i];
        if (table.params[i].group != last) mine.append(reinterpret_cast<const char*>(w.data), w.bytes());
      }
      const std::vector<std::string> all = comm.exchange(mine);
      for (const std::string& other : all) EXPECT_TRUE(other == all[0]);
    });
  }
}

}  // namespace
}  // namespace deltatune
