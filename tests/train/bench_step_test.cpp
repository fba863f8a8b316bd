// bench step on the CPU: what it counts, the line through two depths, and depths that are refused.
#include "train/bench_step.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "cpu/device.h"
#include "model/model_run.h"

namespace deltatune {
namespace {

BenchStepOptions tiny_bench() {
  BenchStepOptions options;
  options.model = tiny_config(false, 24);
  options.model_name = "tiny";
  options.depths = {1, 2};
  options.tokens = 96;
  options.lengths = {50};
  options.storage = DType::f32;
  options.peak_tflop_s = 1;
  return options;
}

TEST(BenchStep, TwoDepthsAndTheLineThroughThem) {
  const auto device = make_cpu_device();
  for (const char* recompute : {"block", "none"}) {
    BenchStepOptions options = tiny_bench();
    options.recompute = recompute;
    const BenchStepReport report = bench_step(*device, options);
    EXPECT_EQ(report.documents, 2);
    EXPECT_EQ(report.targets, 96 - 2);
    ASSERT_EQ(report.depths.size(), 2U);
    for (const BenchStepDepth& depth : report.depths) {
      const StepFigures& f = depth.figures;
      EXPECT_GT(f.pass_ms, 0);
      EXPECT_GT(f.gemm_ms, 0);
      EXPECT_GT(f.update_ms, 0);
      EXPECT_GT(f.op_ms.at("matmul"), 0);
      EXPECT_GT(f.op_ms.at("adamw"), 0);
      EXPECT_EQ(f.launches, 0) << "the CPU has no graphs to count";
      EXPECT_LE(depth.fastest_ms, f.pass_ms);
      EXPECT_GE(depth.slowest_ms, f.pass_ms);
    }
    // All matrices but the embedding, as in 6 N.
    double matrices = 0;
    for (const Param& param : make_params(options.model, false).table.params) {
      if (param.shape.rank == 2 && !param.name.ends_with("conv") && param.name != "embedding")
        matrices += static_cast<double>(param.shape.count());
    }
    EXPECT_EQ(report.depths[1].figures.parameters, matrices);
    EXPECT_NEAR(report.mfu(report.whole), 6 * matrices * 96 / (report.whole.pass_ms * 1e-3) / 1e12, 1e-12);
    // The second depth is the whole model.
    EXPECT_EQ(report.whole.layers, 2);
    EXPECT_NEAR(report.whole.pass_ms, report.depths[1].figures.pass_ms, 1e-9);
    EXPECT_NEAR(report.whole.op_ms.at("matmul"), report.depths[1].figures.op_ms.at("matmul"), 1e-9);
    // The first block is a gated delta layer, the second full attention.
    EXPECT_FALSE(report.depths[0].figures.op_ms.contains("attention_forward"));
    EXPECT_TRUE(report.depths[1].figures.op_ms.contains("attention_forward"));
    EXPECT_NE(report.to_text().find("ratio"), std::string::npos);
    EXPECT_EQ(report.to_json().at("extrapolated").at("layers").as_integer(), 2);
  }
}

// `block` runs three products of a delta layer again (projection, out_proj, gate_up), never down_proj.
TEST(BenchStep, CountsTheProductsThatAreRun) {
  const auto device = make_cpu_device();
  BenchStepOptions options = tiny_bench();
  options.depths = {1};
  options.recompute = "none";
  // Head: one chunk of three. Block: four products forward, eight backward, no two alike here.
  EXPECT_EQ(bench_step(*device, options).depths[0].products, 3 + 12);
  options.recompute = "block";
  EXPECT_EQ(bench_step(*device, options).depths[0].products, 3 + 12 + 3);
}

// A tracer on the test's own clock: each look at it is one step of 1 ms later, in which the device did 0.75
// ms of work, a copy beside it counted once.
struct FakeTracer {
  static inline int looks = 0;
  static inline int64_t dropped = 0;

  static ActivityTracer tracer() {
    looks = 0;
    return {[](std::string&) { return true; },
            [] {
              looks += looks == 0 ? 1 : 3;
              return int64_t{looks} * 1000000;
            },
            [] {
              ActivityTrace out{{}, {"first", "second", "copy host to device"}, dropped};
              for (int64_t step = 0; step < 5; ++step) {
                const int64_t at = step * 1000000;
                out.records.push_back({at, at + 500000, 0, 1, 7, ActivityKind::kernel});
                out.records.push_back({at + 700000, at + 950000, 1, 2, 7, ActivityKind::kernel});
                out.records.push_back({at + 800000, at + 810000, 2, 3, 7, ActivityKind::copy});
              }
              return out;
            }};
  }
};

TEST(BenchStep, StepsUnderATracer) {
  const auto device = make_cpu_device();
  BenchStepOptions options = tiny_bench();
  EXPECT_EQ(bench_step(*device, options).to_text().find("device busy"), std::string::npos);
  options.tracer = FakeTracer::tracer();
  FakeTracer::dropped = 0;
  options.depths = {1};
  const BenchStepReport report = bench_step(*device, options);
  const TracedSteps& traced = report.depths[0].traced;
  EXPECT_EQ(traced.steps, 3);
  EXPECT_NEAR(traced.step_ms(), 1, 1e-9);
  EXPECT_NEAR(traced.busy_ms(), 0.75, 1e-9);
  EXPECT_NEAR(traced.idle_ms(), 0.25, 1e-9);
  EXPECT_NEAR(traced.kernel_ms(), 0.75, 1e-9);
  EXPECT_EQ(traced.busy.gaps, 6);
  EXPECT_EQ(traced.busy.largest[0].before, "first");
  EXPECT_EQ(traced.busy.largest[0].after, "second");
  const json::Value json = report.to_json();
  const json::Value& activity = json.at("depths").as_array()[0].at("activity");
  EXPECT_NEAR(activity.at("idle_share").as_number(), 0.25, 1e-12);
  EXPECT_NEAR(activity.at("traced_over_untraced").as_number(), 1 / traced.untraced_ms, 1e-9);
  EXPECT_EQ(activity.at("kernels").as_array()[0].at("name").as_string(), "first");
  EXPECT_NEAR(activity.at("kernels").as_array()[0].at("ms_per_step").as_number(), 0.5, 1e-9);
  EXPECT_NEAR(activity.at("kernels").as_array()[0].at("calls_per_step").as_number(), 1, 1e-9);
  EXPECT_EQ(json.find("extrapolated"), nullptr) << "one depth says nothing about others";
  EXPECT_EQ(report.to_text().find("extrapolated"), std::string::npos);
  EXPECT_NE(report.to_text().find("1 layer: device busy 0.750 ms of 1.000 ms a step: idle 25.000 %"),
            std::string::npos)
      << report.to_text();
}

TEST(BenchStep, SaysWhatTheTracerCostAndWhy) {
  FakeTracer::dropped = 7;
  TracedSteps traced = trace_steps(FakeTracer::tracer(), 3, 0.9, [] {});
  EXPECT_NE(to_text(traced).find("11.1 % slower"), std::string::npos) << to_text(traced);
  EXPECT_NE(to_text(traced).find("missing: 7 records"), std::string::npos);
  EXPECT_NE(to_text(traced).find("200.0 us, between first and second"), std::string::npos);
  traced = trace_steps(FakeTracer::tracer(), 3, 0.995, [] {});
  EXPECT_EQ(to_text(traced).find("slower"), std::string::npos) << to_text(traced);

  ActivityTracer refusing = FakeTracer::tracer();
  refusing.start = [](std::string& why) {
    why = "no such library";
    return false;
  };
  int runs = 0;
  traced = trace_steps(refusing, 3, 1, [&] { ++runs; });
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(to_text(traced), "device activity not recorded: no such library");
  EXPECT_EQ(to_json(traced).at("why").as_string(), "no such library");

  ActivityTracer silent = FakeTracer::tracer();
  silent.stop = [] { return ActivityTrace(); };
  traced = trace_steps(silent, 3, 1, [&] { ++runs; });
  EXPECT_EQ(runs, 4);
  EXPECT_NE(to_text(traced).find("recorded nothing"), std::string::npos);
}

// What a step throws goes on, and the tracer has been stopped.
TEST(BenchStep, StopsTheTracerOfAStepThatFails) {
  static int stopped = 0;
  stopped = 0;
  ActivityTracer tracer = FakeTracer::tracer();
  tracer.stop = [] {
    ++stopped;
    return ActivityTrace();
  };
  EXPECT_THROW(trace_steps(tracer, 3, 1, [] { throw Error(ErrorKind::internal, "a", "b", "c"); }), Error);
  EXPECT_EQ(stopped, 1);
}

TEST(BenchStep, RefusesDepthsThatAreNotThere) {
  const auto device = make_cpu_device();
  for (const std::vector<int64_t>& depths : {std::vector<int64_t>{0, 1}, {1, 3}, {2, 1}, {1, 1}}) {
    BenchStepOptions options = tiny_bench();
    options.depths = depths;
    try {
      bench_step(*device, options);
      ADD_FAILURE() << depths[0] << ", " << depths[1];
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
    }
  }
}

}  // namespace
}  // namespace deltatune
