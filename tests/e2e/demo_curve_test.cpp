// The demo's first steps in f32 against stored losses: whatever changes them is a change of numerics.
//
// demo_curve.json holds the losses of 20 steps of examples/demo/demo.yaml, and the machine that made them.
// Other kernels of OpenBLAS move them by 4e-8, so 1e-5 leaves room for other processors and C libraries. To
// make it again after a change of numerics that was meant: run the command of this test and take the losses
// of metrics.jsonl.
#include "e2e/runs.h"

namespace deltatune {
namespace {

TEST(DemoCurve, TwentyStepsEqualTheStoredLosses) {
  const TempFolder folder("demo");
  const std::string in_source = "cd '" + source_dir.string() + "' && ";
  const ProgramResult result =
      run_deltatune("train examples/demo/demo.yaml --output-dir '" + (folder / "out").string() +
                        "' --max-steps 20 --logging-steps 1 --save-steps 0 --eval-steps 0 --device cpu "
                        "--progress none",
                    in_source);
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<double> ours = losses(folder / "out");
  const json::Value stored = json::parse_file((source_dir / "tests/e2e/demo_curve.json").string());
  const json::Array& expected = stored.at("losses").as_array();
  ASSERT_EQ(ours.size(), expected.size());
  for (size_t i = 0; i < ours.size(); ++i)
    EXPECT_NEAR(ours[i], expected[i].as_number(), 1e-5 * expected[i].as_number()) << "step " << i + 1;
  EXPECT_LT(ours.back(), 0.8 * ours.front());
  EXPECT_TRUE(fs::exists(folder / "out/report.html"));
  EXPECT_EQ(events(folder / "out", "eval").size(), 1u);
}

}  // namespace
}  // namespace deltatune
