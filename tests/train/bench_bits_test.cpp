// check_bits on the CPU, whose kernels repeat, and how a difference is told.
#include "train/bench_bits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cpu/device.h"
#include "model/model_run.h"

namespace deltatune {
namespace {

BenchStepOptions tiny_bits(GraphMode graph) {
  BenchStepOptions options;
  options.model = tiny_config(false, 24);
  options.model_name = "tiny";
  options.depths = {2};
  options.tokens = 96;
  options.lengths = {50};
  options.storage = DType::f32;
  options.graph = graph;
  return options;
}

TEST(BenchBits, TheCpuRepeats) {
  const auto device = make_cpu_device();
  for (const GraphMode graph : {GraphMode::automatic, GraphMode::never}) {
    const BitsReport report = check_bits(*device, tiny_bits(graph), 3);
    EXPECT_EQ(report.rounds, 3);
    EXPECT_EQ(report.different, 0);
    EXPECT_TRUE(report.lines.empty());
  }
  for (const char* glob :
       {"matmul", "qk_norm_rope_*", "gdn_prologue_*", "gated_rmsnorm_*", "gated_delta_*", "attention_*"}) {
    EXPECT_EQ(check_bits(*device, tiny_bits(GraphMode::never), 3, glob).different, 0) << glob;
  }
}

TEST(BenchBits, ADifferenceInTheLastBitIsNamed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::string> names = {"a", "b", "c"};
  EXPECT_EQ(differences(names, {1, nan, 0}, {1, nan, 0}), "");
  EXPECT_EQ(differences(names, {1, nan, 0}, {1, nan, -0.0}).substr(0, 27), "1 of 3 differ, first c 0.0e");
  const std::string text = differences(names, {1, 2, 0}, {std::nextafter(1, 2), 2, nan});
  EXPECT_EQ(text, "2 of 3 differ, first a 2.2e-16, c nan");
  std::vector<std::string> many(20, "x");
  const std::string long_text = differences(many, std::vector<double>(20, 1), std::vector<double>(20, 2));
  EXPECT_EQ(long_text.substr(0, 9), "20 of 20 ");
  EXPECT_TRUE(long_text.ends_with(", ...")) << long_text;
}

}  // namespace
}  // namespace deltatune
