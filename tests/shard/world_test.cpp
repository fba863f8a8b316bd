// Worlds of one, two, four and eight ranks (threads) train the same: gradients, losses, norms and weights.
// Every world repeats bit for bit. Ranks without a supervised token, windows without one, and a rank whose
// gradient is not finite.
#include <gtest/gtest.h>

#include <cmath>

#include "comm/exchange.h"
#include "shard/rank_engine.h"
#include "train/evaluate.h"

namespace deltatune {
namespace {

constexpr int64_t tokens = 48;

std::vector<Document> documents() {
  std::vector<Document> out;
  for (uint64_t i = 0; i < 60; ++i) {
    out.push_back(random_document(3 + static_cast<int64_t>(i * 7 % 40), 1, 24, i));
    out.back().supervised = i % 5 != 3;
  }
  return out;
}

StreamOptions stream_options(const Communicator& comm, int64_t rows_per_step) {
  StreamOptions o;
  o.max_tokens = tokens;
  o.max_segments = 8;
  o.world_size = comm.world_size();
  o.rank = comm.rank();
  o.gradient_accumulation_steps = rows_per_step / comm.world_size();
  return o;
}

/// |a - b| / |b|.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

/// What rank 0 has seen of a run, and the bytes of every rank's state at its end.
struct Trained {
  std::vector<double> losses, norms, weights;
  std::vector<int64_t> targets;
  std::vector<std::vector<std::byte>> states;
  double eval_loss = 0;
};

Trained train(int world_size, int64_t steps, StreamMode mode, DType storage, bool tied,
              bool whole_weights = false) {
  Trained run;
  run.states.resize(static_cast<size_t>(world_size));
  const TokenizedSet set = set_of(documents(), tokens);
  run_ranks(world_size, [&](Communicator& comm) {
    EngineOptions how = tiny_options(storage, tokens);
    how.whole_weights = whole_weights;
    RankEngine rank(comm, how, tied, make_cpu_device(mode));
    const StreamOptions options = stream_options(comm, 8);
    BatchStream stream(set, options);
    const uint64_t allocations = rank.device->allocation_count();
    Trainer trainer(rank.engine, stream, {"cosine", 1e-3, 2, steps}, options.gradient_accumulation_steps);
    while (!trainer.done()) {
      const StepReport report = trainer.step();
      EXPECT_FALSE(report.nonfinite || report.empty);
      EXPECT_EQ(report.slots, 8 * tokens);
      if (comm.rank() != 0) continue;
      run.losses.push_back(report.loss());
      run.norms.push_back(report.grad_norm);
      run.targets.push_back(report.targets);
    }
    EXPECT_EQ(rank.device->allocation_count(), allocations);
    const EvalResult result = evaluate(rank.engine, set, options);
    const std::vector<double> weights = rank.weights();
    run.states[static_cast<size_t>(comm.rank())] = rank.state();
    if (comm.rank() != 0) return;
    run.eval_loss = result.loss();
    run.weights = weights;
    EXPECT_EQ(result.targets, set.counts().targets);
  });
  return run;
}

TEST(WorldTest, TwentyStepsAgreeWithOneRank) {
  for (const bool tied : {true, false}) {
    const Trained one = train(1, 20, StreamMode::direct, DType::f32, tied);
    ASSERT_LT(one.losses.back(), 0.99 * one.losses.front());
    for (const int world : {2, 4, 8}) {
      const Trained many = train(world, 20, StreamMode::direct, DType::f32, tied);
      EXPECT_EQ(many.targets, one.targets);
      for (size_t i = 0; i < one.losses.size(); ++i) {
        EXPECT_NEAR(many.losses[i], one.losses[i], 1e-5 * one.losses[i]) << world << " ranks, step " << i + 1;
      }
      EXPECT_NEAR(many.norms[0], one.norms[0], 1e-6 * one.norms[0]);
      EXPECT_NEAR(many.eval_loss, one.eval_loss, 1e-5 * one.eval_loss);
      EXPECT_LT(distance(many.weights, one.weights), 1e-5) << world << " ranks";
    }
  }
}

TEST(WorldTest, EachWorldRepeatsBitForBit) {
  for (const int world : {2, 4, 8}) {
    const DType storage = world == 4 ? DType::f32 : DType::bf16;
    const Trained a = train(world, 3, StreamMode::direct, storage, true);
    const Trained b = train(world, 3, StreamMode::direct, storage, true);
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.norms, b.norms);
    EXPECT_TRUE(a.states == b.states) << world;
    EXPECT_FALSE(a.states[0].empty());
  }
}

// shard: grads. The update of a chunk is the same; only where the weights lie is not.
TEST(WorldTest, WholeWeightsGiveTheSameBits) {
  for (const int world : {1, 2, 4}) {
    const StreamMode mode = world == 4 ? StreamMode::threaded : StreamMode::direct;
    const Trained cut = train(world, 3, mode, DType::bf16, world == 2);
    const Trained whole = train(world, 3, mode, DType::bf16, world == 2, true);
    EXPECT_EQ(cut.losses, whole.losses);
    EXPECT_EQ(cut.norms, whole.norms);
    EXPECT_EQ(cut.eval_loss, whole.eval_loss);
    EXPECT_TRUE(cut.states == whole.states) << world;
  }
}

TEST(WorldTest, StreamsOnThreadsGiveTheSameBits) {
  for (const int world : {1, 2, 4}) {
    const Trained direct = train(world, 3, StreamMode::direct, DType::bf16, world == 2);
    const Trained threaded = train(world, 3, StreamMode::threaded, DType::bf16, world == 2);
    EXPECT_EQ(direct.losses, threaded.losses);
    EXPECT_EQ(direct.eval_loss, threaded.eval_loss);
    EXPECT_TRUE(direct.states == threaded.states) << world;
  }
}

/// A row with `supervised` targets; 0: documents that are not supervised.
Batch row_with(int64_t supervised, int64_t length, uint64_t seed) {
  Document masked = random_document(17, 1, 24, seed);
  masked.supervised = false;
  std::vector<Document> row = {masked};
  if (supervised > 0) row.push_back(random_document(supervised + 1, 1, 24, seed + 100));
  return packed_row(row, length);
}

// Only the blocks' product gradients are rounded, to 8 bits of mantissa, before they are added up in f32.
TEST(WorldTest, GradientsReducedInBf16AreThoseOfF32Rounded) {
  constexpr int64_t length = 128;
  std::vector<std::vector<double>> gradients;
  std::vector<double> bytes;
  for (const DType reduce : {DType::f32, DType::bf16, DType::bf16}) {
    run_ranks(2, [&](Communicator& comm) {
      EngineOptions options = tiny_options(DType::bf16, length);
      options.reduce = reduce;
      RankEngine rank(comm, options, false);
      rank.engine.begin_window();
      for (const int64_t row : {0, 1}) {
        const double before = comm.totals().reduce_bytes;
        rank.engine.micro_step(row_with(50, length, static_cast<uint64_t>(10 * comm.rank() + row)));
        if (comm.rank() == 0 && row == 1) bytes.push_back(comm.totals().reduce_bytes - before);
      }
      const std::vector<double> gradient = rank.gradients();
      if (comm.rank() == 0) gradients.push_back(gradient);
    });
  }
  EXPECT_EQ(gradients[1], gradients[2]);
  EXPECT_GT(distance(gradients[1], gradients[0]), 1e-5) << "nothing was rounded";
  EXPECT_LT(distance(gradients[1], gradients[0]), 0x1p-9) << "half a unit of the last of 8 bits, at most";
  EXPECT_LT(bytes[1], 0.8 * bytes[0]);
  EXPECT_GT(bytes[1], 0.5 * bytes[0]) << "embedding and head stay in f32";
}

// The loss is normalised by the tokens of all ranks and micro-batches, wherever they lie.
TEST(WorldTest, TokensSpreadOverRanksGiveTheGradientOfOne) {
  constexpr int64_t length = 128;
  const std::vector<int64_t> counts = {0, 1, 7, 100, 100, 0, 0, 1};
  std::vector<Batch> rows;
  for (size_t i = 0; i < counts.size(); ++i) rows.push_back(row_with(counts[i], length, 10 * i));
  int64_t targets = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    ASSERT_EQ(rows[i].num_targets, counts[i]);
    targets += counts[i];
  }
  std::vector<double> gradient_of_one;
  UpdateResult result_of_one;
  for (const int world : {1, 2, 4, 8}) {
    run_ranks(world, [&](Communicator& comm) {
      RankEngine rank(comm, tiny_options(DType::f32, length));
      rank.engine.begin_window();
      for (size_t i = static_cast<size_t>(comm.rank()); i < rows.size();
           i += static_cast<size_t>(comm.world_size()))
        rank.engine.micro_step(rows[i]);
      const std::vector<double> gradient = rank.gradients();
      const UpdateResult result = rank.engine.update(1e-3, 1, targets);
      // The same norm, hence the same clipping coefficient, on every rank.
      const std::vector<std::string> norms = comm.exchange(std::to_string(result.grad_norm));
      for (const std::string& norm : norms) EXPECT_EQ(norm, norms[0]);
      if (comm.rank() != 0) return;
      if (comm.world_size() == 1) {
        gradient_of_one = gradient;
        result_of_one = result;
        double squares = 0;
        for (const double g : gradient) squares += g * g;
        const double norm = std::sqrt(squares) / static_cast<double>(targets);
        EXPECT_NEAR(result.grad_norm, norm, 1e-6 * norm);
        return;
      }
      EXPECT_LT(distance(gradient, gradient_of_one), 1e-6) << world << " ranks";
      EXPECT_NEAR(result.grad_norm, result_of_one.grad_norm, 1e-6 * result_of_one.grad_norm);
      EXPECT_NEAR(result.loss_sum, result_of_one.loss_sum, 1e-6 * result_of_one.loss_sum);
    });
  }
}

TEST(WorldTest, AWindowWithoutTargetsLeavesEverything) {
  std::vector<Document> all = documents();
  for (Document& d : all) d.supervised = false;
  const TokenizedSet set = set_of(all, tokens);
  run_ranks(4, [&](Communicator& comm) {
    RankEngine rank(comm, tiny_options(DType::bf16, tokens));
    const StreamOptions options = stream_options(comm, 8);
    BatchStream stream(set, options);
    rank.engine.begin_window();  // moments that are not zero
    rank.engine.micro_step(row_with(20, tokens, static_cast<uint64_t>(comm.rank())));
    rank.engine.update(1e-2, 1, 80);
    const std::vector<std::byte> before = rank.state();
    Trainer trainer(rank.engine, stream, {"constant", 1e-2, 0, 2}, options.gradient_accumulation_steps);
    const StepReport report = trainer.step();
    EXPECT_TRUE(report.empty);
    EXPECT_FALSE(report.nonfinite);
    EXPECT_TRUE(rank.state() == before);
  });
}

TEST(WorldTest, OneRankWithoutTargetsIsNoReasonToSkip) {
  run_ranks(2, [&](Communicator& comm) {
    RankEngine rank(comm, tiny_options(DType::f32, tokens));
    rank.engine.begin_window();
    rank.engine.micro_step(row_with(comm.rank() == 0 ? 0 : 20, tokens, 5));
    const UpdateResult result = rank.engine.update(1e-2, 1, 20);
    EXPECT_GT(result.loss_sum, 0);
    EXPECT_GT(result.grad_norm, 0);
    EXPECT_FALSE(result.nonfinite);
  });
}

TEST(WorldTest, NotFiniteOnOneRankIsNotFiniteOnAll) {
  run_ranks(4, [&](Communicator& comm) {
    RankEngine rank(comm, tiny_options(DType::f32, tokens));
    rank.engine.begin_window();
    rank.engine.micro_step(row_with(20, tokens, static_cast<uint64_t>(comm.rank())));
    // The last state tensors' gradients are replicated; this one is of rank 2's own memory.
    if (comm.rank() == 2) {
      const auto& table = rank.engine.store().table();
      for (size_t i = 0; i < table.params.size(); ++i) {
        if (table.params[i].keep_f32) rank.engine.store().grads()[i].as<float>()[0] = NAN;
      }
    }
    const std::vector<std::byte> before = rank.state();
    const UpdateResult result = rank.engine.update(1e-2, 1, 80);
    EXPECT_TRUE(result.nonfinite);
    EXPECT_EQ(result.own_nonfinite, comm.rank() == 2);
    EXPECT_EQ(ranks_where(comm, result.own_nonfinite), std::vector<int>{2});
    EXPECT_TRUE(rank.state() == before);
  });
}

TEST(WorldTest, ALostRankEndsTheStepOfTheOthers) {
  for (const StreamMode mode : {StreamMode::direct, StreamMode::threaded}) {
    const RankErrors errors = on_ranks(3, [&](Communicator& comm) {
      RankEngine rank(comm, tiny_options(DType::f32, tokens), true, make_cpu_device(mode));
      comm.note(1, "forward and backward");
      rank.engine.begin_window();
      if (comm.rank() == 1) throw Error(ErrorKind::data, "a bad row");
      rank.engine.micro_step(row_with(20, tokens, 1));
      rank.engine.update(1e-2, 1, 60);
    });
    EXPECT_EQ(errors[1]->kind(), ErrorKind::data);
    for (const size_t r : {0u, 2u}) {
      ASSERT_TRUE(errors[r].has_value());
      EXPECT_EQ(errors[r]->kind(), ErrorKind::distributed);
      EXPECT_STREQ(errors[r]->what(), "rank 1 has left the run");
    }
  }
}

}  // namespace
}  // namespace deltatune
