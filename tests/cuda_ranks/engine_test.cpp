// A small hybrid model on several GPUs: the same as on one, the same twice, the same as a graph.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cuda_ranks/gpu_ranks.h"
#include "shard/rank_engine.h"
#include "train/engine_state.h"

namespace deltatune {
namespace {

using gpu_ranks::GpuRanks;
using gpu_ranks::Rank;

class GpuEngines : public GpuRanks {};

constexpr int64_t tokens = 128;
// Row `row` of every step; one in five is not supervised at all.
Batch row_of(int64_t row, int32_t vocabulary = 24) {
  const auto seed = static_cast<uint64_t>(row);
  std::vector<Document> documents;
  for (const int64_t length : {1 + static_cast<int64_t>(seed * 7 % 60), int64_t{30}, int64_t{12}}) {
    documents.push_back(random_document(length, 1, vocabulary, seed * 10 + documents.size()));
    documents.back().supervised = seed % 5 != 3;
  }
  return packed_row(documents, tokens);
}

struct Trained {
  std::vector<double> losses, norms, gradient, weights;
  std::vector<std::byte> state;
  int64_t nodes = 0;
};

// A rank takes the rows of `order` that are its own.
using Order = std::vector<int64_t>;
const Order in_turn = {0, 1, 2, 3, 4, 5, 6, 7};

Trained train(RankEngine& t, int64_t steps, const Order& order = in_turn) {
  Communicator& comm = t.engine.comm();
  Trained out;
  for (int64_t step = 1; step <= steps; ++step) {
    t.engine.begin_window();
    int64_t targets = 0;
    for (const int64_t row : order) {
      const Batch batch = row_of(row);
      targets += batch.num_targets;
      if (row % comm.world_size() == comm.rank()) t.engine.micro_step(batch);
    }
    if (step == 1) out.gradient = t.gradients();
    const UpdateResult result = t.engine.update(1e-3, step, targets);
    EXPECT_FALSE(result.nonfinite);
    out.losses.push_back(result.loss_sum / static_cast<double>(targets));
    out.norms.push_back(result.grad_norm);
    if (step % 7 == 0) out.losses.push_back(t.engine.evaluate(row_of(comm.rank())));
  }
  out.weights = t.weights();
  out.state = state_bytes(t.engine);
  out.nodes = graph_nodes(t.engine);
  return out;
}

EngineOptions training_options(DType storage, GraphMode graph) {
  EngineOptions o = tiny_options(storage, tokens);
  o.graph = graph;
  o.allow_slow_kernels = true;
  o.deterministic = true;
  return o;
}

/// |a - b| / |b|.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return a.size() == b.size() ? std::sqrt(difference / norm) : INFINITY;
}

// Engines live until the end: the communicator knows their memory by its addresses.
void train_all_ways(Rank& self, DType storage, bool tied) {
  const auto solo = make_solo_communicator();
  std::vector<std::unique_ptr<RankEngine>> engines;
  const auto run = [&](Communicator& comm, GraphMode graph, const Order& order = in_turn) {
    engines.push_back(std::make_unique<RankEngine>(comm, training_options(storage, graph), tied,
                                                   make_cuda_device(gpu_ranks::gpu_of(self.comm->rank()))));
    return train(*engines.back(), 20, order);
  };
  const Trained eager = run(*self.comm, GraphMode::never);
  const Trained again = run(*self.comm, GraphMode::never);
  const Trained graph = run(*self.comm, GraphMode::always);
  EXPECT_EQ(eager.nodes, 0);
  EXPECT_GT(graph.nodes, 100);
  EXPECT_TRUE(eager.losses == again.losses && eager.norms == again.norms && eager.state == again.state)
      << "two runs differ";
  EXPECT_TRUE(eager.losses == graph.losses && eager.norms == graph.norms && eager.state == graph.state)
      << "a graph gives other bits";
  EXPECT_GT(self.comm->waited_s(), 0);
  if (self.comm->rank() != 0) return;
  const Trained one = run(*solo, GraphMode::never);
  EXPECT_LT(one.losses.back(), 0.99 * one.losses[0]) << "it trains";
  // The first gradient differs by the order of its sums alone.
  const double rounding = storage == DType::f32 ? 1e-6 : 1e-5;
  EXPECT_LT(distance(eager.gradient, one.gradient), rounding);
  EXPECT_NEAR(eager.norms[0], one.norms[0], rounding * one.norms[0]);
  // Steps multiply that, by how much is a matter of the model and the rows: one GPU that takes the same rows
  // in other orders shows it. Each of the three is one draw of what the bound is ten times of.
  double losses = 1e-6;
  double weights = 1e-6;
  for (const Order& order : {Order{0, 2, 4, 6, 1, 3, 5, 7}, Order{7, 6, 5, 4, 3, 2, 1, 0}}) {
    const Trained other = run(*solo, GraphMode::never, order);
    losses = std::max(losses, distance(other.losses, one.losses));
    weights = std::max(weights, distance(other.weights, one.weights));
  }
  EXPECT_LT(weights, 1e-2) << "the orders of one GPU are too far apart to bound anything";
  EXPECT_LT(distance(eager.losses, one.losses), 10 * losses);
  EXPECT_LT(distance(eager.weights, one.weights), 10 * weights);
  std::printf("%s%s: losses %.2e (orders %.2e), weights %.2e (orders %.2e)\n", name_of(storage),
              tied ? "" : ", own head", distance(eager.losses, one.losses), losses,
              distance(eager.weights, one.weights), weights);
}

TEST_P(GpuEngines, SeveralTrainLikeOne) {
  for (const DType storage : {DType::f32, DType::bf16}) {
    for (const bool tied : {true, false}) {
      SCOPED_TRACE(testing::Message() << name_of(storage) << (tied ? ", tied" : ", own head"));
      run([&](Rank& self) { train_all_ways(self, storage, tied); });
    }
  }
}

// shard: none. One row a rank: the bits of cut states, as a graph too, and with gradient release.
void train_with_whole_states(Rank& self, DType moments, bool release) {
  std::vector<std::unique_ptr<RankEngine>> engines;
  const auto run = [&](bool whole, GraphMode graph) {
    EngineOptions options = training_options(DType::bf16, graph);
    options.whole_states = whole;
    options.moments.dtype = moments;
    options.gradient_release = release;
    if (release) options.max_grad_norm = 0;
    engines.push_back(std::make_unique<RankEngine>(*self.comm, options, !release,
                                                   make_cuda_device(gpu_ranks::gpu_of(self.comm->rank()))));
    Engine& engine = engines.back()->engine;
    const int world = self.comm->world_size();
    Trained out;
    for (int64_t step = 1; step <= 6; ++step) {
      int64_t targets = 0;
      for (int r = 0; r < world; ++r) targets += row_of(step * world + r).num_targets;
      const UpdateResult result =
          engine.single_step(row_of(step * world + self.comm->rank()), 1e-3, step, targets);
      EXPECT_FALSE(result.nonfinite);
      out.losses.push_back(result.loss_sum);
      out.norms.push_back(result.grad_norm);
    }
    engine.store().sync_updates();
    out.weights = engines.back()->weights();
    out.state = state_bytes(engine);
    out.nodes = graph_nodes(engine);
    return out;
  };
  const Trained cut = run(false, GraphMode::never);
  const double gathered = self.comm->totals().gather_bytes;
  const Trained whole = run(true, GraphMode::never);
  EXPECT_GT(self.comm->totals().gather_bytes, gathered);
  const Trained graph = run(true, GraphMode::always);
  EXPECT_GT(graph.nodes, 100);
  EXPECT_TRUE(whole.losses == cut.losses && whole.state == cut.state && whole.weights == cut.weights)
      << "not the bits of cut states";
  // With release every rank adds up all squares, else each its part.
  for (size_t i = 0; i < cut.norms.size(); ++i)
    EXPECT_NEAR(whole.norms[i], cut.norms[i], release ? 1e-6 * cut.norms[i] : 0);
  EXPECT_TRUE(whole.losses == graph.losses && whole.norms == graph.norms && whole.state == graph.state)
      << "a graph gives other bits";
}

TEST_P(GpuEngines, WholeStatesGiveTheBitsOfCutOnes) {
  for (const DType moments : {DType::f32, DType::u8}) {
    for (const bool release : {false, true}) {
      SCOPED_TRACE(testing::Message() << name_of(moments) << (release ? ", release" : ""));
      run([&](Rank& self) { train_with_whole_states(self, moments, release); });
    }
  }
}

// Rows of the embedding, or of its gradient alone: the bits of one that travels whole, as a graph too.
void train_by_rows(Rank& self, DType storage, bool release, bool lookup) {
  const int world = self.comm->world_size();
  const auto vocabulary = static_cast<int32_t>((lookup ? world + 2 : world) * tokens + 1);
  const int64_t rows_of_a_rank = release ? 1 : 2;
  std::vector<std::unique_ptr<RankEngine>> engines;
  const auto run = [&](bool rows, GraphMode graph) {
    EngineOptions options = training_options(storage, graph);
    options.embedding_by_rows = rows;
    options.gradient_release = release;
    if (release) options.max_grad_norm = 0;
    engines.push_back(std::make_unique<RankEngine>(
        *self.comm, options, false, make_cuda_device(gpu_ranks::gpu_of(self.comm->rank())), vocabulary));
    Engine& engine = engines.back()->engine;
    EXPECT_EQ(engine.store().looks_up_rows(), rows && lookup);
    EXPECT_EQ(engine.store().reduces_rows(), rows);
    Trained out;
    for (int64_t step = 1; step <= 6; ++step) {
      int64_t targets = 0;
      std::vector<Batch> own;
      for (int64_t row = 0; row < rows_of_a_rank * world; ++row) {
        // Few ids, which ranks have in common, and ids of all parts of the table.
        Batch batch = row_of(step * 64 + row, row / world % 2 == step % 2 ? vocabulary : 40);
        targets += batch.num_targets;
        if (row % world == self.comm->rank()) own.push_back(std::move(batch));
      }
      UpdateResult result;
      if (release) {
        result = engine.single_step(own[0], 1e-3, step, targets);
      } else {
        engine.begin_window();
        for (const Batch& batch : own) engine.micro_step(batch);
        result = engine.update(1e-3, step, targets);
      }
      EXPECT_FALSE(result.nonfinite);
      out.losses.push_back(result.loss_sum);
      out.norms.push_back(result.grad_norm);
      if (step % 2 == 0) out.losses.push_back(engine.evaluate(own[0]));
    }
    engine.store().sync_updates();
    out.weights = engines.back()->weights();
    out.state = state_bytes(engine);
    out.nodes = graph_nodes(engine);
    return out;
  };
  const Trained gathered = run(false, GraphMode::never);
  const Trained rows = run(true, GraphMode::never);
  const Trained graph = run(true, GraphMode::always);
  EXPECT_NE(rows.losses.front(), rows.losses.back());
  EXPECT_GT(graph.nodes, 100);
  EXPECT_TRUE(rows.losses == gathered.losses && rows.norms == gathered.norms &&
              rows.state == gathered.state && rows.weights == gathered.weights)
      << "not the bits of an embedding that travels whole";
  EXPECT_TRUE(rows.losses == graph.losses && rows.norms == graph.norms && rows.state == graph.state)
      << "a graph gives other bits";
}

TEST_P(GpuEngines, RowsGiveTheBitsOfAWholeEmbedding) {
  for (const DType storage : {DType::bf16, DType::f32}) {
    for (const bool release : {false, true}) {
      for (const bool lookup : {true, false}) {
        SCOPED_TRACE(testing::Message() << name_of(storage) << (release ? ", release" : "")
                                        << (lookup ? "" : ", gradient only"));
        run([&](Rank& self) { train_by_rows(self, storage, release, lookup); });
      }
    }
  }
}

TEST_P(GpuEngines, ThePlanIsWhatIsAllocated) {
  for (const bool whole : {false, true}) {
    run([whole](Rank& self) {
      EngineOptions options = training_options(DType::bf16, GraphMode::automatic);
      options.whole_states = whole;
      const int64_t vocabulary = 2 * (self.comm->world_size() + 2) * tokens;
      RankEngine real(*self.comm, options, false, make_cuda_device(gpu_ranks::gpu_of(self.comm->rank())),
                      vocabulary);
      EXPECT_EQ(real.engine.store().looks_up_rows(), !whole);
      const auto null = make_null_device(self.device->facts());
      const auto pretended = make_null_communicator(self.comm->world_size());
      const Engine planned(*null, *pretended, hybrid_config(false, vocabulary), false, options);
      EXPECT_EQ(real.device->plan().total(), null->plan().total());
      EXPECT_EQ(real.device->allocated_bytes(), null->plan().total());
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, GpuEngines, testing::Values(CommTransport::peer, CommTransport::nccl),
                         gpu_ranks::name_of_transport);

}  // namespace
}  // namespace deltatune
