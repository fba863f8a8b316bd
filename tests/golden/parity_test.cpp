// Golden cases: what transformers computes for three small checkpoints (logits, loss, gradients, three AdamW
// steps), compared by the code behind `deltatune parity`. tiny_tied lies beside this file; the larger two are
// looked for in ../shared/golden and skipped where they are absent.
//
// Each case runs in both orders of the sequences, in one and two micro-batches, and with every recompute
// policy; the policies must agree in every bit of every figure.
#include "train/parity.h"

#include <gtest/gtest.h>

#include "cpu/device.h"
#include "train/recompute.h"
#include "train/setup.h"

namespace deltatune {
namespace {

fs::path case_folder(const std::string& name) {
  const fs::path here = fs::path(DELTATUNE_SOURCE_DIR) / "tests/golden" / name;
  return fs::exists(here) ? here : fs::path(DELTATUNE_SOURCE_DIR) / "../shared/golden" / name;
}

ParityReport run(const std::string& name, const ParityOptions& options) {
  const auto device = make_cpu_device();
  return run_parity(case_folder(name), *device, options);
}

struct Golden : testing::TestWithParam<const char*> {
  void SetUp() override {
    if (!fs::exists(case_folder(GetParam()) / "case.json"))
      GTEST_SKIP() << "no golden case " << case_folder(GetParam());
  }
};

TEST_P(Golden, Float32InsideItsBoundsInEveryArrangement) {
  for (const bool reverse : {false, true}) {
    for (const int64_t rows : {1, 2}) {
      const ParityReport report = run(GetParam(), {DType::f32, reverse, rows, Keep::nothing()});
      EXPECT_TRUE(report.ok()) << "reverse " << reverse << ", rows " << rows << "\n" << report.to_text();
      // logits, worst row, loss, norm, three losses and two medians, besides a gradient and an update per
      // tensor: nothing was left out.
      EXPECT_GT(report.rows.size(), 9u + 2u * 40u);
    }
  }
}

TEST_P(Golden, RecomputePoliciesAgreeBitForBit) {
  std::vector<DType> dtypes = {DType::f32};
  if (GetParam() != std::string("slow_heads"))
    dtypes.push_back(DType::bf16);  // the largest case, seconds each
  for (const DType storage : dtypes) {
    const ParityReport block = run(GetParam(), {storage, false, 2, keep_of("block")});
    for (const char* policy : {"none", "cheap"}) {
      const ParityReport other = run(GetParam(), {storage, false, 2, keep_of(policy)});
      ASSERT_EQ(block.rows.size(), other.rows.size());
      for (size_t i = 0; i < block.rows.size(); ++i) {
        EXPECT_EQ(block.rows[i].rel, other.rows[i].rel) << policy << ": " << block.rows[i].name;
        EXPECT_EQ(block.rows[i].max_error, other.rows[i].max_error) << policy << ": " << block.rows[i].name;
      }
    }
  }
}

TEST_P(Golden, BrainFloatInsideItsBounds) {
  const ParityReport report = run(GetParam(), {DType::bf16, true, 1, Keep::nothing()});
  EXPECT_TRUE(report.ok()) << report.to_text();
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden, testing::Values("tiny_tied", "narrow_vlm", "slow_heads"),
                         [](const auto& name) { return std::string(name.param); });

// The comparison itself must be able to fail: a wrong stored number is reported, and a damaged case is an
// error.
TEST(Parity, ReportsWhatDoesNotAgree) {
  const fs::path folder = fs::path(testing::TempDir()) / "dt_parity_case";
  fs::remove_all(folder);
  fs::copy(case_folder("tiny_tied"), folder, fs::copy_options::recursive);
  const auto device = make_cpu_device();
  std::string bytes = read_file(folder / "expected.safetensors");
  // The last value of the last tensor, a logit, changes its exponent.
  bytes[bytes.size() - 1] = static_cast<char>(bytes[bytes.size() - 1] ^ 0x40);
  write_file_atomic(folder / "expected.safetensors", bytes);
  const ParityReport report = run_parity(folder, *device, {});
  EXPECT_FALSE(report.ok());
  std::vector<std::string> failed;
  for (const ParityRow& row : report.rows) {
    if (!row.ok()) failed.push_back(row.name);
  }
  EXPECT_EQ(failed, (std::vector<std::string>{"logits", "logits, worst row"}));
  fs::remove(folder / "expected.safetensors");
  EXPECT_THROW(run_parity(folder, *device, {}), Error);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace deltatune
