// The two ways of starting the ranks of one machine and waiting for their end. What the end means is judged
// in rank_supervisor.cpp.
#pragma once

#include <string>
#include <vector>

#include "comm/rank_status.h"

namespace deltatune::cli {

/// How the processes of a run ended.
struct Ended {
  int code = 0;          ///< 0: all ranks ended with 0
  int killed_rank = -1;  ///< a rank that a signal ended which nobody here has sent
  std::string signal;    ///< "signal 9 (Killed)"
  std::string talk;      ///< what the launcher itself had to say
};

/// Both: `command` is the program and its words; `threads` is DELTATUNE_NUM_THREADS of each rank where the
/// environment says nothing. Signals that StopForwarding notes go on to the ranks; a second Ctrl-C ends them.

/// Through Open MPI's mpirun, which also ends the others when a rank dies. Throws Error{resource} without
/// mpirun.
Ended run_with_mpirun(const std::vector<std::string>& command, int threads, const RankStatus& status);

/// As child processes with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. When
/// one fails, the others have a few seconds to notice and to say what they see; then they are ended (SIGTERM,
/// later SIGKILL). If this process is killed, they are too.
Ended run_children(const std::vector<std::string>& command, int threads, const RankStatus& status);

/// What mpirun tells of a rank that was killed: "process rank 1 with PID 77 on node n exited on signal 9
/// (Killed)". rank -1: it tells nothing of that kind.
struct KilledRank {
  int rank = -1;
  std::string signal;  ///< "signal 9 (Killed)"
};
KilledRank killed_rank(const std::string& text);

/// Sends `signal` to all ranks that have said who they are.
void forward(const RankStatus& status, int signal);

}  // namespace deltatune::cli
