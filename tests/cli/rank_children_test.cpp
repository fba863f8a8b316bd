// Ranks as child processes: what they are told, and that none outlives a failed one or the supervisor.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "cli/rank_launch.h"
#include "cli/stop_forwarding.h"
#include "scratch_folder.h"

namespace deltatune::cli {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct RankChildren : testing::Test {
  ScratchFolder folder;
  RankStatus status = RankStatus::create(folder.path() / "status", 3);

  /// `script` on three ranks, in the test's folder.
  Ended run(const std::string& script) const {
    return run_children({"/bin/sh", "-c", "cd '" + folder.path().string() + "'; " + script}, 2, status);
  }
  std::string said(const std::string& name) const { return text_of(folder.path() / name); }
};

TEST_F(RankChildren, RanksKnowWhoTheyAre) {
  const Ended ended =
      run("echo $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $DELTATUNE_NUM_THREADS >rank$RANK; "
          "echo $MASTER_PORT >port$RANK; cat >>rank$RANK");
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.killed_rank, -1);
  for (const char* rank : {"0", "1", "2"})
    EXPECT_EQ(said(std::string("rank") + rank), std::string("3 ") + rank + " 3 127.0.0.1 2\n");
  EXPECT_GT(std::stoi(said("port0")), 1023);
  EXPECT_EQ(said("port0"), said("port1"));
}

TEST_F(RankChildren, TheCodeOfTheFailedRank) {
  const Ended ended = run("sleep 0.$RANK; [ $RANK != 1 ] || exit 4");
  EXPECT_EQ(ended.killed_rank, -1);
  EXPECT_EQ(ended.code, 4);
}

// The other ranks notice nothing, and do not listen to SIGTERM either.
TEST_F(RankChildren, OthersAreEndedWhenOneIsKilled) {
  const auto begin = std::chrono::steady_clock::now();
  const Ended ended = run("[ $RANK != 2 ] || kill -9 $$; trap '' TERM; while :; do sleep 0.1; done");
  EXPECT_EQ(ended.killed_rank, 2);
  EXPECT_EQ(ended.signal, "signal 9 (Killed)");
  EXPECT_EQ(ended.code, 128 + 9);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST_F(RankChildren, AStoppedRankDoesNotStay) {
  const Ended ended = run("echo $$ >pid$RANK; [ $RANK != 0 ] || kill -STOP $$; sleep 0.2; exit 5");
  EXPECT_EQ(ended.code, 5);  // what the ranks said that waited for it; its own end was ours
  EXPECT_EQ(ended.killed_rank, -1);
  EXPECT_EQ(::kill(std::stoi(said("pid0")), 0), -1);
}

TEST_F(RankChildren, ASignalGoesToAll) {
  const StopForwarding signals;
  std::thread sender([this] {
    while (said("ready2").empty() || said("ready1").empty() || said("ready0").empty())
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ::kill(::getpid(), SIGTERM);
  });
  const Ended ended =
      run("trap 'echo stopped >end$RANK; exit 143' TERM; echo x >ready$RANK; while :; do sleep 0.05; done");
  sender.join();
  EXPECT_EQ(ended.code, 143);
  for (const char* rank : {"0", "1", "2"}) EXPECT_EQ(said(std::string("end") + rank), "stopped\n");
}

TEST_F(RankChildren, NoRankOutlivesTheSupervisor) {
  const pid_t supervisor = ::fork();
  if (supervisor == 0) {
    run("trap '' TERM; echo $$ >pid$RANK; while :; do sleep 0.1; done");
    ::_exit(0);
  }
  const auto pid = [&](const char* rank) {
    const std::string text = said(std::string("pid") + rank);
    return text.ends_with("\n") ? std::stoi(text) : 0;
  };
  while (pid("0") == 0 || pid("1") == 0 || pid("2") == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ::kill(supervisor, SIGKILL);
  ::waitpid(supervisor, nullptr, 0);
  for (const char* rank : {"0", "1", "2"}) {
    bool gone = false;
    for (int i = 0; i < 1000 && !gone; ++i) {
      // A process that nobody has waited for yet is dead all the same.
      const std::string state = text_of("/proc/" + std::to_string(pid(rank)) + "/stat");
      gone = state.empty() || state.find(") Z ") != std::string::npos;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_TRUE(gone) << rank;
  }
}

TEST_F(RankChildren, AProgramThatIsNotThere) {
  EXPECT_EQ(run_children({(folder.path() / "none").string()}, 1, status).code, 126);
}

}  // namespace
}  // namespace deltatune::cli
