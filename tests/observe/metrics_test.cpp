// metrics.jsonl: schema, partial lines, truncation before a resume.
#include "observe/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "cli/run_binary.h"

namespace deltatune {
namespace {

StepLine step(int64_t number) {
  StepLine line;
  line.step = number;
  line.total_steps = 983;
  line.epoch = 0.12207527975584944;
  line.loss = 1.1834123456789012;
  line.grad_norm = 0.61;
  line.learning_rate = 9.7e-6;
  line.tokens = 131072;
  line.target_tokens = 118930;
  line.fill = 0.978;
  line.time_s = 4.2112345678;
  line.tokens_per_s = 31134.4;
  line.tokens_per_s_per_device = 3891.8;
  line.mem_peak_gib = 71.2;
  return line;
}

TEST(Metrics, StepEventHasTheDocumentedNames) {
  StepLine line = step(120);
  const json::Value bare = step_event(line);
  for (const char* key :
       {"event", "step", "epoch", "loss", "grad_norm", "learning_rate", "tokens", "real_tokens",
        "target_tokens", "fill", "time_s", "tokens_per_s", "tokens_per_s_real", "tokens_per_s_supervised",
        "tokens_per_s_slots", "tokens_per_s_per_device", "data_wait_s", "mem_peak_gib"}) {
    EXPECT_NE(bare.find(key), nullptr) << key;
  }
  line.mfu = line.tflops_per_device = line.roofline_share = line.gemm_share = line.gpu_utilisation =
      line.host_bound_share = 0.603;
  line.exposed_comm_s = 0.603;
  for (const char* key : {"mfu", "tflops_per_device", "roofline_share", "gemm_share", "gpu_utilisation",
                          "host_bound_share", "exposed_comm_s"}) {
    EXPECT_EQ(bare.find(key), nullptr) << key;
    EXPECT_EQ(step_event(line).at(key).as_number(), 0.603) << key;
  }
  EXPECT_EQ(bare.at("loss").as_number(), line.loss);
  EXPECT_EQ(bare.at("time_s").as_number(), 4.21123);
}

TEST(Metrics, LinesOfARunOnSlowKernelsSaySo) {
  StepLine line = step(1);
  EXPECT_EQ(step_event(line).find("slow_kernels"), nullptr);
  line.slow_kernels = true;
  EXPECT_TRUE(step_event(line).at("slow_kernels").as_bool());
  ScratchFolder folder;
  {
    MetricsWriter writer(folder / "metrics.jsonl");
    writer.event("before", {});
    writer.mark_slow_kernels();
    writer.event("start", {});
    writer.step(step(1));
  }
  const MetricsFile file = read_metrics(folder / "metrics.jsonl");
  ASSERT_EQ(file.lines.size(), 3U);
  EXPECT_EQ(file.lines[0].find("slow_kernels"), nullptr);
  EXPECT_TRUE(file.lines[1].at("slow_kernels").as_bool());
  EXPECT_TRUE(file.lines[2].at("slow_kernels").as_bool());
}

TEST(Metrics, NonFiniteNumbersAreNull) {
  StepLine line = step(1);
  line.loss = std::nan("");
  const json::Value parsed = json::parse(json::dump(step_event(line)), "line");
  EXPECT_TRUE(parsed.at("loss").is_null());
}

TEST(Metrics, AppendsAndReadsBack) {
  ScratchFolder folder;
  {
    MetricsWriter writer(folder / "metrics.jsonl");
    writer.event("start", json::parse(R"({"model": "m"})", "test"));
    writer.step(step(1));
  }
  {
    MetricsWriter writer(folder / "metrics.jsonl");
    writer.step(step(2));
    writer.event("end", json::Value());
    writer.sync();
  }
  const MetricsFile file = read_metrics(folder / "metrics.jsonl");
  ASSERT_EQ(file.lines.size(), 4u);
  EXPECT_EQ(file.skipped, 0);
  EXPECT_EQ(file.lines[0].at("model").as_string(), "m");
  EXPECT_EQ(file.lines[2].at("step").as_integer(), 2);
  for (const json::Value& line : file.lines) EXPECT_EQ(line.at("ts").as_string().size(), 24u);
}

TEST(Metrics, ReopeningRemovesOnlyThePartialLine) {
  ScratchFolder folder;
  folder.write("metrics.jsonl", "{\"event\":\"step\",\"step\":1}\n{\"event\":\"step\",\"st");
  {
    MetricsWriter writer(folder / "metrics.jsonl");
    writer.step(step(2));
  }
  const MetricsFile file = read_metrics(folder / "metrics.jsonl");
  ASSERT_EQ(file.lines.size(), 2u);
  EXPECT_EQ(file.skipped, 0);
  EXPECT_EQ(file.lines[1].at("step").as_integer(), 2);
}

TEST(Metrics, BrokenLinesAreCountedNotFatal) {
  ScratchFolder folder;
  folder.write("metrics.jsonl",
               "{\"event\":\"step\",\"step\":1}\nnot "
               "json\n{\"no\":1}\n[]\n\n{\"event\":\"end\"}\n{\"event\":\"step\"");
  const MetricsFile file = read_metrics(folder / "metrics.jsonl");
  EXPECT_EQ(file.lines.size(), 2u);
  EXPECT_EQ(file.skipped, 5);
  EXPECT_TRUE(read_metrics(folder / "none.jsonl").lines.empty());
}

TEST(Metrics, TruncationLeavesNoStepTwice) {
  ScratchFolder folder;
  {
    MetricsWriter writer(folder / "metrics.jsonl");
    writer.event("start", json::Value());
    for (int64_t i = 1; i <= 10; ++i) writer.step(step(i));
    writer.event("eval", json::parse(R"({"step": 9, "eval_loss": 1.0})", "test"));
  }
  const std::string before = slurp(folder / "metrics.jsonl");
  EXPECT_EQ(truncate_metrics(folder / "metrics.jsonl", 6), 5);
  EXPECT_TRUE(before.starts_with(slurp(folder / "metrics.jsonl")));
  {
    MetricsWriter writer(folder / "metrics.jsonl");
    for (int64_t i = 7; i <= 10; ++i) writer.step(step(i));
  }
  std::multiset<int64_t> steps;
  for (const json::Value& line : read_metrics(folder / "metrics.jsonl").lines) {
    if (line.at("event").as_string() == "step") steps.insert(line.at("step").as_integer());
  }
  for (int64_t i = 1; i <= 10; ++i) EXPECT_EQ(steps.count(i), 1u) << i;
  EXPECT_EQ(truncate_metrics(folder / "metrics.jsonl", 10), 0);
  EXPECT_EQ(truncate_metrics(folder / "none.jsonl", 0), 0);
}

TEST(Metrics, UnwritablePlaceIsAResourceError) {
  ScratchFolder folder;
  try {
    MetricsWriter writer(folder / "missing" / "metrics.jsonl");
    FAIL() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resource);
  }
}

}  // namespace
}  // namespace deltatune
