// However conversations are laid out in rows, the losses are the same; so is a window of several rows and one
// long row.
#include <cmath>

#include "e2e/runs.h"

namespace deltatune {
namespace {

double eval_loss(const Keys& keys) {
  const ProgramResult result = run_verb("eval", keys, "--json");
  EXPECT_EQ(result.code, 0) << result.err;
  return json::parse(result.out, "eval").at("eval_loss").as_number();
}

TEST(Batching, PackedPaddedSortedAndAloneGiveOneLoss) {
  const TempFolder folder("batching");
  write_small_model(folder / "model");
  const Keys eval = {{"model_name_or_path", (folder / "model").string()},
                     {"init", "random"},
                     {"eval_dataset", (source_dir / "examples/demo/eval.jsonl").string()},
                     {"dtype", "f32"},
                     {"device", "cpu"},
                     {"max_length", "128"},
                     {"max_tokens", "512"}};
  const double packed = eval_loss(eval);
  EXPECT_NEAR(packed, std::log(1152.0), 0.2);
  EXPECT_NEAR(eval_loss(with(eval, {{"batching", "padded"}})), packed, 1e-6 * packed);
  EXPECT_NEAR(eval_loss(with(eval, {{"batching", "sorted"}})), packed, 1e-6 * packed);
  EXPECT_NEAR(eval_loss(with(eval, {{"max_tokens", "2048"}})), packed, 1e-6 * packed);
  // Two segments at most, of which the filler is one: each conversation alone in its row.
  EXPECT_NEAR(eval_loss(with(eval, {{"max_tokens", "128"}, {"max_documents", "2"}})), packed, 1e-6 * packed);
}

// How many rows a packed epoch has is known before the first step: the schedule ends with the data.
TEST(Batching, TheScheduleOfAPackedEpochEndsWithIt) {
  const TempFolder folder("schedule");
  write_small_model(folder / "model");
  const Keys keys = with(small_keys(folder / "model", folder / "out"), {{"max_steps", "-1"},
                                                                        {"num_train_epochs", "2"},
                                                                        {"lr_scheduler_type", "linear"},
                                                                        {"warmup_ratio", "0"},
                                                                        {"save_steps", "0"}});
  const ProgramResult result = run_verb("train", keys);
  ASSERT_EQ(result.code, 0) << result.err;
  const int64_t planned = events(folder / "out", "start").at(0).at("total_steps").as_integer();
  const std::vector<json::Value> steps = events(folder / "out", "step");
  ASSERT_GT(planned, 5);
  ASSERT_EQ(static_cast<int64_t>(steps.size()), planned);
  EXPECT_EQ(steps.back().at("epoch").as_number(), 2.0);
  EXPECT_NEAR(steps.front().at("learning_rate").as_number(), 2e-3, 1e-9);
  EXPECT_NEAR(steps.back().at("learning_rate").as_number(), 2e-3 / static_cast<double>(planned), 1e-9)
      << "the next one would be zero";
}

TEST(Batching, AccumulationEqualsALongerRow) {
  const TempFolder folder("accumulation");
  write_small_model(folder / "model");
  // Eight conversations in every step: all of them in one long row, or over short ones. The first loss is of
  // equal weights, the later ones show equal updates.
  std::string rows;
  std::istringstream lines(slurp(source_dir / "examples/demo/train.jsonl"));
  std::string line;
  for (int i = 0; i < 8 && std::getline(lines, line); ++i) rows += line + "\n";
  write_text(folder / "rows.jsonl", rows);
  const Keys keys =
      with(small_keys(folder / "model", folder / "one"), {{"dataset", (folder / "rows.jsonl").string()},
                                                          {"dtype", "f32"},
                                                          {"save_steps", "0"},
                                                          {"max_steps", "6"},
                                                          {"max_tokens", "1024"},
                                                          {"gradient_accumulation_steps", "1"}});
  ASSERT_EQ(run_verb("train", keys).code, 0);
  const Keys many = with(keys, {{"output_dir", (folder / "many").string()},
                                {"max_tokens", "128"},
                                {"gradient_accumulation_steps", "16"}});
  ASSERT_EQ(run_verb("train", many).code, 0);
  const std::vector<double> one = losses(folder / "one"), split = losses(folder / "many");
  ASSERT_EQ(one.size(), 6u);
  ASSERT_EQ(split.size(), 6u);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], split[i], 1e-5 * one[i]) << i;
  EXPECT_LT(one.back(), one.front());
}

}  // namespace
}  // namespace deltatune
