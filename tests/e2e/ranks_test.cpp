// `--nproc N` on the CPU: runs on several processes train like one process, repeat, stop together, and go on
// with another number of ranks.
#include "e2e/ranks.h"

namespace deltatune {
namespace {

TEST_F(Ranks, ProcessesTrainLikeOne) {
  train(to("one", 1, 4));
  for (const int ranks : {2, 4}) {
    const std::string name = "of" + std::to_string(ranks);
    train(to(name, ranks, 4 / ranks));
    expect_close(name, "one");
    train(to(name + "again", ranks, 4 / ranks));
    EXPECT_FALSE(bytes(name).empty());
    EXPECT_TRUE(bytes(name) == bytes(name + "again")) << ranks << " ranks do not repeat";
    EXPECT_EQ(step_lines(folder / name), step_lines(folder / (name + "again")));
  }
}

TEST_F(Ranks, ResumeOnAnyNumberOfRanks) {
  const Keys more = {{"optim_dtype", "f32"}};
  train(to("straight", 2, 6, more));
  EXPECT_EQ(ResumeState(folder / "straight/checkpoint-3").world_size(), 2);
  for (const int ranks : {1, 2, 3, 4}) {
    const std::string name = "on" + std::to_string(ranks);
    fs::copy(folder / "straight", folder / name, fs::copy_options::recursive);
    fs::remove_all(folder / name / "checkpoint-6");
    train(to(name, ranks, 12 / ranks, with(more, {{"resume_from_checkpoint", "true"}})));
    if (ranks == 2) {
      EXPECT_EQ(step_lines(folder / name), step_lines(folder / "straight"));
      EXPECT_TRUE(bytes(name) == bytes("straight"));
    }
    expect_close(name, "straight");
    EXPECT_EQ(ResumeState(folder / name / "checkpoint-6").world_size(), ranks);
  }
  expect_error(run_verb("train", to("straight", 1, 6, {{"resume_from_checkpoint", "true"}})), 2,
               "12 rows in a step");
}

TEST_F(Ranks, SignalsStopAllRanksWithACheckpoint) {
  for (const auto& [signal, code] : std::map<int, int>{{SIGINT, 130}, {SIGTERM, 143}}) {
    const std::string name = "stopped" + std::to_string(code);
    LongRun run(folder, to(name, 2, 1, {{"save_total_limit", "2"}}), folder / name);
    run.child.signal(signal);
    EXPECT_EQ(run.child.wait(), code) << run.child.log();
    const std::string log = run.child.log();
    EXPECT_EQ(count_errors(log), 0) << log;
    EXPECT_NE(log.find("stopped after step"), std::string::npos) << log;
    const auto latest = latest_complete_checkpoint(folder / name);
    ASSERT_TRUE(latest.has_value());
    EXPECT_EQ(ResumeState(latest->path).world_size(), 2);
  }
}

TEST_F(Ranks, UnderALauncherNothingIsStarted) {
  // Variables of a launcher that MPI knows nothing of.
  const ProgramResult result =
      run_verb("train", to("alone", 1, 1), "", "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4");
  expect_error(result, 5, "MPI says rank 0 of 1");
  expect_error(run_verb("train", to("alone", 1, 1), "", "RANK=4 WORLD_SIZE=4"), 2, "rank 4 of 4");
}

}  // namespace
}  // namespace deltatune
