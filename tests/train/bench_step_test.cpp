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
