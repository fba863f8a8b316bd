// Which rank of how many this process is, and where the ranks meet, from the variables of the program that
// started it.
//
// In this order: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE (torchrun, Kubernetes training operators);
// OMPI_COMM_WORLD_* (Open MPI's mpirun); PMI_RANK, PMI_SIZE (MPICH, Slurm with PMI); SLURM_* of a job step
// (srun). Without any of them: one rank, and `launcher` is empty.
//
// The meeting place is MASTER_ADDR and MASTER_PORT where they are set. torchrun itself listens on MASTER_PORT
// when it says TORCHELASTIC_USE_AGENT_STORE=True: the ranks then meet one port higher. Without them, ranks of
// srun meet on the first host of the step at a port made from the job's number; ranks of mpirun that are all
// on one machine meet there, at a port made from the job's name.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace deltatune {

struct Launch {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        ///< on this machine
  int local_world_size = 1;  ///< ranks on this machine
  std::string launcher;      ///< "torchrun", "mpirun", "PMI", "srun"; empty: nobody
  std::string master_addr;   ///< host name or address of rank 0; empty: not known
  int master_port = 0;       ///< 0: not known
};

/// `variable` gives an environment variable's value or nullptr. Throws Error{usage} for variables that are no
/// numbers, are missing beside others, or contradict each other.
Launch launch_of(const std::function<const char*(const char*)>& variable);
/// Of this process.
Launch launch_of_environment();

/// The first host of Slurm's lists: "gpu[003-007,12],login" -> "gpu003". Empty for text that is no such list.
std::string first_host(std::string_view nodelist);

}  // namespace deltatune
