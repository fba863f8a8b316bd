// `--nproc N` on the CPU: the ranks are started through mpirun, and this process stays as their supervisor.
//
// It passes on what the ranks say, keeps mpirun's own talk to itself, and when a rank dies gives the one
// message and the exit code of the run: the error that a rank has noted (comm/rank_status.h), else the signal
// that killed one, else that a peer was lost. Ctrl-C and SIGTERM go to the ranks, which stop together after
// the step; a second Ctrl-C ends them at once. If the supervisor is killed, mpirun and its ranks end too.
#pragma once

#include <string>
#include <vector>

namespace deltatune::cli {

/// Runs `deltatune WORDS... --rank_status FILE` as `ranks` ranks; returns the exit code when all went well or
/// were stopped by a signal. Throws what ended a rank, Error{distributed} for one that was lost, and
/// Error{resource} when there is no mpirun.
int run_ranks(const std::vector<std::string>& words, int ranks);

/// What mpirun tells of a rank that was killed: "process rank 1 with PID 77 on node n exited on signal 9
/// (Killed)". rank -1: it tells nothing of that kind.
struct KilledRank {
  int rank = -1;
  std::string signal;  ///< "signal 9 (Killed)"
};
KilledRank killed_rank(const std::string& text);

}  // namespace deltatune::cli
