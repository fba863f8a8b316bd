// `--nproc N`, and max_restarts: the ranks are started as processes of their own, and this one stays as their
// supervisor.
//
// CPU ranks are started through mpirun, GPU ranks (and one rank alone) as child processes. The supervisor
// passes on what the ranks say, keeps mpirun's own talk to itself, and when a rank dies gives the one message
// and the exit code of the run: the error that a rank has noted (comm/rank_status.h), else the signal that
// killed one, else that a peer was lost. Ctrl-C and SIGTERM go to the ranks, which stop together after the
// step; a second Ctrl-C ends them at once. If the supervisor is killed, the ranks end too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltatune::cli {

struct RankJob {
  std::vector<std::string> words;  ///< of the command line, without the program
  int ranks = 1;
  bool mpi = false;  ///< start them through mpirun
  int64_t max_restarts =
      0;  ///< after a rank was lost or had no room; not for mistakes of the user or divergence
};

/// Runs `deltatune WORDS... --rank_status FILE` as ranks; returns the exit code when all went well or were
/// stopped by a signal. A restarted run goes on from its latest complete checkpoint. Throws what ended a
/// rank, Error{distributed} for one that was lost, and Error{resource} when there is no mpirun.
int run_ranks(const RankJob& job);

}  // namespace deltatune::cli
