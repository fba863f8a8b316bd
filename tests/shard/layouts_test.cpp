// Gradient release and moments in host memory give the bits of the usual step, for every storage of the
// moments, on one rank and on several, on streams that are threads. What a gradient that is not finite
// leaves with release.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "ops/ops.h"
#include "shard/rank_engine.h"

namespace deltatune {
namespace {

constexpr int64_t tokens = 48;

struct Layout {
  DType moments = DType::f32;
  bool master = true;
  bool release = false;
  bool offload = false;
  bool tied = true;
  DType storage = DType::bf16;
  StreamMode mode = StreamMode::direct;
};

EngineOptions options_of(const Layout& layout) {
  EngineOptions o = tiny_options(layout.storage, tokens);
  o.max_grad_norm = 0;
  o.moments.dtype = layout.moments;
  o.moments.offload = layout.offload;
  o.moments.piece = 256;  // groups have several pieces, the last one a short one
  o.master_weights = layout.master;
  o.gradient_release = layout.release;
  o.adamw.rounding = Rounding::stochastic;
  o.adamw.seed = 3;
  return o;
}

Batch row_of(int rank, int64_t step) {
  const auto seed = static_cast<uint64_t>(step * 16 + rank);
  Document masked = random_document(9, 1, 24, seed);
  masked.supervised = false;
  return packed_row({masked, random_document(20 + rank, 1, 24, seed + 7)}, tokens);
}

/// Losses and norms of rank 0, and every rank's state.
struct Trained {
  std::vector<double> losses, norms;
  std::vector<std::vector<std::byte>> states;
};

Trained train(const Layout& layout, int world) {
  Trained run;
  run.states.resize(static_cast<size_t>(world));
  run_ranks(world, [&](Communicator& comm) {
    RankEngine rank(comm, options_of(layout), layout.tied, make_cpu_device(layout.mode));
    const uint64_t allocations = rank.device->allocation_count();
    for (int64_t step = 1; step <= 4; ++step) {
      int64_t targets = 0;
      for (int r = 0; r < world; ++r) targets += row_of(r, step).num_targets;
      const UpdateResult result = rank.engine.single_step(row_of(comm.rank(), step), 1e-2, step, targets);
      EXPECT_FALSE(result.nonfinite);
      if (comm.rank() != 0) continue;
      run.losses.push_back(result.loss_sum);
      run.norms.push_back(result.grad_norm);
    }
    EXPECT_EQ(rank.device->allocation_count(), allocations);
    rank.engine.stream().sync();
    rank.engine.store().sync_updates();
    run.states[static_cast<size_t>(comm.rank())] = rank.state();
  });
  return run;
}

void expect_same(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  for (size_t i = 0; i < a.norms.size(); ++i) EXPECT_NEAR(a.norms[i], b.norms[i], 1e-6 * b.norms[i]);
  EXPECT_TRUE(a.states == b.states);
  EXPECT_FALSE(a.states[0].empty());
}

TEST(LayoutsTest, ReleaseAndOffloadGiveTheBitsOfTheUsualStep) {
  for (const int world : {1, 2, 4}) {
    for (const DType moments : {DType::f32, DType::bf16, DType::u8}) {
      for (const bool tied : {true, false}) {
        Layout layout{.moments = moments, .master = moments == DType::f32, .tied = tied};
        const Trained usual = train(layout, world);
        ASSERT_NE(usual.losses.front(), usual.losses.back());
        for (const bool release : {false, true}) {
          for (const bool offload : {false, true}) {
            if (!release && !offload) continue;
            SCOPED_TRACE(testing::Message() << world << " ranks, " << name_of(moments) << ", tied " << tied
                                            << ", release " << release << ", offload " << offload);
            layout.release = release;
            layout.offload = offload;
            expect_same(train(layout, world), usual);
          }
        }
      }
    }
  }
}

TEST(LayoutsTest, StreamsOnThreadsGiveTheSameBits) {
  for (const int world : {1, 2}) {
    for (const bool tied : {true, false}) {
      for (const bool release : {false, true}) {
        SCOPED_TRACE(testing::Message() << world << " ranks, tied " << tied << ", release " << release);
        Layout layout{
            .moments = DType::u8, .master = false, .release = release, .offload = true, .tied = tied};
        const Trained direct = train(layout, world);
        layout.mode = StreamMode::threaded;
        expect_same(train(layout, world), direct);
      }
    }
  }
}

TEST(LayoutsTest, ReleaseKeepsNoGradientsOfAllGroups) {
  const auto bytes = [](bool release) {
    const auto comm = make_solo_communicator();
    RankEngine rank(*comm, options_of({.release = release}), false);
    size_t sum = 0;
    for (const Region& region : rank.device->plan().regions())
      sum += region.name.starts_with("gradients") ? region.bytes : 0;
    return sum;
  };
  const ParamTable table = make_params(hybrid_config(false), false).table;
  const ShardLayout layout(table, 1);
  int64_t block = 0, all = 0;
  for (size_t g = 0; g < layout.padded.size(); ++g) {
    all += layout.padded[g];
    if (g > 0 && g + 1 < layout.padded.size()) block = std::max(block, layout.padded[g]);
  }
  const int64_t ends = std::max(layout.padded.front(), layout.padded.back());
  const auto size = [](int64_t elements) { return static_cast<size_t>((4 * elements + 255) / 256 * 256); };
  EXPECT_EQ(bytes(false), size(all + layout.f32_elements));
  EXPECT_EQ(bytes(true), size(block) + size(ends) + size(layout.f32_elements));
}

/// State of one group by name, as bytes.
std::map<std::string, std::vector<std::byte>> by_name(ParamStore& store) {
  std::map<std::string, std::vector<std::byte>> out;
  for (const StateTensor& s : store.state()) out[s.name].assign(s.data.data, s.data.data + s.data.bytes());
  return out;
}

// Final group first, block 2 with the bad gradient in the middle, the embedding last.
TEST(LayoutsTest, WithReleaseABadGradientHoldsUpItsGroupAndThoseBehindIt) {
  for (const float bad : {static_cast<float>(NAN), static_cast<float>(INFINITY)}) {
    const auto comm = make_solo_communicator();
    RankEngine rank(*comm, options_of({.moments = DType::u8, .master = false, .release = true}), false);
    ParamStore& store = rank.engine.store();
    Stream& stream = rank.engine.stream();
    float numbers[StepScalar::count] = {1e-2f, 0.1f, 0.05f, 0.1f, 0, 0, 0, 1};
    const Tensor scalars{reinterpret_cast<std::byte*>(numbers), DType::f32, {StepScalar::count}};
    const auto before = by_name(store);
    const auto groups = static_cast<int>(store.table().groups.size());
    store.zero_gradients(stream);
    store.begin_release(stream, scalars);
    for (int g = groups - 1; g >= 0; --g) {
      store.acquire(stream, g);
      store.begin_gradients(stream, g);
      for (const int p : store.table().groups[static_cast<size_t>(g)].params)
        ops::fill(stream, store.grads()[static_cast<size_t>(p)], 1);
      const int first = store.table().groups[static_cast<size_t>(g)].params.back();
      if (store.table().groups[static_cast<size_t>(g)].name == "block 2")
        store.grads()[static_cast<size_t>(first)].as<float>()[3] = bad;
      store.reduce(stream, g, true);
    }
    store.end_release(stream);
    store.measure_gradients(stream, scalars, 0);
    store.apply_gradients(stream, scalars);
    EXPECT_EQ(numbers[StepScalar::nonfinite], 1);
    const auto after = by_name(store);
    for (const auto& [name, bytes] : before) {
      const bool updated =
          name.starts_with("final") || name.starts_with("block 3") || name.starts_with("block 4");
      EXPECT_EQ(after.at(name) != bytes, updated) << name;
    }
  }
}

}  // namespace
}  // namespace deltatune
