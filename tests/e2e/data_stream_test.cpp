// Where a run's batches come from: made ahead or not, tokenised while training, weighted. The same data gives
// the same bits, stopped or not.
#include "e2e/runs.h"

namespace deltatune {
namespace {

struct DataStream : testing::Test {
  TempFolder folder{"data_stream"};
  fs::path model = folder / "model";
  Keys keys;

  void SetUp() override {
    write_small_model(model);
    keys = small_keys(model, folder / "run");
  }
  Keys to(const std::string& output, const Keys& more = {}) const {
    return with(with(keys, {{"output_dir", (folder / output).string()}}), more);
  }
  ProgramResult train(const Keys& run) const {
    ProgramResult result = run_verb("train", run);
    EXPECT_EQ(result.code, 0) << result.err;
    return result;
  }
  void expect_equal(const std::string& a, const std::string& b) const {
    EXPECT_EQ(step_lines(folder / a), step_lines(folder / b)) << a << " " << b;
    EXPECT_FALSE(slurp(folder / a / "model.safetensors").empty());
    EXPECT_TRUE(slurp(folder / a / "model.safetensors") == slurp(folder / b / "model.safetensors"));
  }
  static bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
};

TEST_F(DataStream, BatchesMadeAheadAreTheSame) {
  train(to("none", {{"dataloader_prefetch_factor", "0"}}));
  train(to("many", {{"dataloader_prefetch_factor", "9"}}));
  expect_equal("none", "many");
  for (const json::Value& event : events(folder / "many", "step")) {
    EXPECT_GE(event.at("data_wait_s").as_number(), 0);
    EXPECT_LE(event.at("data_wait_s").as_number(), event.at("time_s").as_number());
  }
}

TEST_F(DataStream, StreamingResumesWithTheSameBits) {
  // 280 conversations in windows of 100: the run sees more than one epoch.
  const Keys streaming = {{"streaming", "true"}, {"shuffle_buffer_size", "100"}, {"max_tokens", "1024"}};
  const ProgramResult whole = train(to("whole", streaming));
  EXPECT_TRUE(contains(whole.err, "streaming: epoch 0 had 280 conversations")) << whole.err;
  EXPECT_GT(events(folder / "whole", "step").back().at("epoch").as_number(), 1);
  {
    Child child(folder, to("killed", streaming));
    ASSERT_TRUE(child.until([&] { return fs::exists(folder / "killed" / "checkpoint-10"); })) << child.log();
    child.signal(SIGKILL);
    child.wait();
  }
  train(with(to("killed", streaming), {{"resume_from_checkpoint", "true"}}));
  expect_equal("whole", "killed");
  {
    Child child(folder, to("stopped", streaming));
    ASSERT_TRUE(child.until([&] { return fs::exists(folder / "stopped" / "checkpoint-5"); })) << child.log();
    child.signal(SIGTERM);
    EXPECT_EQ(child.wait(), 143) << child.log();
  }
  train(with(to("stopped", streaming), {{"resume_from_checkpoint", "true"}}));
  expect_equal("whole", "stopped");
}

TEST_F(DataStream, StreamingRefusesWhatNeedsAllData) {
  const Keys streaming = with(keys, {{"streaming", "true"}});
  expect_error(run_verb("train", with(streaming, {{"max_steps", "-1"}})), 2, "max_steps");
  expect_error(run_verb("train", with(streaming, {{"val_size", "10"}})), 2, "hold out");
  expect_error(run_verb("train", with(streaming, {{"dataset_weights", "[2]"}})), 2, "weights");
}

TEST_F(DataStream, ErrorsOfTheReadingThreadAreThoseOfTheProgram) {
  const std::string good = slurp(source_dir / "examples/demo/train.jsonl");
  write_text(folder / "rows.jsonl", good + "{\"messages\": 7}\n");
  const Keys run = to("bad", {{"dataset", (folder / "rows.jsonl").string()}, {"streaming", "true"}});
  expect_error(run_verb("train", run), 3, "rows.jsonl, line 281");
}

TEST_F(DataStream, WeightsDecideHowOftenADatasetIsUsed) {
  std::istringstream lines(slurp(source_dir / "examples/demo/train.jsonl"));
  std::string line, first, second;
  for (int i = 0; i < 60 && std::getline(lines, line); ++i) (i < 20 ? first : second) += line + "\n";
  write_text(folder / "a.jsonl", first);
  write_text(folder / "b.jsonl", second);
  const Keys run = to(
      "mixed", {{"dataset", "[" + (folder / "a.jsonl").string() + ", " + (folder / "b.jsonl").string() + "]"},
                {"dataset_weights", "[3, 0.5]"},
                {"max_steps", "-1"},
                {"max_tokens", "128"},
                {"max_documents", "1"},
                {"gradient_accumulation_steps", "1"}});
  const ProgramResult result = train(run);
  EXPECT_TRUE(contains(result.err, "weight 3, 20 conversations, 60 uses an epoch")) << result.err;
  EXPECT_TRUE(contains(result.err, "weight 0.5, 40 conversations, 20 uses an epoch")) << result.err;
  // A conversation a row, a row a step.
  EXPECT_EQ(events(folder / "mixed", "step").size(), 80u);
  const Keys other = with(run, {{"output_dir", (folder / "other").string()}});
  expect_error(run_verb("train", with(other, {{"dataset_weights", "[1]"}})), 2, "1 weight for 2 datasets");
  expect_error(run_verb("train", with(other, {{"dataset_weights", "[1, 0]"}})), 2, "is no weight");
  expect_error(run_verb("train", with(other, {{"dataset_weights", "[1, many]"}})), 2, "is no weight");
}

}  // namespace
}  // namespace deltatune
