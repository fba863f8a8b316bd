// A captured step against the same step op by op on the GPU: the same bits, whatever the rows hold.
#include <gtest/gtest.h>

#include "cuda/cuda_case.h"
#include "ops/ops.h"
#include "train/bench_model.h"
#include "train/engine_state.h"
#include "train/tiny_engine.h"

namespace deltatune {
namespace {

using cuda_case::Cuda;

// Rows that differ in everything that may differ: documents, chunks, supervised tokens.
std::vector<Batch> rows(int64_t tokens) {
  std::vector<Batch> out;
  const std::vector<std::vector<int64_t>> lengths = {
      {tokens}, {1, 1, 1, 1, 1, 1, 1}, {64, 65, 63}, {130}, {2, 3, 100, 90}, {tokens - 1}, {1}};
  uint64_t seed = 1;
  for (const auto& row : lengths) {
    std::vector<Document> documents;
    for (const int64_t length : row) {
      documents.push_back(random_document(length, 1, 24, seed++));
      documents.back().supervised = row.size() == 1 || documents.size() % 2 == 1;
    }
    documents[0].supervised = true;
    Batch batch = packed_row(documents, tokens);
    // A row needs a target to be worth a step; a lone token has none.
    if (batch.num_targets > 0) out.push_back(std::move(batch));
  }
  return out;
}

struct Trained {
  std::vector<double> numbers;
  std::vector<std::byte> state;
  int64_t nodes = 0;
};

Trained train(DType storage, GraphMode mode, int64_t accumulation) {
  constexpr int64_t tokens = 300;
  EngineOptions options = tiny_options(storage, tokens);
  options.graph = mode;
  options.allow_slow_kernels = true;
  options.keep = Keep::outputs();
  TinyEngine t(options, make_cuda_device(0));
  const std::vector<Batch> all = rows(tokens);
  Trained out;
  size_t next = 0;
  for (int64_t step = 1; step <= 6; ++step) {
    t.engine.begin_window();
    int64_t targets = 0;
    for (int64_t i = 0; i < accumulation; ++i) {
      const Batch& batch = all[next++ % all.size()];
      targets += batch.num_targets;
      t.engine.micro_step(batch);
    }
    const UpdateResult result = t.engine.update(1e-2, step, targets);
    EXPECT_FALSE(result.nonfinite);
    out.numbers.insert(out.numbers.end(), {result.loss_sum, result.grad_norm});
    if (step % 2 == 0) out.numbers.push_back(t.engine.evaluate(all[0]));
  }
  out.state = state_bytes(t.engine);
  out.nodes = graph_nodes(t.engine);
  return out;
}

TEST_F(Cuda, GraphAndOpByOpGiveTheSameBits) {
  for (const DType storage : cuda_case::cuda_dtypes) {
    for (const int64_t accumulation : {1, 3}) {
      SCOPED_TRACE(testing::Message() << name_of(storage) << ", accumulation " << accumulation);
      const Trained eager = train(storage, GraphMode::never, accumulation);
      const Trained graph = train(storage, GraphMode::always, accumulation);
      EXPECT_EQ(eager.nodes, 0);
      EXPECT_GT(graph.nodes, 50);
      EXPECT_EQ(eager.numbers, graph.numbers);
      EXPECT_EQ(eager.state, graph.state);
      EXPECT_LT(eager.numbers.back(), eager.numbers[4]) << "it trains";
    }
  }
}

// At the width, the heads and the tokens of the released models, with the kernels that serve those, where one
// that is launched before the one ahead of it has ended would show.
TEST_F(Cuda, GraphAndOpByOpGiveTheSameBitsAtTheWidthOf27B) {
  constexpr int64_t tokens = 2048;
  ModelConfig config = with_layers(bench_model_config("qwen3.8-27b"), {0, 1, 2, 3});
  config.intermediate_size = 512;
  config.vocab_size = 512;
  config.gdn.key_heads = 2;
  config.gdn.value_heads = 6;
  config.attention.query_heads = 6;
  config.attention.kv_heads = 1;
  const auto run = [&](GraphMode mode) {
    EngineOptions options = tiny_options(DType::bf16, tokens);
    options.graph = mode;
    options.deterministic = true;
    options.keep = Keep::outputs();
    const auto device = make_cuda_device(0);
    const auto comm = make_solo_communicator();
    Engine engine(*device, *comm, config, true, options);
    engine.store().initialise(engine.stream(), 11, 0.02);
    Trained out;
    for (int64_t step = 1; step <= 5; ++step) {
      std::vector<Document> documents;
      for (const int64_t length : {tokens / 2, tokens / 4 + step, int64_t{77}})
        documents.push_back(random_document(length, 1, 512, static_cast<uint64_t>(10 * step + length)));
      const Batch batch = packed_row(documents, tokens);
      engine.begin_window();
      engine.micro_step(batch);
      const UpdateResult result = engine.update(1e-3, step, batch.num_targets);
      EXPECT_FALSE(result.nonfinite);
      out.numbers.insert(out.numbers.end(), {result.loss_sum, result.grad_norm});
    }
    out.state = state_bytes(engine);
    out.nodes = graph_nodes(engine);
    return out;
  };
  const Trained eager = run(GraphMode::never);
  const Trained graph = run(GraphMode::always);
  EXPECT_EQ(eager.nodes, 0);
  EXPECT_GT(graph.nodes, 100);
  EXPECT_EQ(eager.numbers, graph.numbers);
  EXPECT_TRUE(eager.state == graph.state);  // without printing a gigabyte
}

// The first micro-batch of a window writes what later ones add to: the same as adding it to zero.
TEST_F(Cuda, FreshGradientsAreThoseAddedToZero) {
  for (const DType storage : cuda_case::cuda_dtypes) {
    const std::vector<Batch> all = rows(300);
    Batch nothing = all[0];
    std::fill(nothing.targets.begin(), nothing.targets.end(), -100);
    nothing.num_targets = 0;
    std::vector<std::vector<double>> gradients;
    for (const bool after_nothing : {false, true}) {
      EngineOptions options = tiny_options(storage, 300);
      options.allow_slow_kernels = true;
      TinyEngine t(options, make_cuda_device(0));
      // Gradients of another row lie there first.
      t.engine.begin_window();
      t.engine.micro_step(all[1]);
      t.engine.begin_window();
      if (after_nothing) t.engine.micro_step(nothing);
      t.engine.micro_step(all[0]);
      gradients.push_back(t.gradients());
    }
    EXPECT_EQ(gradients[0], gradients[1]) << name_of(storage);
  }
}

TEST_F(Cuda, WhatCannotBeCapturedRunsOpByOp) {
  std::string why;
  Device& device = *cuda_case::cuda_device(why);
  const auto stream = device.make_stream("graphs");
  const Buffer memory = device.allocate(256, "number", "test", Lifetime::run);
  const Tensor x{memory.data(), DType::f32, {1}};
  const auto value = [&] {
    float out = 0;
    stream->download(&out, x);
    stream->sync();
    return out;
  };
  for (const GraphMode mode : {GraphMode::automatic, GraphMode::always}) {
    StepGraphs graphs(mode);
    graphs.check(*stream);
    bool waits = true;
    float next = 0;
    const auto work = [&] {
      ops::fill(*stream, x, double{next});
      if (waits) stream->sync();  // not allowed in a capture
    };
    next = 1;
    graphs.run(*stream, StepGraphs::forward, work);
    EXPECT_EQ(value(), 1);
    next = 2;
    if (mode == GraphMode::always) {
      EXPECT_THROW(graphs.run(*stream, StepGraphs::forward, work), Error);
    } else {
      graphs.run(*stream, StepGraphs::forward, work);
      EXPECT_EQ(value(), 2);
    }
    EXPECT_EQ(graphs.nodes(StepGraphs::forward), 0);
    // The stream is as good as before.
    StepGraphs again(GraphMode::always);
    waits = false;
    next = 3;
    for (int i = 0; i < 3; ++i) again.run(*stream, StepGraphs::forward, work);
    EXPECT_EQ(value(), 3);
    EXPECT_EQ(again.nodes(StepGraphs::forward), 1);
  }
}

TEST_F(Cuda, StagingIsListedButNoDeviceMemory) {
  const auto device = make_cuda_device(0);
  {
    const Buffer staging = device->allocate_staging(1000, "staging", "test");
    ASSERT_NE(staging.data(), nullptr);
    staging.data()[999] = std::byte{1};
    EXPECT_EQ(device->plan().total(), 0u);
    EXPECT_EQ(device->allocated_bytes(), 0u);
    ASSERT_EQ(device->plan().regions().size(), 1u);
    EXPECT_TRUE(device->plan().regions()[0].host);
  }
  EXPECT_EQ(device->allocated_bytes(), 0u);
}

}  // namespace
}  // namespace deltatune
