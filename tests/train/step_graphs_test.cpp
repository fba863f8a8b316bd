// Stretches of a step as graphs: when they run, are captured and are replayed, and what happens where a
// capture fails. On a stream that notes what it is asked for.
#include "train/step_graphs.h"

#include <gtest/gtest.h>

#include "base/trace.h"
#include "cpu/device.h"
#include "io/test_files.h"
#include "ops/null_device.h"
#include "train/tiny_engine.h"

namespace deltatune {
namespace {

// A CPU stream that pretends to capture: the calls as letters, and how often a graph was launched.
class NotingStream : public Stream {
 public:
  explicit NotingStream(Device& device) : Stream(device, cpu_kernels(), {}, "noting") {}
  void record(Event&) override {}
  void wait(const Event&) override {}
  void sync() override {}
  void upload(Tensor, const void*) override {}
  void download(void*, CTensor) override {}
  bool can_capture() const override { return true; }
  void begin_capture() override { calls += "b"; }
  Graph end_capture() override {
    calls += "e";
    Graph graph;
    graph.native = std::make_shared<int>(0);
    graph.nodes = 7;
    return graph;
  }
  void abandon_capture() noexcept override { calls += "a"; }
  void launch(const Graph& graph) override { calls += graph.native ? "L" : "?"; }
  std::string calls;
};

TEST(StepGraphsTest, RunsThenCapturesThenReplays) {
  const auto device = make_cpu_device();
  NotingStream stream(*device);
  StepGraphs graphs(GraphMode::automatic);
  graphs.check(stream);
  const auto work = [&] { stream.calls += "w"; };
  for (int i = 0; i < 4; ++i) graphs.run(stream, StepGraphs::forward, work);
  EXPECT_EQ(stream.calls,
            "w"
            "bweL"
            "L"
            "L");
  EXPECT_EQ(graphs.nodes(StepGraphs::forward), 7);
  stream.calls.clear();
  graphs.run(stream, StepGraphs::update, work);
  EXPECT_EQ(stream.calls, "w") << "each part warms up on its own";
  EXPECT_EQ(graphs.nodes(StepGraphs::update), 0);
}

TEST(StepGraphsTest, WhatWasCapturedWithoutATraceIsCapturedAnewForOne) {
  const auto device = make_cpu_device();
  NotingStream stream(*device);
  StepGraphs graphs(GraphMode::automatic);
  const auto work = [&] { const TraceSpan noted("work", TraceKind::op); };
  for (int i = 0; i < 3; ++i) graphs.run(stream, StepGraphs::forward, work);
  EXPECT_EQ(stream.calls, "beLL");
  TraceBuffer trace(100, 100);
  current_trace = &trace;
  for (int cycle = 0; cycle < 2; ++cycle) {
    graphs.drop_untraced();
    for (int i = 0; i < 2; ++i) graphs.run(stream, StepGraphs::forward, work);
  }
  current_trace = nullptr;
  EXPECT_EQ(stream.calls, "beLLbeLLLL") << "once is enough";
  ASSERT_EQ(trace.captured_events().size(), 1U);
  EXPECT_STREQ(trace.captured_events()[0].name, "work");
  int launches = 0;
  for (const TraceEvent& e : trace.events()) {
    EXPECT_STRNE(e.name, "work") << "captured, not run";
    launches += e.kind == TraceKind::launch ? 1 : 0;
  }
  EXPECT_EQ(launches, 4);
}

TEST(StepGraphsTest, NeverRunsOpByOp) {
  const auto device = make_cpu_device();
  NotingStream stream(*device);
  StepGraphs graphs(GraphMode::never);
  graphs.check(stream);
  for (int i = 0; i < 3; ++i) graphs.run(stream, StepGraphs::forward, [&] { stream.calls += "w"; });
  EXPECT_EQ(stream.calls, "www");
}

TEST(StepGraphsTest, AFailedCaptureEndsTheUseOfGraphsOrTheRun) {
  const auto device = make_cpu_device();
  for (const GraphMode mode : {GraphMode::automatic, GraphMode::always}) {
    NotingStream stream(*device);
    StepGraphs graphs(mode);
    graphs.check(stream);
    bool capturing = false;
    const auto work = [&] {
      stream.calls += "w";
      if (stream.calls.ends_with("bw") && capturing)
        throw Error(ErrorKind::internal, "op cannot be captured");
    };
    graphs.run(stream, StepGraphs::forward, work);
    capturing = true;
    if (mode == GraphMode::always) {
      const std::string text =
          error_text(ErrorKind::internal, [&] { graphs.run(stream, StepGraphs::forward, work); });
      EXPECT_TRUE(has(text, "op cannot be captured") && has(text, "cuda_graph")) << text;
      EXPECT_EQ(stream.calls,
                "w"
                "bwa");
      continue;
    }
    graphs.run(stream, StepGraphs::forward, work);
    EXPECT_EQ(stream.calls,
              "w"
              "bwa"
              "w")
        << "what was not captured is run";
    graphs.run(stream, StepGraphs::forward, work);
    EXPECT_EQ(stream.calls,
              "w"
              "bwa"
              "w"
              "w");
  }
}

TEST(StepGraphsTest, RequiredWhereThereAreNone) {
  EngineOptions options = tiny_options();
  options.graph = GraphMode::always;
  const std::string text = error_text(ErrorKind::usage, [&] { TinyEngine t(options); });
  EXPECT_TRUE(has(text, "cpu") && has(text, "cuda_graph: true")) << text;
  // A plan is made on any machine.
  const auto null = make_null_device(Target::cuda);
  const auto comm = make_solo_communicator();
  const Engine planned(*null, *comm, tiny_config(true), true, options);
  EXPECT_GT(null->plan().total(), 0u);
}

}  // namespace
}  // namespace deltatune
