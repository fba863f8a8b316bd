// Where a step stopped being finite is found: forward and backward, in each layer, on one and several ranks,
// in every layout of states; and nothing is looked for in a sound step.
#include "train/nonfinite.h"

#include <gtest/gtest.h>

#include <mutex>

#include "shard/rank_engine.h"

namespace deltatune {
namespace {

constexpr int64_t tokens = 48;
constexpr int64_t layers = 5;

const Param& param_of(const Engine& engine, const std::string& name) {
  for (const Param& param : engine.store().table().params) {
    if (param.name == name) return param;
  }
  throw Error(ErrorKind::internal, "no parameter " + name);
}

// Every element of the rows [begin, end) of a parameter; all ranks call it together.
void set_rows(Engine& engine, const std::string& name, int64_t begin, int64_t end, float value) {
  const Param& param = param_of(engine, name);
  const auto part = engine.store().slice_part(param, {"", begin, end - begin, {}});
  engine.stream().sync();
  for (int64_t i = 0; i < part.count; ++i) reinterpret_cast<float*>(part.values.data)[i] = value;
}

void set_all(Engine& engine, const std::string& name, float value) {
  set_rows(engine, name, 0, param_of(engine, name).shape[0], value);
}

std::string in_layer(int64_t layer, const char* name) {
  return "layers." + std::to_string(layer) + "." + name;
}

// The layer's output is infinite.
void break_forward(Engine& engine, int64_t layer) {
  set_all(engine, in_layer(layer, "down"), INFINITY);
}

// The layer's MLP has a large input, and gates that are zero: its output is zero, the gradient of the gates'
// weights has the large input in it and overflows, and no gradient passes through to what lies before.
void break_backward(Engine& engine, int64_t layer) {
  const int64_t gates = param_of(engine, in_layer(layer, "gate_up")).shape[0] / 2;
  set_all(engine, in_layer(layer, "post_norm"), 5e37f);
  set_rows(engine, in_layer(layer, "gate_up"), 0, gates, 0);
  set_rows(engine, in_layer(layer, "gate_up"), gates, 2 * gates, 1e-37f);
  set_all(engine, in_layer(layer, "down"), 1e6f);
}

struct Layout {
  int world = 1;
  bool whole_states = false;
  bool release = false;
  int64_t accumulation = 1;
  bool tied = false;
  StreamMode mode = StreamMode::direct;
};

// What all ranks agree on after one step of a model that `damage` was done to; ranks: whose it was.
NonfiniteOrigin origin(const Layout& layout, const std::function<void(Engine&)>& damage,
                       std::vector<int>* ranks = nullptr) {
  const TokenizedSet set = set_of(std::vector<Document>(40, random_document(40, 1, 24, 7)), tokens);
  NonfiniteOrigin out;
  std::vector<std::string> seen;
  std::mutex mutex;
  run_ranks(layout.world, [&](Communicator& comm) {
    EngineOptions options = tiny_options(DType::f32, tokens);
    options.whole_states = layout.whole_states;
    options.gradient_release = layout.release;
    if (layout.release) options.max_grad_norm = 0;
    RankEngine rank(comm, options, layout.tied, make_cpu_device(layout.mode));
    damage(rank.engine);
    rank.engine.store().refresh_storage(rank.engine.stream());
    StreamOptions stream_options;
    stream_options.max_tokens = tokens;
    stream_options.max_segments = 8;
    stream_options.world_size = comm.world_size();
    stream_options.rank = comm.rank();
    stream_options.gradient_accumulation_steps = layout.accumulation;
    BatchStream stream(set, stream_options);
    Trainer trainer(rank.engine, stream, {"constant", 1e-3, 0, 2}, layout.accumulation);
    const StepReport report = trainer.step();
    EXPECT_TRUE(report.nonfinite);
    const std::lock_guard lock(mutex);
    json::Value event;
    report.nonfinite_origin.add_to(event);
    seen.push_back(json::dump(event));
    out = report.nonfinite_origin;
    if (ranks != nullptr) *ranks = report.nonfinite_ranks;
  });
  for (const std::string& text : seen) EXPECT_EQ(text, seen.front());
  return out;
}

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {},
      {.accumulation = 2, .tied = true},
      {.mode = StreamMode::threaded},
      {.world = 2},
      {.world = 3, .accumulation = 2, .mode = StreamMode::threaded},
      {.world = 2, .whole_states = true},
  };
  return all;
}

TEST(NonfiniteTest, TheFirstLayerWhoseOutputIsNotFinite) {
  std::vector<Layout> all = layouts();
  all.push_back({.release = true});
  all.push_back({.world = 2, .release = true});
  for (const Layout& layout : all) {
    for (int64_t layer = 0; layer + 1 < layers; ++layer) {
      const NonfiniteOrigin found = origin(layout, [&](Engine& engine) { break_forward(engine, layer); });
      EXPECT_EQ(found.pass, "forward");
      EXPECT_EQ(found.layer, layer);
      EXPECT_EQ(found.group, "block " + std::to_string(layer));
      EXPECT_EQ(found.where, "layer " + std::to_string(layer) + ", forward");
      if (layout.release) continue;
      EXPECT_EQ(found.first_group, "embedding");
      EXPECT_EQ(found.last_group, "final");
      EXPECT_EQ(found.groups, layers + 2);
    }
  }
}

TEST(NonfiniteTest, TheLastLayerWhoseGradientIsNotFinite) {
  for (const Layout& layout : layouts()) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      const NonfiniteOrigin found = origin(layout, [&](Engine& engine) { break_backward(engine, layer); });
      EXPECT_EQ(found.pass, "backward") << found.where;
      EXPECT_EQ(found.layer, layer);
      EXPECT_EQ(found.group, "block " + std::to_string(layer));
      EXPECT_EQ(found.tensor, in_layer(layer, "gate_up"));
      EXPECT_EQ(found.first_group, found.last_group);
      EXPECT_EQ(found.groups, 1);
    }
  }
}

// A rank knows its own loss and the gradients of its norms before they are summed. What overflows in a
// matrix's gradient and in nothing before it is seen in the sum of the ranks only.
TEST(NonfiniteTest, RanksAreThoseWhoseOwnShareIsKnown) {
  for (const bool whole_states : {false, true}) {
    const Layout layout{.world = 2, .whole_states = whole_states};
    std::vector<int> ranks;
    origin(
        layout, [](Engine& engine) { break_forward(engine, 1); }, &ranks);
    EXPECT_EQ(ranks, (std::vector<int>{0, 1}));
    origin(
        layout, [](Engine& engine) { break_backward(engine, 1); }, &ranks);
    EXPECT_TRUE(ranks.empty());
  }
}

TEST(NonfiniteTest, TheEmbedding) {
  const NonfiniteOrigin found = origin({}, [](Engine& engine) { set_all(engine, "embedding", INFINITY); });
  EXPECT_EQ(found.where, "the embedding, forward");
  EXPECT_EQ(found.group, "embedding");
  EXPECT_LT(found.layer, 0);
}

TEST(NonfiniteTest, BehindTheLastLayerOneCannotTellMore) {
  const NonfiniteOrigin found = origin({}, [](Engine& engine) { set_all(engine, "head", INFINITY); });
  EXPECT_EQ(found.layer, layers - 1);
  EXPECT_EQ(found.where, "layer 4 or behind it (head, loss)");
  const NonfiniteOrigin rows =
      origin({.accumulation = 2}, [](Engine& engine) { set_all(engine, "head", INFINITY); });
  // All rows break there, and an earlier one alone would leave the same behind.
  EXPECT_LT(rows.layer, 0);
  EXPECT_EQ(rows.where, "an earlier row of the step, or layer 4 or behind it (head, loss)");
  EXPECT_EQ(rows.last_group, "final");
}

}  // namespace
}  // namespace deltatune
