// TensorBoard, Prometheus and MLflow files: bytes against published values, what a killed run leaves, resumed
// runs. Their own readers: tests/e2e/loggers_test.cpp.
#include "observe/run_logger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "cli/run_binary.h"
#include "observe/append_file.h"
#include "observe/mlflow.h"
#include "observe/prometheus.h"
#include "observe/tensorboard.h"

namespace deltatune {
namespace {

std::string name_value(const std::vector<Scalar>& scalars) {
  std::string out;
  for (const Scalar& s : scalars) out += s.name + "=" + json::dump(json::Value(s.value)) + " ";
  return out;
}

// One regular file below `folder` whose name starts so.
fs::path file_in(const fs::path& folder, const std::string& start) {
  fs::path found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(start) && entry.is_regular_file()) found = entry.path();
  }
  return found;
}

LoggerOptions options_in(const fs::path& folder, std::vector<std::string> report_to) {
  LoggerOptions options;
  options.output_dir = folder;
  options.report_to = std::move(report_to);
  options.run_name = "a \"run\"";
  options.params = {{"learning_rate", "1e-05"}};
  return options;
}

void log_steps(RunLoggers& loggers, int64_t first, int64_t last) {
  for (int64_t step = first; step <= last; ++step) {
    json::Value fields;
    fields.set("step", step);
    fields.set("loss", 3.0 / static_cast<double>(step));
    loggers.event("step", fields);
  }
}

int64_t count_of(std::string_view text, std::string_view part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(RunLogger, NamesAreThoseOfHuggingFace) {
  EXPECT_EQ(
      name_value(scalars_of("step", json::parse(R"({"event": "step", "step": 3, "loss": 2.5, "ts": "now",
                "slow_kernels": true, "learning_rate": 1e-5})",
                                                "event"))),
      "train/loss=2.5 train/learning_rate=1e-05 ");
  EXPECT_EQ(
      name_value(scalars_of("eval", json::parse(R"({"step": 3, "eval_loss": 1.5, "time_s": 2})", "event"))),
      "eval/loss=1.5 eval/runtime=2.0 ");
  EXPECT_EQ(
      name_value(scalars_of("telemetry", json::parse(R"({"step": 3, "devices": [{"index": 2, "power_w": 600,
                "throttle": []}, 7, {"power_w": 1}]})",
                                                     "event"))),
      "system/gpu2/power_w=600.0 ");
  EXPECT_TRUE(scalars_of("warning", json::parse(R"({"step": 3})", "event")).empty());
  EXPECT_TRUE(scalars_of("step", {}).empty());
}

// CRC-32C of "123456789" is E3069283 (RFC 3720, appendix B.4, has more); the mask is TFRecord's.
TEST(TensorBoard, ChecksumIsCastagnolisMasked) {
  const uint32_t crc = 0xE3069283u;
  EXPECT_EQ(masked_crc32c("123456789"), ((crc >> 15) | (crc << 17)) + 0xA282EAD8u);
  EXPECT_EQ(masked_crc32c(std::string(32, '\0')), ((0x8A9136AAu >> 15) | (0x8A9136AAu << 17)) + 0xA282EAD8u);
}

TEST(TensorBoard, EventsHaveTheBytesOfTheirMessage) {
  const std::string event = scalar_event(300, 1.0, {{"train/loss", 2.0}});
  const std::string expected = std::string("\x09\0\0\0\0\0\0\xF0\x3F", 9) + "\x10\xAC\x02" +
                               "\x2A\x13\x0A\x11\x0A\x0Atrain/loss" + std::string("\x15\0\0\0\x40", 5);
  EXPECT_EQ(event, expected);
}

TEST(TensorBoard, ResumedRunsContinueTheFileWithoutLaterSteps) {
  ScratchFolder folder;
  {
    RunLoggers loggers(options_in(folder.path(), {"jsonl", "tensorboard"}));
    log_steps(loggers, 1, 5);
  }
  const fs::path file = file_in(folder.path() / "runs", "events.out.tfevents.");
  ASSERT_FALSE(file.empty());
  { AppendFile(file).append("\x20half a record"); }
  LoggerOptions options = options_in(folder.path(), {"tensorboard"});
  options.continues = true;
  options.steps = 3;
  {
    RunLoggers loggers(options);
    log_steps(loggers, 4, 6);
  }
  EXPECT_EQ(file_in(folder.path() / "runs", "events.out"), file);
  const std::string bytes = slurp(file);
  EXPECT_EQ(count_of(bytes, "train/loss"), 6);
  EXPECT_EQ(count_of(bytes, "brain.Event:2"), 1);
  EXPECT_EQ(records_up_to(bytes, 1 << 20), bytes);
  EXPECT_EQ(count_of(records_up_to(bytes, 2), "train/loss"), 2);
}

// Two runs may share a logging_dir: each continues its own file only.
TEST(TensorBoard, FilesOfOtherRunsAreLeftAlone) {
  ScratchFolder folder;
  for (const char* run : {"a", "b"}) {
    LoggerOptions options = options_in(folder / run, {"tensorboard"});
    options.logging_dir = folder / "board";
    RunLoggers loggers(options);
    log_steps(loggers, 1, 5);
  }
  LoggerOptions options = options_in(folder / "a", {"tensorboard"});
  options.logging_dir = folder / "board";
  options.continues = true;
  options.steps = 2;
  { RunLoggers loggers(options); }
  std::vector<int64_t> counts;
  for (const auto& entry : fs::directory_iterator(folder / "board"))
    counts.push_back(count_of(slurp(entry.path()), "train/loss"));
  std::sort(counts.begin(), counts.end());
  EXPECT_EQ(counts, (std::vector<int64_t>{2, 5}));
}

TEST(TensorBoard, ReadingStopsAtBytesThatAreNoRecord) {
  const std::string good = tfrecord(scalar_event(1, 1, {{"a", 1}}));
  for (size_t cut = 0; cut < good.size(); ++cut) EXPECT_EQ(records_up_to(good.substr(0, cut), 9), "");
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x55);
    EXPECT_EQ(records_up_to(good + bad + good, 9), good) << at;
  }
  std::string huge = good;
  huge.replace(0, 8, 8, '\xFF');
  EXPECT_EQ(records_up_to(huge, 9), "");
  // Records of any bytes under right checksums.
  Rng rng(5, 0);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string bytes;
    for (uint64_t i = rng.below(40); i > 0; --i) bytes.push_back(static_cast<char>(rng.below(256)));
    const std::string kept = records_up_to(tfrecord(bytes), 9);
    EXPECT_TRUE(kept.empty() || kept == tfrecord(bytes));
  }
}

TEST(Prometheus, NamesLabelsAndNumbersAreInTheFormat) {
  EXPECT_EQ(prometheus_text({{"train/loss", 2.5},
                             {"system/gpu0/power_w", 600},
                             {"system/gpu1/power_w", 1e300},
                             {"eval/loss", std::nan("")}},
                            "a \"b\"\\c\n"),
            "# TYPE deltatune_eval_loss gauge\ndeltatune_eval_loss{run=\"a \\\"b\\\"\\\\c\\n\"} NaN\n"
            "# TYPE deltatune_gpu_power_w gauge\n"
            "deltatune_gpu_power_w{run=\"a \\\"b\\\"\\\\c\\n\",gpu=\"0\"} 600\n"
            "deltatune_gpu_power_w{run=\"a \\\"b\\\"\\\\c\\n\",gpu=\"1\"} 1e+300\n"
            "# TYPE deltatune_train_loss gauge\ndeltatune_train_loss{run=\"a \\\"b\\\"\\\\c\\n\"} 2.5\n");
}

TEST(Prometheus, TheEndIsWritten) {
  ScratchFolder folder;
  RunLoggers loggers(options_in(folder.path(), {"prometheus"}));
  log_steps(loggers, 1, 3);
  loggers.end(RunEnd::failed);
  const std::string text = slurp(folder / "metrics.prom");
  EXPECT_NE(text.find("deltatune_step{run=\"a \\\"run\\\"\"} 3\n"), std::string::npos) << text;
  EXPECT_NE(text.find("deltatune_failed{run=\"a \\\"run\\\"\"} 1\n"), std::string::npos) << text;
}

TEST(Mlflow, ResumedRunsContinueTheirMetricsWithoutLaterSteps) {
  ScratchFolder folder;
  {
    RunLoggers loggers(options_in(folder.path(), {"mlflow"}));
    log_steps(loggers, 1, 5);
  }
  const fs::path file = file_in(folder.path() / "mlruns", "loss");
  ASSERT_FALSE(file.empty());
  { AppendFile(file).append("17960234"); }
  LoggerOptions options = options_in(folder.path(), {"mlflow"});
  options.continues = true;
  options.steps = 3;
  {
    RunLoggers loggers(options);
    log_steps(loggers, 4, 6);
    loggers.end(RunEnd::done);
  }
  const std::string text = slurp(file);
  EXPECT_EQ(count_of(text, "\n"), 6) << text;
  EXPECT_NE(text.find(" 0.5 6\n"), std::string::npos) << text;
  const std::string meta = slurp(file.parent_path().parent_path().parent_path() / "meta.yaml");
  EXPECT_NE(meta.find("status: 3\n"), std::string::npos) << meta;
  EXPECT_NE(meta.find("run_name: \"a \\\"run\\\"\"\n"), std::string::npos) << meta;
  EXPECT_EQ(metric_lines_up_to("1 2 3\nx y z\n1 2\n1 2 9\n\n4 5 1", 3), "1 2 3\n1 2\n");
}

// A logger that cannot write is dropped; the others and the run go on.
TEST(RunLogger, OneThatCannotWriteIsDropped) {
  ScratchFolder folder;
  folder.write("runs", "a file where a folder is wanted");
  folder.write("mlruns", "likewise");
  RunLoggers loggers(options_in(folder.path(), {"tensorboard", "mlflow", "prometheus"}));
  log_steps(loggers, 1, 2);
  loggers.end(RunEnd::stopped);
  EXPECT_NE(slurp(folder / "metrics.prom").find("deltatune_step"), std::string::npos);
}

}  // namespace
}  // namespace deltatune
