// What the supervisor understands of mpirun.
#include <gtest/gtest.h>

#include "cli/rank_launch.h"

namespace deltatune::cli {
namespace {

TEST(RankSupervisorTest, KilledRanksAreRead) {
  const KilledRank killed = killed_rank(
      "mpirun noticed that process rank 12 with PID 0 on node box exited on\nsignal 9 (Killed).\n");
  EXPECT_EQ(killed.rank, 12);
  EXPECT_EQ(killed.signal, "signal 9 (Killed)");
  EXPECT_EQ(killed_rank("process rank 0 with PID 7 on node n exited on signal 11.").signal, "signal 11");
  for (const char* other : {"", "process rank 1 exited with code 5", "exited on signal 9",
                            "mpirun detected that one or more processes exited with non-zero status"})
    EXPECT_EQ(killed_rank(other).rank, -1) << other;
}

}  // namespace
}  // namespace deltatune::cli
