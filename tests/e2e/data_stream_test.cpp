// Where a run's batches come from: made ahead or not, weighted. The same data gives the same bits.
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
  expect_error(run_verb("train", with(other, {{"dataset_weights", "[1]"}})), 2, "1 weights for 2 datasets");
  expect_error(run_verb("train", with(other, {{"dataset_weights", "[1, 0]"}})), 2, "is no weight");
  expect_error(run_verb("train", with(other, {{"dataset_weights", "[1, many]"}})), 2, "is no weight");
}

}  // namespace
}  // namespace deltatune
