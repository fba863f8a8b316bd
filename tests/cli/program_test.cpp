// The built program: exit codes, streams, first answers.
#include <gtest/gtest.h>

#include <chrono>

#include "cli/run_binary.h"

namespace deltatune {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Program, AlonePrintsTheVerbsQuickly) {
  const auto start = std::chrono::steady_clock::now();
  const ProgramResult result = run_deltatune("");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(result.code, 0);
  EXPECT_TRUE(contains(result.out, "deltatune train cfg.yaml")) << result.out;
  EXPECT_TRUE(contains(result.out, "alias: sft"));
  EXPECT_TRUE(result.err.empty()) << result.err;
  EXPECT_LT(seconds, 2.0);  // the goal is 0.2 s; a loaded machine and sanitizers are allowed for
}

TEST(Program, VersionNamesBuild) {
  const ProgramResult result = run_deltatune("--version");
  EXPECT_EQ(result.code, 0);
  for (const char* word : {"deltatune 0.", "commit", "compiler", "CUDA"})
    EXPECT_TRUE(contains(result.out, word));
}

TEST(Program, HelpListsOnlyWhatTheVerbReads) {
  const ProgramResult train = run_deltatune("sft --help");
  EXPECT_EQ(train.code, 0);
  EXPECT_TRUE(contains(train.out, "--learning-rate"));
  EXPECT_FALSE(contains(train.out, "--prompt"));
  const ProgramResult generate = run_deltatune("help generate");
  EXPECT_TRUE(contains(generate.out, "--prompt"));
  EXPECT_FALSE(contains(generate.out, "--learning-rate"));
}

TEST(Program, UsageErrorsAreTwoOnStderr) {
  ScratchFolder folder;
  const std::string bad = folder.write("bad.yaml", "seed: 1\nlearning_rat: 3\n");
  struct Case {
    std::string arguments;
    const char* says;
  };
  const Case cases[] = {
      {"trian", "did you mean train?"},
      {"train --learning-rat 3", "did you mean learning_rate?"},
      {"train " + bad, "bad.yaml:2"},
      {"train missing.yaml", "no configuration file missing.yaml"},
      {"train a.yaml b.yaml", "unexpected argument b.yaml"},
      {"train --seed", "--seed needs a value"},
      {"parity", "needs case-folder/"},
      {"help --options learning_rat", "unknown key"},
      {"train -z", "unknown flag -z"},
  };
  for (const Case& row : cases) {
    const ProgramResult result = run_deltatune(row.arguments);
    EXPECT_EQ(result.code, 2) << row.arguments;
    EXPECT_TRUE(result.err.starts_with("error: ")) << result.err;
    EXPECT_TRUE(contains(result.err, row.says)) << result.err;
    EXPECT_TRUE(result.out.empty()) << result.out;
  }
}

TEST(Program, HelpExplainsOneKey) {
  const ProgramResult result = run_deltatune("help --options lr");
  EXPECT_EQ(result.code, 0);
  EXPECT_TRUE(contains(result.out, "peak learning rate"));
}

TEST(Program, OutputThatCannotBeWrittenIsAFailure) {
  const ProgramResult full = run_deltatune("--version", R"(sh -c '"$@" >/dev/full' sh)");
  EXPECT_EQ(full.code, 4) << full.err;
  EXPECT_TRUE(contains(full.err, "error: cannot write the output")) << full.err;
}

// The first file opened would otherwise get the number of stderr, and messages would be written into it.
TEST(Program, AClosedStderrIsNotTakenForAFile) {
  const ScratchFolder folder;
  const std::string model = DELTATUNE_SOURCE_DIR "/examples/demo/model";
  const std::string rows = DELTATUNE_SOURCE_DIR "/examples/demo/train.jsonl";
  const std::string out = (folder / "out").string();
  const std::string config =
      folder.write("c.yaml", "model_name_or_path: " + model + "\ninit: random\ndataset: " + rows +
                                 "\noutput_dir: " + out + "\nmax_tokens: 128\nmax_steps: 1\ndtype: f32\n");
  EXPECT_EQ(run_deltatune("train " + config, R"(sh -c '"$@" 2>&-' sh)").code, 0);
  std::istringstream lines(slurp(folder / "out/metrics.jsonl"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_EQ(line.front(), '{') << line;
  EXPECT_GT(count, 1);
}

}  // namespace
}  // namespace deltatune
