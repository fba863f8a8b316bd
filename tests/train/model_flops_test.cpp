// What MFU counts: figures worked out by hand for the 27B shapes, and the op counts of the null table.
#include "train/model_flops.h"

#include <gtest/gtest.h>

#include "train/bench_model.h"
#include "train/meters.h"
#include "train/plan.h"
#include "train/recompute.h"
#include "train/setup.h"
#include "train/step_roofline.h"
#include "train/tiny_engine.h"

namespace deltatune {
namespace {

// A row of documents without filler in which every token that has a next one is supervised.
Batch row_of(const std::vector<int32_t>& lengths) {
  Batch batch;
  batch.lengths = lengths;
  for (const int32_t n : lengths) {
    batch.real_tokens += n;
    batch.num_targets += n - 1;
  }
  batch.documents = static_cast<int64_t>(lengths.size());
  return batch;
}

StepReport report_of(const std::vector<Batch>& rows, int64_t slots, double seconds) {
  StepReport report;
  for (const Batch& row : rows) {
    report.work += row_work(row);
    report.tokens += row.real_tokens;
    report.targets += row.num_targets;
  }
  report.slots = slots;
  report.seconds = seconds;
  return report;
}

// 48 delta-rule layers: 5120 x (16480 + 6144) + 3 x 5120 x 17408 entries each; 16 attention layers:
// 5120 x (14336 + 6144) + the same MLP.
TEST(ModelFlops, MatrixEntriesOfTheLargeModel) {
  const ModelConfig config = bench_model_config("qwen3.8-27b");
  EXPECT_EQ(block_matrix_entries(config), 24350556160);
  EXPECT_EQ(config.hidden_size * config.vocab_size, 1271398400);
}

// 3 x (2 x 24,350,556,160 x 8192 blocks + 2 x 1,271,398,400 x targets head + 16 x 4 x 6144 x pairs attention
//      + 48 x 48 x (6 x 128 x 128 x 8192 + 4 x 256 x 128 chunks x 64 x 64) delta rule)
// with 8192 x 8193 / 2 = 33,558,528 pairs and 8191 targets, or 8 x 1024 x 1025 / 2 = 4,198,400 and 8184.
TEST(ModelFlops, OneLongDocumentCostsMoreThanEightShortOnes) {
  const ModelConfig config = bench_model_config("qwen3.8-27b");
  const double one = model_flops(config, row_work(row_of({8192})));
  const double eight = model_flops(config, row_work(row_of(std::vector<int32_t>(8, 1024))));
  EXPECT_DOUBLE_EQ(one, 1308227061940224.0);
  EXPECT_DOUBLE_EQ(eight, 1273539046932480.0);
  EXPECT_DOUBLE_EQ(one - eight, 3.0 * 16 * 4 * 6144 * (33558528 - 4198400) + 3.0 * 2 * 1271398400 * 7);
}

TEST(ModelFlops, FillerAndUnsupervisedTokensOfTheHeadCountNothing) {
  const TokenizedSet set = set_of({random_document(20, 1, 24, 1), random_document(11, 1, 24, 2)}, 64);
  const std::vector<int32_t> both = {0, 1};
  const Batch tight = make_batch(set, both, 31, 0);
  const Batch packed = make_batch(set, both, 64, 0);
  const Batch padded = make_batch(set, both, 64, 0, 32);
  const ModelConfig config = tiny_config(true);
  EXPECT_EQ(tight.lengths, (std::vector<int32_t>{20, 11}));
  EXPECT_GT(model_flops(config, row_work(tight)), 0);
  EXPECT_EQ(model_flops(config, row_work(packed)), model_flops(config, row_work(tight)));
  EXPECT_EQ(model_flops(config, row_work(padded)), model_flops(config, row_work(tight)));
  RowWork unsupervised = row_work(tight);
  unsupervised.targets = 0;
  EXPECT_DOUBLE_EQ(model_flops(config, row_work(tight)) - model_flops(config, unsupervised),
                   3.0 * 2 * 12 * 24 * 29);
  EXPECT_EQ(model_flops(config, row_work(make_batch(set, {}, 64, 0))), 0);
}

// A document of 150 tokens is two chunks of 64 and one of 22.
TEST(ModelFlops, ChunksEndWithTheirDocument) {
  EXPECT_EQ(row_work(row_of({150})).chunk_squares, 2 * 64 * 64 + 22 * 22);
  EXPECT_EQ(row_work(row_of({75, 75})).chunk_squares, 2 * (64 * 64 + 11 * 11));
}

// The products that a step without recomputation really asks for.
TEST(ModelFlops, MatrixProductsAreThoseOfTheStep) {
  EngineOptions options = tiny_options(DType::f32, 64);
  options.keep = keep_of("none");
  DeviceCard card = device_card("cpu-laptop");
  card.gemm_tflops = 1;
  const ModelConfig config = tiny_config(true);
  StepRoofline rows(config, true, options, {}, 1, card);
  const Batch batch = packed_row({random_document(40, 1, 24, 1), random_document(24, 1, 24, 2)}, 64);
  rows.begin();
  rows.row(batch);
  rows.row(batch);
  RowWork products = row_work(batch);
  products.pairs = 0;
  products.chunk_squares = 0;
  // What is left of the delta rule without squares of chunks: 6 dk dv a token and value head.
  const double delta = 3.0 * 2 * 6 * 5 * 6 * 64;
  EXPECT_NEAR(rows.matmul_seconds() * 1e12, 2 * (model_flops(config, products) - delta), 1e-3);
}

TEST(Meters, MfuIsOfTheNamedDensePeak) {
  const ModelConfig config = bench_model_config("qwen3.8-27b");
  const MeterDevice h200 = meter_device(Target::cuda, "NVIDIA H200");
  EXPECT_NE(h200.note.find("989 TFLOP/s, the dense bf16 peak of NVIDIA H200 SXM"), std::string::npos)
      << h200.note;
  StepLine one, eight;
  set_meters(one, report_of({row_of({8192})}, 8192, 2), config, h200, 1);
  set_meters(eight, report_of({row_of(std::vector<int32_t>(8, 1024))}, 8192, 2), config, h200, 1);
  EXPECT_DOUBLE_EQ(*one.mfu, 1308227061940224.0 / 2 / 989e12);
  EXPECT_DOUBLE_EQ(*eight.mfu, 1273539046932480.0 / 2 / 989e12);
  EXPECT_EQ(one.tokens_per_s, eight.tokens_per_s);
}

TEST(Meters, RealSupervisedAndSlotTokensAreKeptApart) {
  StepLine line;
  Batch row = row_of({3000, 1000});
  row.num_targets = 500;
  set_meters(line, report_of({row}, 8192, 4), bench_model_config("qwen3.8-27b"),
             meter_device(Target::cpu, ""), 2);
  EXPECT_EQ(line.tokens_per_s, 1000);
  EXPECT_EQ(line.tokens_per_s_supervised, 125);
  EXPECT_EQ(line.tokens_per_s_slots, 2048);
  EXPECT_EQ(line.tokens_per_s_per_device, 500);
  EXPECT_EQ(line.real_tokens, 4000);
  EXPECT_DOUBLE_EQ(line.fill, 4000.0 / 8192);
}

TEST(Meters, ADeviceWithoutACardHasNoMfuAndSaysWhy) {
  for (const char* product : {"NVIDIA A100-SXM4-80GB", "NVIDIA H100 PCIe", "NVIDIA H200 MIG 1g.18gb", ""}) {
    const MeterDevice device = meter_device(Target::cuda, product);
    EXPECT_FALSE(device.card.has_value()) << product;
    EXPECT_NE(device.note.find(std::string("no device card for \"") + product), std::string::npos);
    StepLine line;
    StepReport report = report_of({row_of({8192})}, 8192, 2);
    report.roofline_seconds = 1;
    set_meters(line, report, bench_model_config("qwen3.8-27b"), device, 1);
    EXPECT_FALSE(line.mfu.has_value());
    EXPECT_FALSE(line.roofline_share.has_value());
    EXPECT_NEAR(*line.tflops_per_device, 654.1135, 1e-3);
  }
}

TEST(Meters, SharesAreOfTheStepAndTheMeanOfRanks) {
  StepReport report = report_of({row_of({8192})}, 8192, 2);
  report.roofline_seconds = 1.5;
  report.matmul_seconds = 1.25;
  report.host_bound_seconds = 0.5;
  report.data_seconds = 0.125;
  report.comm_seconds = 0.25;
  StepLine line;
  set_meters(line, report, bench_model_config("qwen3.8-27b"), meter_device(Target::cuda, "NVIDIA H200"), 4);
  EXPECT_EQ(line.roofline_share, 0.75);
  EXPECT_EQ(line.gemm_share, 0.625);
  EXPECT_EQ(line.host_bound_share, 0.25);
  EXPECT_EQ(line.data_wait_s, 0.125);
  EXPECT_EQ(line.exposed_comm_s, 0.25);
  report.comm_seconds = -1;  // CPU ranks have no clock for it
  StepLine without;
  set_meters(without, report, bench_model_config("qwen3.8-27b"), meter_device(Target::cuda, "NVIDIA H200"),
             4);
  EXPECT_FALSE(without.exposed_comm_s);
  EXPECT_DOUBLE_EQ(*line.mfu, 1308227061940224.0 / 2 / 4 / 989e12);
}

// One row of 8192 tokens in documents of 1240 on a GPU of 790 TFLOP/s and 4,300 GB/s, worked out from the
// shapes by hand: 1,709 ms without recomputation, 2,136 ms where all but down_proj is computed again. The
// update moves 20 bytes for each of 26,895,998,464 parameters: weight and two moments in bf16, read and
// written, and the f32 gradient, read for its norm and for the update.
TEST(StepRoofline, OfTheLargeModelIsTheOneWorkedOutByHand) {
  DeviceCard card = device_card("h200");
  card.gemm_tflops = 790;
  card.copy_gb_s = 4300;
  EngineOptions options;
  options.storage = DType::bf16;
  options.tokens = 8192;
  options.max_documents = 256;
  options.max_grad_norm = 0;
  options.master_weights = false;
  options.moments.dtype = DType::bf16;
  for (const auto& [recompute, seconds] : {std::pair{"none", 1.709}, {"block", 2.136}}) {
    options.keep = keep_of(recompute);
    StepRoofline rows(bench_model_config("qwen3.8-27b"), false, options, planned_cuda(90), 1, card);
    rows.begin();
    const double update = rows.seconds();
    rows.row(synthetic_batch(8192, 1240, 256));
    EXPECT_NEAR((rows.seconds() - update) / seconds, 1, 0.03) << recompute;
    EXPECT_NEAR(update / (20 * 26895998464.0 / 4300e9), 1, 1e-3) << recompute;
  }
}

// The roofline of a step is the plan's where the step has the plan's rows.
TEST(StepRoofline, IsThePlansForThePlansRows) {
  Config config;
  config.max_tokens = 512;
  config.max_length = 200;
  config.max_documents = 4;
  config.gradient_accumulation_steps = 3;
  config.dtype = "bf16";
  for (const std::string recompute : {"none", "block"}) {
    config.recompute = recompute;
    const ModelSource source =
        open_model(std::string(DELTATUNE_SOURCE_DIR) + "/examples/demo/model", "random");
    const DeviceCard card = device_card("h200");
    const PlanReport plan = make_plan(config, source, card);
    StepRoofline rows(source.config, source.tied, engine_options(config, keep_of(recompute), true),
                      planned_cuda(90), 1, card);
    for (int repeat = 0; repeat < 2; ++repeat) {
      rows.begin();
      for (int row = 0; row < 3; ++row) rows.row(synthetic_batch(512, 200, 4));
      EXPECT_NEAR(rows.seconds() / plan.seconds(), 1, 1e-9) << recompute;
    }
    // Shorter documents: less attention, nothing else.
    rows.begin();
    for (int row = 0; row < 3; ++row) rows.row(synthetic_batch(512, 128, 4));
    EXPECT_LT(rows.seconds(), plan.seconds());
  }
}

}  // namespace
}  // namespace deltatune
