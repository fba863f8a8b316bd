// Runs that are stopped or killed and go on: the same losses, weights, moments and data order, bit for bit,
// as the run that nobody touched.
#include "io/resume.h"

#include "e2e/runs.h"

namespace deltatune {
namespace {

struct Resume : testing::Test {
  static constexpr int steps = 20;
  TempFolder folder{"resume"};
  fs::path model = folder / "model";
  Keys keys;

  void SetUp() override {
    write_small_model(model);
    keys = small_keys(model, folder / "straight");
    const ProgramResult result = run_verb("train", keys);
    ASSERT_EQ(result.code, 0) << result.err;
    ASSERT_EQ(step_lines(folder / "straight").size(), static_cast<size_t>(steps));
  }
  Keys to(const std::string& output, const Keys& more = {}) const {
    return with(with(keys, {{"output_dir", (folder / output).string()}}), more);
  }
  void resume(const std::string& output) const {
    const ProgramResult result = run_verb("train", to(output, {{"resume_from_checkpoint", "true"}}));
    EXPECT_EQ(result.code, 0) << result.err;
  }
  static std::string moments(const fs::path& run) {
    return slurp(run / "checkpoint-20/deltatune/rank-00000-of-00001.safetensors");
  }
  void expect_equal_to_straight(const std::string& output) const {
    const fs::path a = folder / "straight", b = folder / output;
    EXPECT_EQ(step_lines(b), step_lines(a));
    EXPECT_FALSE(slurp(a / "model.safetensors").empty());
    EXPECT_TRUE(slurp(a / "model.safetensors") == slurp(b / "model.safetensors")) << "weights differ";
    EXPECT_FALSE(moments(a).empty());
    EXPECT_TRUE(moments(a) == moments(b)) << "masters or moments differ";
    EXPECT_EQ(ResumeState(a / "checkpoint-20").state(), ResumeState(b / "checkpoint-20").state());
    for (const fs::directory_entry& entry : fs::directory_iterator(b))
      EXPECT_NE(entry.path().extension(), ".tmp") << "a leftover of the killed save: " << entry.path();
  }
};

TEST_F(Resume, KilledDuringASave) {
  int during = 0;
  // The second save (step 10) is under way while its folder carries the temporary name. The kills fall on
  // different moments of it.
  for (int round = 0; round < 5; ++round) {
    const std::string output = "killed" + std::to_string(round);
    const fs::path temporary = folder / output / "checkpoint-10.tmp";
    Child child(folder, to(output));
    ASSERT_TRUE(child.until([&] {
      return fs::exists(temporary) || fs::exists(folder / output / "checkpoint-10");
    })) << child.log();
    ::usleep(static_cast<useconds_t>(700 * round));
    child.signal(SIGKILL);
    EXPECT_EQ(child.wait(), 128 + SIGKILL) << child.log();
    during += fs::exists(temporary);
    resume(output);
    expect_equal_to_straight(output);
  }
  EXPECT_GT(during, 0) << "no kill fell into a save";
}

TEST_F(Resume, KilledAtAnyMoment) {
  for (int round = 0; round < 4; ++round) {
    const std::string output = "any" + std::to_string(round);
    const fs::path metrics = folder / output / "metrics.jsonl";
    {
      Child child(folder, to(output));
      const auto lines = [&] {
        const std::string text = slurp(metrics);
        return std::count(text.begin(), text.end(), '\n');
      };
      ASSERT_TRUE(child.until([&] { return lines() > 3 * round; })) << child.log();
      child.signal(SIGKILL);
      child.wait();
    }
    resume(output);
    expect_equal_to_straight(output);
  }
}

TEST_F(Resume, SignalsFinishTheStepAndSave) {
  for (const auto& [number, code] :
       {std::pair(SIGTERM, 143), std::pair(SIGINT, 130), std::pair(SIGUSR1, 143)}) {
    const std::string output = "signal" + std::to_string(number);
    // Without periodic checkpoints: the one there is comes from the signal.
    const Keys quiet = to(output, {{"save_steps", "20"}});
    Child child(folder, quiet);
    ASSERT_TRUE(child.until([&] {
      return slurp(folder / output / "metrics.jsonl").find("\"step\"") != std::string::npos;
    })) << child.log();
    child.signal(number);
    EXPECT_EQ(child.wait(), code) << child.log();
    EXPECT_EQ(events(folder / output, "save").size(), 1u) << child.log();
    const json::Value run = json::parse_file((folder / output / "run.json").string());
    EXPECT_EQ(run.at("exit").at("code").as_integer(), code) << json::dump(run);
    EXPECT_EQ(run.at("exit").at("state").as_string(), "stopped");
    const ProgramResult result = run_verb("train", with(quiet, {{"resume_from_checkpoint", "true"}}));
    EXPECT_EQ(result.code, 0) << result.err;
    expect_equal_to_straight(output);
  }
}

TEST_F(Resume, FromANamedCheckpointIntoANewFolder) {
  const ProgramResult result = run_verb(
      "train", to("branch", {{"resume_from_checkpoint", (folder / "straight/checkpoint-15").string()}}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(slurp(folder / "straight/model.safetensors") == slurp(folder / "branch/model.safetensors"));
  EXPECT_TRUE(moments(folder / "straight") == moments(folder / "branch"));
}

TEST_F(Resume, OtherDataIsAnError) {
  std::string text = slurp(source_dir / "examples/demo/train.jsonl");
  text[text.find("tea")] = 'T';
  write_text(folder / "changed.jsonl", text);
  fs::remove_all(folder / "straight/checkpoint-20");
  expect_error(run_verb("train", to("straight", {{"resume_from_checkpoint", "true"},
                                                 {"dataset", (folder / "changed.jsonl").string()}})),
               3, "data");
  EXPECT_TRUE(fs::exists(folder / "straight/checkpoint-15/config.json"));
}

TEST_F(Resume, WithoutACheckpointTheRunStarts) {
  const ProgramResult result = run_verb("train", to("fresh", {{"resume_from_checkpoint", "true"}}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("no complete checkpoint"), std::string::npos) << result.err;
  expect_equal_to_straight("fresh");
}

TEST_F(Resume, ACheckpointThatIsNotThereIsAnError) {
  expect_error(run_verb("train", to("none", {{"resume_from_checkpoint", (folder / "nothing").string()}})), 3,
               "nothing");
}

TEST_F(Resume, ADamagedCheckpointIsAnError) {
  const fs::path rank = folder / "straight/checkpoint-20/deltatune/rank-00000-of-00001.safetensors";
  std::string bytes = slurp(rank);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_text(rank, bytes);
  expect_error(
      run_verb("train",
               to("damaged", {{"resume_from_checkpoint", (folder / "straight/checkpoint-20").string()}})),
      3, "rank-00000-of-00001.safetensors");
}

}  // namespace
}  // namespace deltatune
