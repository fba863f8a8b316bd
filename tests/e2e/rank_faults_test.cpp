// Ranks that are killed, hang, fail, diverge or cannot write: one message, the exit code that belongs to it,
// nobody left behind, and the last checkpoint in place. And runs that start again by themselves.
#include "e2e/ranks.h"

namespace deltatune {
namespace {

TEST_F(Ranks, AKilledRankEndsTheRunWithOneMessage) {
  LongRun run(folder, to("killed", 3, 1), folder / "killed");
  const auto ranks = rank_processes(run.child.config());
  ASSERT_EQ(ranks.size(), 3u);
  ::kill(ranks.at(1), SIGKILL);
  EXPECT_EQ(run.child.wait(), 5);
  const std::string log = run.child.log();
  EXPECT_EQ(count_errors(log), 1) << log;
  EXPECT_NE(log.find("error: rank 1 was ended by signal 9"), std::string::npos) << log;
  EXPECT_NE(log.find("  where: rank 1, step "), std::string::npos) << log;
  EXPECT_TRUE(rank_processes(run.child.config()).empty());
  // Resumable, on fewer ranks too.
  const auto latest = latest_complete_checkpoint(folder / "killed");
  ASSERT_TRUE(latest.has_value());
  train(to("killed", 1, 3,
           {{"resume_from_checkpoint", "true"}, {"max_steps", std::to_string(latest->step + 2)}}));
}

TEST_F(Ranks, AHungRankIsGivenUp) {
  LongRun run(folder, to("hung", 2, 1, {{"ddp_timeout", "3"}}), folder / "hung");
  const auto ranks = rank_processes(run.child.config());
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks.at(1), SIGSTOP);
  EXPECT_EQ(run.child.wait(), 5);
  const std::string log = run.child.log();
  EXPECT_EQ(count_errors(log), 1) << log;
  EXPECT_NE(log.find("error: rank 1 did not take part in "), std::string::npos) << log;
  EXPECT_NE(log.find("  where: rank 0, step "), std::string::npos) << log;
  EXPECT_TRUE(rank_processes(run.child.config()).empty());
}

TEST_F(Ranks, AFullDiskIsOneMessageAndLeavesTheOldCheckpoint) {
  // A limit of file sizes, 10 MB, stands in for the full disk; the demo's model alone is larger.
  const fs::path demo = source_dir / "examples/demo/model";
  const ProgramResult result =
      run_verb("train", to("full", 2, 1, {{"model_name_or_path", demo.string()}}), "", "ulimit -f 20000;");
  expect_error(result, 4, "cannot write");
  EXPECT_EQ(count_errors(result.err), 1) << result.err;
  EXPECT_FALSE(fs::exists(folder / "full/checkpoint-3"));
}

TEST_F(Ranks, DivergenceIsOneMessage) {
  train(to("first", 1, 1, {{"max_steps", "1"}, {"warmup_steps", "0"}}));
  // The largest float in all of one matrix: its products overflow.
  const fs::path weights = folder / "first/model.safetensors";
  std::string bytes = slurp(weights);
  {
    const SafetensorsFile file(weights);
    const StoredTensor& down = *file.find("model.layers.1.mlp.down_proj.weight");
    const auto begin = static_cast<size_t>(file.bytes(down).data() - file.all().data());
    for (size_t i = 0; i < down.size; i += 4) bytes.replace(begin + i, 4, "\xff\xff\x7f\x7f");
  }
  write_text(weights, bytes);
  const ProgramResult result = run_verb(
      "train",
      to("nan", 2, 1,
         {{"model_name_or_path", (folder / "first").string()}, {"init", "pretrained"}, {"max_steps", "3"}}));
  expect_error(result, 6, "not finite at step 1");
  EXPECT_EQ(count_errors(result.err), 1) << result.err;
}

}  // namespace
}  // namespace deltatune
