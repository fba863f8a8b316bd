// Where parameters lie in flat groups, over the tables of real models and world sizes.
#include "shard/layout.h"

#include <gtest/gtest.h>

#include "model/model_run.h"

namespace deltatune {
namespace {

ParamTable odd_table() {
  // Sizes around the alignment, two groups, f32 parameters in both.
  ParamTable table;
  const int a = table.add_group("a");
  const int b = table.add_group("b");
  const auto add = [&](int group, const char* name, Shape shape, bool f32) {
    Param p;
    p.name = name;
    p.shape = shape;
    p.keep_f32 = f32;
    p.decay = shape.rank == 2;
    p.slices = {{name, 0, shape[0], {shape[0]}}};
    table.add(group, p);
  };
  add(a, "one", {1}, false);
  add(a, "edge", {64}, false);
  add(a, "over", {5, 13}, false);
  add(a, "gate", {3}, true);
  add(b, "matrix", {7, 9}, false);
  add(b, "matrix2", {2, 3}, false);
  add(b, "vector", {127}, false);
  add(b, "gate2", {65}, true);
  return table;
}

struct Span {
  int group;
  int64_t begin, end;
};

void check_layout(const ParamTable& table, int world) {
  const ShardLayout layout(table, world);
  ASSERT_EQ(layout.placements.size(), table.params.size());
  ASSERT_EQ(layout.padded.size(), table.groups.size());
  std::vector<Span> taken;
  int64_t f32_sum = 0;
  for (size_t i = 0; i < table.params.size(); ++i) {
    const Param& param = table.params[i];
    const Placement& place = layout.placements[i];
    EXPECT_EQ(place.in_f32_group, param.keep_f32);
    EXPECT_EQ(place.offset % ShardLayout::alignment, 0) << param.name;
    const int64_t room =
        param.keep_f32 ? layout.f32_elements : layout.padded[static_cast<size_t>(param.group)];
    EXPECT_LE(place.offset + param.shape.count(), room) << param.name;
    const Span mine{param.keep_f32 ? -1 : param.group, place.offset, place.offset + param.shape.count()};
    for (const Span& other : taken) {
      if (other.group == mine.group) {
        EXPECT_TRUE(mine.end <= other.begin || other.end <= mine.begin) << param.name << " overlaps";
      }
    }
    taken.push_back(mine);
    f32_sum += param.keep_f32 ? (param.shape.count() + 127) / 128 * 128 : 0;
  }
  EXPECT_EQ(layout.f32_elements, f32_sum);
  for (size_t g = 0; g < table.groups.size(); ++g) {
    EXPECT_EQ(layout.padded[g] % (ShardLayout::alignment * world), 0);
    EXPECT_EQ(layout.chunk(static_cast<int>(g)) * world, layout.padded[g]);
  }
}

// Every element of every parameter is in exactly one range, of its own decay, over all chunks together.
void check_ranges(const ParamTable& table, int world) {
  const ShardLayout layout(table, world);
  for (int g = -1; g < static_cast<int>(table.groups.size()); ++g) {
    const int64_t count = g < 0 ? layout.f32_elements : layout.chunk(g);
    std::vector<int> decay(static_cast<size_t>(g < 0 ? count : count * world), -1);
    for (int64_t rank = 0; rank < (g < 0 ? 1 : world); ++rank) {
      int64_t last = 0;
      for (const OptimizerRange& r : layout.ranges(table, g, rank * count, count)) {
        EXPECT_GE(r.begin, last);
        EXPECT_GT(r.count, 0);
        EXPECT_LE(r.begin + r.count, count);
        last = r.begin + r.count;
        for (int64_t i = 0; i < r.count; ++i)
          decay[static_cast<size_t>(rank * count + r.begin + i)] = r.decay;
      }
    }
    for (size_t i = 0; i < table.params.size(); ++i) {
      const Param& param = table.params[i];
      if (param.keep_f32 != (g < 0) || (g >= 0 && param.group != g)) continue;
      for (int64_t e = 0; e < param.shape.count(); ++e)
        ASSERT_EQ(decay[static_cast<size_t>(layout.placements[i].offset + e)], param.decay)
            << param.name << "[" << e << "], world " << world;
    }
  }
}

TEST(ShardLayoutTest, OddSizesInEveryWorld) {
  for (const int world : {1, 2, 3, 8}) {
    check_layout(odd_table(), world);
    check_ranges(odd_table(), world);
  }
}

TEST(ShardLayoutTest, AModelsTable) {
  for (const bool tied : {false, true}) {
    const ModelParams params = make_params(tiny_config(tied, 997), tied);
    for (const int world : {1, 2, 8}) {
      check_layout(params.table, world);
      check_ranges(params.table, world);
    }
  }
}

// What has to be zero before a window is in front, in one piece.
TEST(ShardLayoutTest, ProductGradientsLieBehindAllOthers) {
  for (const bool tied : {false, true}) {
    const ModelParams params = make_params(tiny_config(tied, 997), tied);
    const ShardLayout layout(params.table, 1);
    int products = 0;
    for (size_t i = 0; i < params.table.params.size(); ++i) {
      const Param& param = params.table.params[i];
      if (param.keep_f32) continue;
      const int64_t summed = layout.summed[static_cast<size_t>(param.group)];
      products += param.product_gradient;
      if (param.product_gradient) {
        EXPECT_GE(layout.placements[i].offset, summed) << param.name;
      } else {
        EXPECT_LE(layout.placements[i].offset + param.shape.count(), summed) << param.name;
      }
    }
    EXPECT_EQ(products, 2 * 4 + 1) << "four matrices in each of two blocks, and the head";
  }
}

TEST(ShardLayoutTest, NeighboursOfOneDecayAreOneRange) {
  const ParamTable table = odd_table();
  const ShardLayout layout(table, 1);
  // matrix and matrix2 decay, vector does not.
  const auto ranges = layout.ranges(table, 1, 0, layout.padded[1]);
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].count, 128 + 6);
  EXPECT_EQ(ranges[1].begin, 256);
}

}  // namespace
}  // namespace deltatune
