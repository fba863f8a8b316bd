// Which rank of how many this process is, from the variables of the program that started it.
//
// In this order: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE (torchrun, Kubernetes training operators);
// OMPI_COMM_WORLD_* (Open MPI's mpirun); PMI_RANK, PMI_SIZE (MPICH, Slurm with PMI); SLURM_* of a job step
// (srun). Without any of them: one rank, and `launcher` is empty.
#pragma once

#include <functional>
#include <string>

namespace deltatune {

struct Launch {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        ///< on this machine
  int local_world_size = 1;  ///< ranks on this machine
  std::string launcher;      ///< "torchrun", "mpirun", "PMI", "srun"; empty: nobody
};

/// `variable` gives an environment variable's value or nullptr. Throws Error{usage} for variables that are no
/// numbers, are missing beside others, or contradict each other.
Launch launch_of(const std::function<const char*(const char*)>& variable);
/// Of this process.
Launch launch_of_environment();

}  // namespace deltatune
