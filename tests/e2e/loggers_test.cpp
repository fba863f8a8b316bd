// Runs that report to loggers, read back by the loggers' own packages: a killed run leaves readable files, a
// resumed one continues them without a step twice.
#include <cstdlib>

#include "base/format.h"
#include "e2e/runs.h"
#include "observe/metrics.h"

namespace deltatune {
namespace {

Keys keys_of(const fs::path& model, const fs::path& output) {
  return with(small_keys(model, output),
              {{"report_to", "[jsonl, tensorboard, prometheus, mlflow]"},
               {"run_name", "\"a run: of \\\"mine\\\"\""},
               {"async_save", "false"},
               {"eval_dataset", (source_dir / "examples/demo/eval.jsonl").string()},
               {"eval_steps", "10"}});
}

std::map<int64_t, double> losses(const fs::path& output) {
  std::map<int64_t, double> out;
  for (const json::Value& event : read_metrics(output / "metrics.jsonl").lines) {
    if (event.at("event").as_string() == "step")
      out[event.at("step").as_integer()] = event.at("loss").as_number();
  }
  return out;
}

class Loggers : public testing::Test {
 protected:
  // What the packages see; a null value where they are missing.
  json::Value read(const std::string& names) {
    const char* named = std::getenv("DELTATUNE_PYTHON");
    const fs::path script = source_dir / "tests/e2e/read_loggers.py";
    const int status =
        std::system(format("{} {} {} {} > {} 2> {}", named ? named : "python3", script.string(),
                           output.string(), names, (folder / "out").string(), (folder / "err").string())
                        .c_str());
    said = slurp(folder / "out") + slurp(folder / "err");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      missing = WIFEXITED(status) && (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 127);
      return {};
    }
    return json::parse(slurp(folder / "out"), "read_loggers.py");
  }
  TempFolder folder{"loggers"};
  fs::path output = folder / "run";
  std::string said;
  bool missing = false;
};

void expect_once_each(const json::Value& history, const std::map<int64_t, double>& expected,
                      const std::string& what) {
  ASSERT_EQ(history.as_array().size(), expected.size()) << what;
  auto next = expected.begin();
  for (const json::Value& point : history.as_array()) {
    EXPECT_EQ(point.as_array()[0].as_integer(), next->first) << what;
    EXPECT_FLOAT_EQ(static_cast<float>(point.as_array()[1].as_number()), static_cast<float>(next->second))
        << what;
    ++next;
  }
}

TEST_F(Loggers, TheirOwnReadersSeeEachStepOnceAfterAKillAndAResume) {
  write_small_model(folder / "model");
  const Keys keys = keys_of(folder / "model", output);
  {
    Child child(folder, keys);
    ASSERT_TRUE(child.until([&] { return losses(output).size() >= 8; }));
    child.signal(SIGKILL);
    child.wait();
  }
  const size_t written = losses(output).size();
  json::Value seen = read("tensorboard prometheus mlflow");
  if (missing) GTEST_SKIP() << "needs tensorboard, prometheus-client and mlflow (DELTATUNE_PYTHON): " << said;
  ASSERT_TRUE(seen.is_object()) << said;
  EXPECT_GE(seen.at("tensorboard").at("train/loss").as_array().size() + 1, written);
  EXPECT_EQ(seen.at("mlflow").at("status").as_string(), "RUNNING");

  const ProgramResult result = run_verb("train", with(keys, {{"resume_from_checkpoint", "true"}}));
  ASSERT_EQ(result.code, 0) << result.err;
  const std::map<int64_t, double> expected = losses(output);
  ASSERT_EQ(expected.size(), 20u);
  seen = read("tensorboard prometheus mlflow");
  ASSERT_TRUE(seen.is_object()) << said;
  const json::Value& board = seen.at("tensorboard");
  expect_once_each(board.at("train/loss"), expected, "TensorBoard");
  for (const char* tag : {"train/grad_norm", "train/learning_rate", "train/epoch", "train/tokens_per_s",
                          "train/tokens_per_s_supervised"})
    EXPECT_EQ(board.at(tag).as_array().size(), 20u) << tag;
  EXPECT_EQ(board.at("eval/loss").as_array().size(), 2u);
  const json::Value& flow = seen.at("mlflow");
  expect_once_each(flow.at("metrics").at("train/loss"), expected, "MLflow");
  EXPECT_EQ(flow.at("status").as_string(), "FINISHED");
  EXPECT_EQ(flow.at("name").as_string(), "a run: of \"mine\"");
  EXPECT_EQ(flow.at("params").at("learning_rate").as_string(), "0.002");
  const json::Value& gauges = seen.at("prometheus");
  EXPECT_EQ(gauges.at("deltatune_step").as_array()[0].as_array()[1].as_number(), 20);
  EXPECT_EQ(gauges.at("deltatune_step").as_array()[0].as_array()[0].at("run").as_string(),
            "a run: of \"mine\"");
  EXPECT_EQ(gauges.at("deltatune_train_loss").as_array()[0].as_array()[1].as_number(), expected.at(20));
  EXPECT_EQ(gauges.at("deltatune_ended").as_array()[0].as_array()[1].as_number(), 1);
}

TEST_F(Loggers, OverwritingARunRemovesItsLogs) {
  write_small_model(folder / "model");
  const Keys keys =
      with(keys_of(folder / "model", output), {{"max_steps", "2"}, {"overwrite_output_dir", "true"}});
  ASSERT_EQ(run_verb("train", keys).code, 0);
  ASSERT_EQ(run_verb("train", with(keys, {{"report_to", "[jsonl]"}})).code, 0);
  EXPECT_FALSE(fs::exists(output / "runs") || fs::exists(output / "mlruns") ||
               fs::exists(output / "metrics.prom"));
}

}  // namespace
}  // namespace deltatune
