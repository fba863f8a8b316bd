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

TEST_F(Ranks, NoRankOutlivesTheSupervisor) {
  LongRun run(folder, to("orphans", 2, 1, {{"save_total_limit", "2"}}), folder / "orphans");
  ASSERT_EQ(rank_processes(run.child.config()).size(), 2u);
  run.child.signal(SIGKILL);
  EXPECT_EQ(run.child.wait(), 128 + SIGKILL);
  for (int i = 0; i < 1000 && !rank_processes(run.child.config()).empty(); ++i) ::usleep(20000);
  EXPECT_TRUE(rank_processes(run.child.config()).empty());
  EXPECT_TRUE(latest_complete_checkpoint(folder / "orphans").has_value());
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

// A model whose every forward pass overflows.
void write_overflowing_model(const Ranks& ranks) {
  ranks.train(ranks.to("first", 1, 1, {{"max_steps", "1"}, {"warmup_steps", "0"}}));
  make_it_overflow(ranks.folder / "first");
}

TEST_F(Ranks, DivergenceIsOneMessage) {
  write_overflowing_model(*this);
  const Keys diverging = {
      {"model_name_or_path", (folder / "first").string()}, {"init", "pretrained"}, {"max_steps", "3"}};
  const ProgramResult result = run_verb("train", to("nan", 2, 1, diverging));
  expect_error(result, 6, "not finite at step 1");
  EXPECT_NE(result.err.find("  where: ranks 0 and 1, step 1, layer 0, forward: loss sum "), std::string::npos)
      << result.err;
  EXPECT_EQ(count_errors(result.err), 1) << result.err;
  EXPECT_FALSE(latest_complete_checkpoint(folder / "nan").has_value());
  // Skipped steps are skipped by all, and a run of nothing else ends in an error as well.
  const ProgramResult skipped =
      run_verb("train", to("skip", 2, 1, with(diverging, {{"on_nonfinite", "skip"}})));
  expect_error(skipped, 6, "no step has updated the weights");
  EXPECT_EQ(count_errors(skipped.err), 1) << skipped.err;
  ASSERT_EQ(events(folder / "skip", "nan").size(), 3u);
  const json::Value event = events(folder / "skip", "nan")[2];
  EXPECT_EQ(json::dump(event.at("ranks"), 0), json::dump(json::Array{0, 1}, 0));
  EXPECT_EQ(event.at("layer").as_integer(), 0);
  EXPECT_EQ(event.at("group").as_string(), "block 0");
  EXPECT_EQ(event.at("first_group").as_string(), "embedding");
}

// A run that goes wrong later ends on all ranks together, and the good checkpoint is still there. Without an
// epsilon Adam divides zero by zero for tokens that no row had yet; the rank that meets one first is named.
TEST_F(Ranks, ALaterDivergenceKeepsTheGoodCheckpoint) {
  json::Value config = json::parse_file((model / "config.json").string());
  config.set("tie_word_embeddings", false);
  write_text(model / "config.json", json::dump(config, 2));
  const Keys constant = {{"lr_scheduler_type", "constant"}, {"max_steps", "4"}};
  train(to("later", 2, 1, constant));
  const std::string good = slurp(folder / "later/checkpoint-3/model.safetensors");
  const Keys bad = {
      {"max_steps", "25"}, {"save_steps", "0"}, {"adam_epsilon", "0"}, {"resume_from_checkpoint", "true"}};
  const ProgramResult result = run_verb("train", to("later", 2, 1, with(constant, bad)));
  expect_error(result, 6, "not finite at step ");
  EXPECT_NE(result.err.find("  where: rank"), std::string::npos) << result.err;
  EXPECT_EQ(count_errors(result.err), 1) << result.err;
  EXPECT_TRUE(slurp(folder / "later/checkpoint-3/model.safetensors") == good);
  const auto latest = latest_complete_checkpoint(folder / "later");
  ASSERT_TRUE(latest.has_value());
  EXPECT_EQ(ResumeState(latest->path).world_size(), 2);
}

// Started again from the latest checkpoint, a run that lost a rank gives what an undisturbed one gives.
void expect_restart(const Ranks& test, int ranks, int signal, const std::string& says) {
  const std::string name = std::to_string(ranks) + "-" + std::to_string(signal);
  const Keys more = {
      {"max_steps", "40"}, {"lr_scheduler_type", "constant"}, {"max_restarts", "2"}, {"ddp_timeout", "12"}};
  const fs::path calm = test.folder / ("calm" + name), lost = test.folder / ("lost" + name);
  test.train(test.to("calm" + name, ranks, 2, more));
  Child child(test.folder, test.to("lost" + name, ranks, 2, more));
  ASSERT_TRUE(child.until([&] { return fs::exists(lost / "checkpoint-3"); })) << child.log();
  const auto processes = rank_processes(child.config());
  ASSERT_EQ(processes.size(), static_cast<size_t>(ranks));
  ::kill(processes.at(ranks - 1), signal);
  EXPECT_EQ(child.wait(), 0) << child.log();
  EXPECT_NE(child.log().find("rank " + std::to_string(ranks - 1) + says), std::string::npos) << child.log();
  EXPECT_NE(child.log().find("restart 1 of 2, from the latest checkpoint"), std::string::npos) << child.log();
  EXPECT_EQ(count_errors(child.log()), 0) << child.log();
  EXPECT_TRUE(test.bytes("lost" + name) == test.bytes("calm" + name));
  EXPECT_EQ(step_lines(lost), step_lines(calm));
  EXPECT_EQ(json::parse_file((lost / "run.json").string()).at("restarts").as_integer(), 1);
}

TEST_F(Ranks, AKilledRankIsStartedAgain) {
  for (const int ranks : {2, 1}) expect_restart(*this, ranks, SIGKILL, " was ended by signal 9");
}

TEST_F(Ranks, AHungRankIsStartedAgain) {
  expect_restart(*this, 2, SIGSTOP, " did not take part in ");
}

// A few of the kills that tools/kill_ranks.py does by the dozen.
TEST_F(Ranks, KilledAtAnyMomentARunIsResumable) {
  if (std::system("command -v python3 >/dev/null") != 0) GTEST_SKIP() << "no python3";
  const fs::path log = folder / "kills.log";
  const std::string command = "python3 '" + (source_dir / "tools/kill_ranks.py").string() + "' '" +
                              DELTATUNE_BINARY + "' --kills 3 --seed 3 --folder '" +
                              (folder / "kills").string() + "' >'" + log.string() + "' 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << slurp(log);
}

// Neither mistakes nor divergence get another try; a rank that is lost each time gets no more than allowed.
TEST_F(Ranks, RestartsHaveLimits) {
  write_overflowing_model(*this);
  const Keys twice = {{"max_restarts", "2"}};
  const ProgramResult diverged = run_verb(
      "train",
      to("nan", 2, 1,
         with(twice, {{"model_name_or_path", (folder / "first").string()}, {"init", "pretrained"}})));
  expect_error(diverged, 6, "not finite at step 1");
  EXPECT_EQ(diverged.err.find("restart"), std::string::npos) << diverged.err;
  const ProgramResult mistaken =
      run_verb("train", to("bad", 2, 1, with(twice, {{"dataset", (folder / "none.jsonl").string()}})));
  EXPECT_NE(mistaken.code, 0);
  EXPECT_EQ(mistaken.err.find("restart"), std::string::npos) << mistaken.err;
  const fs::path demo = source_dir / "examples/demo/model";
  const ProgramResult full =
      run_verb("train", to("full", 2, 1, with(twice, {{"model_name_or_path", demo.string()}})), "",
               "ulimit -f 20000;");
  expect_error(full, 4, "cannot write");
  EXPECT_NE(full.err.find("restart 1 of 2"), std::string::npos) << full.err;
  EXPECT_NE(full.err.find("restart 2 of 2"), std::string::npos) << full.err;
  EXPECT_EQ(full.err.find("restart 3"), std::string::npos) << full.err;
  EXPECT_EQ(count_errors(full.err), 1) << full.err;
}

}  // namespace
}  // namespace deltatune
