// An embedding that is looked up by rows gives the bits of one that is gathered: losses, norms and every
// rank's state, on streams that are threads too, with accumulation, gradient release and moments on the host,
// and where a chunk ends inside of a row. When it is used, what it moves, and what room it takes.
#include <gtest/gtest.h>

#include "shard/rank_engine.h"

namespace deltatune {
namespace {

constexpr int64_t tokens = 48;
constexpr int64_t many = 509;  // a prime: (world + 2) 48 up to a world of eight

struct How {
  DType storage = DType::bf16;
  StreamMode mode = StreamMode::direct;
  int64_t accumulation = 1;
  bool release = false;
  bool offload = false;
  bool whole_weights = false;
  int64_t vocabulary = many;
};

EngineOptions options_of(const How& how, bool rows) {
  EngineOptions o = tiny_options(how.storage, tokens);
  if (how.release) o.max_grad_norm = 0;
  o.gradient_release = how.release;
  o.moments.offload = how.offload;
  o.moments.piece = 256;
  o.whole_weights = how.whole_weights;
  o.embedding_by_rows = rows;
  return o;
}

// Ids that all ranks have, some twice, and ids of all chunks.
Batch row_of(int rank, int64_t micro_batch, int64_t vocabulary = many) {
  const auto seed = static_cast<uint64_t>(micro_batch * 16 + rank);
  Document common = random_document(12, static_cast<int32_t>(vocabulary / 2),
                                    static_cast<int32_t>(vocabulary / 2 + 10), seed);
  common.supervised = rank % 2 == 0;
  return packed_row({common, random_document(25 + rank, 1, static_cast<int32_t>(vocabulary), seed + 7)},
                    tokens);
}

/// Losses and norms of rank 0, evaluation at the end, every rank's state, and bytes of the first micro-batch.
struct Trained {
  std::vector<double> losses, norms;
  double eval = 0;
  std::vector<std::vector<std::byte>> states;
  CommTotals moved;
};

Trained train(const How& how, int world, bool rows) {
  Trained run;
  run.states.resize(static_cast<size_t>(world));
  run_ranks(world, [&](Communicator& comm) {
    RankEngine rank(comm, options_of(how, rows), false, make_cpu_device(how.mode), how.vocabulary);
    EXPECT_EQ(rank.engine.store().reduces_rows(), rows);
    EXPECT_EQ(rank.engine.store().looks_up_rows(), rows && how.vocabulary == many && !how.whole_weights);
    const auto row = [&](int r, int64_t micro_batch) { return row_of(r, micro_batch, how.vocabulary); };
    const uint64_t allocations = rank.device->allocation_count();
    for (int64_t step = 1; step <= 3; ++step) {
      int64_t targets = 0;
      for (int64_t i = 0; i < how.accumulation; ++i) {
        for (int r = 0; r < world; ++r) targets += row(r, step * 8 + i).num_targets;
      }
      UpdateResult result;
      if (how.release) {
        result = rank.engine.single_step(row(comm.rank(), step * 8), 1e-2, step, targets);
      } else {
        rank.engine.begin_window();
        for (int64_t i = 0; i < how.accumulation; ++i) {
          const CommTotals before = comm.totals();
          rank.engine.micro_step(row(comm.rank(), step * 8 + i));
          if (comm.rank() != 0 || step > 1 || i > 0) continue;
          run.moved.gather_bytes = comm.totals().gather_bytes - before.gather_bytes;
          run.moved.reduce_bytes = comm.totals().reduce_bytes - before.reduce_bytes;
        }
        result = rank.engine.update(1e-2, step, targets);
      }
      EXPECT_FALSE(result.nonfinite);
      if (comm.rank() != 0) continue;
      run.losses.push_back(result.loss_sum);
      run.norms.push_back(result.grad_norm);
    }
    const double eval = rank.engine.evaluate(row(comm.rank(), 99));
    EXPECT_EQ(rank.device->allocation_count(), allocations);
    rank.engine.store().sync_updates();
    run.states[static_cast<size_t>(comm.rank())] = rank.state();
    if (comm.rank() == 0) run.eval = eval;
  });
  return run;
}

void expect_same(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.eval, b.eval);
  EXPECT_TRUE(a.states == b.states);
  EXPECT_FALSE(a.states[0].empty());
}

TEST(RowsTest, TheBitsOfAGatheredTable) {
  for (const int world : {2, 3, 8}) {
    for (const DType storage : {DType::bf16, DType::f32}) {
      for (const int64_t accumulation : {1, 3}) {
        SCOPED_TRACE(testing::Message() << world << " ranks, " << name_of(storage) << ", " << accumulation);
        const How how{.storage = storage, .accumulation = accumulation};
        const Trained rows = train(how, world, true);
        const Trained gathered = train(how, world, false);
        ASSERT_NE(rows.losses.front(), rows.losses.back());
        expect_same(rows, gathered);
      }
    }
  }
}

TEST(RowsTest, TheBitsOfAGatheredTableInEveryLayout) {
  for (const int world : {2, 4}) {
    for (const bool release : {false, true}) {
      for (const bool offload : {false, true}) {
        SCOPED_TRACE(testing::Message() << world << " ranks, release " << release << ", offload " << offload);
        How how{.release = release, .offload = offload};
        const Trained gathered = train(how, world, false);
        expect_same(train(how, world, true), gathered);
        how.mode = StreamMode::threaded;
        expect_same(train(how, world, true), gathered);
      }
    }
  }
}

// Two shapes where the table is gathered and its gradient is not: rows for all ranks find no room in the
// table's slot, and shard: grads.
TEST(RowsTest, GradientsOfAGatheredTable) {
  for (const int world : {2, 3}) {
    for (const StreamMode mode : {StreamMode::direct, StreamMode::threaded}) {
      SCOPED_TRACE(testing::Message() << world << " ranks");
      const How small{.mode = mode, .accumulation = 2, .vocabulary = 130};
      expect_same(train(small, world, true), train(small, world, false));
      const How whole{.mode = mode, .accumulation = 2, .whole_weights = true};
      expect_same(train(whole, world, true), train(whole, world, false));
    }
  }
}

// Of the table, nothing: each rank's rows to every other, and their gradients back.
TEST(RowsTest, MovesRowsInPlaceOfTheTable) {
  for (const int world : {2, 4}) {
    const Trained rows = train({}, world, true);
    const Trained gathered = train({}, world, false);
    const ModelConfig config = hybrid_config(false, many);
    const auto width = static_cast<double>(config.hidden_size);
    const double others = world - 1;
    const auto padded = static_cast<double>(ShardLayout(make_params(config, false).table, world).padded[0]);
    const double table = padded * others / world;
    const double moved = static_cast<double>(tokens) * width * others;
    const double ids = static_cast<double>(2 * tokens) * others;
    EXPECT_DOUBLE_EQ(gathered.moved.gather_bytes - rows.moved.gather_bytes, 2 * (table - moved) - 4 * ids);
    EXPECT_DOUBLE_EQ(gathered.moved.reduce_bytes - rows.moved.reduce_bytes, 4 * table - 2 * moved);
  }
}

TEST(RowsTest, OnlyWhereTheyAreLessThanTheTable) {
  const auto lookup = [](int64_t times, int world, int per_machine) {
    return ParamStore::lookup_rows_pay(1000, times, world, per_machine);
  };
  EXPECT_TRUE(lookup(100, 8, 8));
  EXPECT_FALSE(lookup(101, 8, 8));
  EXPECT_FALSE(lookup(10, 1, 1));
  // On two machines: 8 rows times 4 ranks of a machine.
  EXPECT_TRUE(lookup(31, 8, 4));
  EXPECT_FALSE(lookup(32, 8, 4));
  const auto gradient = [](int64_t times, DType storage, int world) {
    return ParamStore::gradient_rows_pay(1000, times, storage, world);
  };
  EXPECT_TRUE(gradient(250, DType::bf16, 8));
  EXPECT_FALSE(gradient(251, DType::bf16, 8));
  EXPECT_TRUE(gradient(125, DType::f32, 8));
  EXPECT_FALSE(gradient(126, DType::f32, 8));
  EXPECT_FALSE(gradient(10, DType::f32, 1));
}

TEST(RowsTest, OnlyOfATableThatIsCutAndNotTheHead) {
  struct Used {
    bool lookups = false, gradients = false;
    bool operator==(const Used&) const = default;
  };
  const auto used = [](int64_t vocab, bool tied = false, bool whole_weights = false,
                       bool whole_states = false, int world = 2, int per_machine = 0) {
    Used out;
    run_ranks(world, [&](Communicator& comm) {
      EngineOptions options = options_of({}, true);
      options.whole_weights = whole_weights;
      options.whole_states = whole_states;
      // What the ranks hear of their machines may differ.
      if (comm.rank() == 0) options.ranks_per_machine = per_machine;
      const RankEngine rank(comm, options, tied, make_cpu_device(), vocab);
      if (comm.rank() == world - 1)
        out = {rank.engine.store().looks_up_rows(), rank.engine.store().reduces_rows()};
    });
    return out;
  };
  const Used both{true, true}, gradient{false, true}, none{false, false};
  EXPECT_EQ(used(192), both);
  EXPECT_EQ(used(191), gradient);
  EXPECT_EQ(used(48), gradient);
  EXPECT_EQ(used(47), none);
  EXPECT_EQ(used(192, true), none);
  EXPECT_EQ(used(192, false, true), gradient);
  EXPECT_EQ(used(192, false, false, true), none);
  EXPECT_EQ(used(192, false, false, false, 1), none);
  EXPECT_EQ(used(383, false, false, false, 4, 2), gradient);
  EXPECT_EQ(used(384, false, false, false, 4, 2), both);
}

// The slots are those of the embedding; what all ranks look up is the only memory of its own.
TEST(RowsTest, TakesTheIdsRoomAndNoMore) {
  const auto bytes = [](bool rows) {
    size_t sum = 0;
    run_ranks(2, [&](Communicator& comm) {
      const RankEngine rank(comm, options_of({}, rows), false, make_cpu_device(), many);
      if (comm.rank() == 0) sum = rank.device->plan().total();
    });
    return sum;
  };
  EXPECT_EQ(bytes(true) - bytes(false), size_t{2 * 2 * tokens * 4});
}

}  // namespace
}  // namespace deltatune
