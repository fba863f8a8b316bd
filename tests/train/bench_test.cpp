// bench: rows by lengths, shapes by name, the recorder, the timer, and one whole report on the CPU.
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "cli/run_binary.h"
#include "cpu/device.h"
#include "model/model_run.h"
#include "ops/op_recorder.h"
#include "ops/ops.h"
#include "train/bench_model.h"
#include "train/bench_op.h"

namespace deltatune {
namespace {

TEST(Bench, GlobsMatch) {
  EXPECT_TRUE(glob_match("*", "matmul"));
  EXPECT_TRUE(glob_match("*_forward", "rmsnorm_forward"));
  EXPECT_FALSE(glob_match("*_forward", "rmsnorm_backward"));
  EXPECT_TRUE(glob_match("ad?", "add"));
  EXPECT_FALSE(glob_match("ad?", "ad"));
  EXPECT_FALSE(glob_match("", "add"));
}

TEST(Bench, LengthsAreReadOrRefused) {
  ScratchFolder folder;
  EXPECT_EQ(bench_lengths(folder.write("good", "# seven\n1503 \n\n877\r\n1 # short\n"), 8192),
            (std::vector<int32_t>{1503, 877, 1}));
  EXPECT_EQ(bench_lengths("", 8192), std::vector<int32_t>{1240});
  EXPECT_EQ(bench_lengths("", 512), std::vector<int32_t>{512});
  for (const char* bad : {"0\n", "-3\n", "12x\n", "99999999999\n", "# none\n", ""}) {
    try {
      bench_lengths(folder.write("bad", bad), 8192);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data) << bad;
    }
  }
}

TEST(Bench, RowsHaveTheseDocuments) {
  const Batch batch = bench_batch({5, 3}, 18, 7);
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0, 5, 8, 13, 16, 18}));
  EXPECT_EQ(batch.documents, 5);
  EXPECT_EQ(batch.num_targets, 18 - 5);
  ASSERT_EQ(batch.targets.size(), 18U);
  for (size_t t = 0; t < 18; ++t) {
    const bool last = t == 4 || t == 7 || t == 12 || t == 15 || t == 17;
    EXPECT_EQ(batch.targets[t], last ? -100 : batch.tokens[t + 1]) << t;
    EXPECT_LT(batch.tokens[t], 7);
  }
  EXPECT_EQ(batch.positions[13], 0);
  EXPECT_EQ(batch.positions[12], 4);
}

TEST(Bench, ModelsAreKnownByName) {
  const ModelConfig config = bench_model_config("qwen3.8-27b");
  EXPECT_EQ(config.layers(), 64);
  EXPECT_EQ(config.hidden_size, 5120);
  const std::vector<size_t> kinds = one_of_each_kind(config);
  EXPECT_EQ(kinds, (std::vector<size_t>{0, 3}));
  EXPECT_EQ(with_layers(config, kinds).full_attention, (std::vector<bool>{false, true}));
  try {
    bench_model_config("qwen-huge");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(error.fix().find("qwen3.5-0.8b"), std::string::npos) << error.fix();
  }
}

/// A recorded call does later what the op does, with the cost that the op counts.
TEST(Bench, RecordedCallsRunLater) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("test");
  std::vector<float> x{1, 2, 3, 4, 5, 6}, y{10, 20, 30, 40, 50, 60};
  const Tensor x_tensor{reinterpret_cast<std::byte*>(x.data()), DType::f32, {2, 3}};
  const Tensor y_tensor{reinterpret_cast<std::byte*>(y.data()), DType::f32, {2, 3}};
  OpRecorder recorder(*device);
  ops::add(recorder, y_tensor, x_tensor);
  ops::fill(recorder, x_tensor, 7);
  EXPECT_EQ(y[0], 10);
  ASSERT_EQ(recorder.calls().size(), 2U);
  const RecordedCall& add = recorder.calls()[0];
  EXPECT_EQ(add.op, Op::add);
  EXPECT_EQ(add.shape, "f32 [2, 3]");
  EXPECT_EQ(add.cost.bytes, 72);
  EXPECT_EQ(add.cost.flops, 6);
  EXPECT_EQ(recorder.calls()[1].op, Op::fill);
  add.run(*stream);
  add.run(*stream);
  EXPECT_EQ(y[5], 72);
  recorder.calls()[1].run(*stream);
  EXPECT_EQ(x[2], 7);
}

TEST(Bench, OpsOfASmallModelOnTheCpu) {
  const auto device = make_cpu_device();
  BenchOpOptions options;
  options.model = tiny_config(true, 24);
  options.model_name = "tiny";
  options.tokens = 96;
  options.lengths = {50};
  options.storage = DType::f32;
  const BenchOpReport report = bench_ops(*device, options);
  EXPECT_GT(report.rates.copy_gb_s, 0);
  EXPECT_GT(report.rates.gemm_tflop_s, 0);
  std::set<std::string> ops;
  for (const BenchOpRow& row : report.rows) {
    ops.insert(row.op);
    EXPECT_EQ(row.kernel, "cpu");
    EXPECT_GT(row.us, 0) << row.op;
    EXPECT_GT(row.bytes, 0) << row.op;
    EXPECT_GT(row.share, 0) << row.op;
  }
  // All that a training step calls.
  for (const char* op :
       {"embedding_forward", "embedding_backward", "rmsnorm_backward", "add_rmsnorm_forward", "matmul",
        "qk_norm_rope_forward", "attention_forward", "attention_backward", "sigmoid_gate_backward",
        "gdn_prologue_forward", "gated_delta_forward", "gated_delta_backward", "gated_rmsnorm_backward",
        "swiglu_forward", "cross_entropy", "sum_squares", "grad_scale", "adamw"}) {
    EXPECT_TRUE(ops.contains(op)) << op;
  }
  const json::Value out = report.to_json();
  EXPECT_EQ(out.at("ops").as_array().size(), report.rows.size());
  EXPECT_NE(report.to_text().find("gated_delta_backward"), std::string::npos);

  options.glob = "swiglu_*";
  for (const BenchOpRow& row : bench_ops(*device, options).rows)
    EXPECT_TRUE(row.op.starts_with("swiglu_")) << row.op;
  options.glob = "nothing";
  EXPECT_THROW(bench_ops(*device, options), Error);
}

}  // namespace
}  // namespace deltatune
