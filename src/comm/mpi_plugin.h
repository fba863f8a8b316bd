// The seam to the MPI plug-in (libdeltatune_mpi.so): ranks that are processes, on one machine or many.
//
// The program needs no MPI to start, and without the plug-in runs everything on one rank. No MPI header is
// needed on this side.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace deltatune {

struct MpiPlugin {
  /// Joins the world that mpirun (or srun) has started this process in. Once in a process. Only for streams
  /// whose work runs inside the call, all of one thread. Destroying it leaves in an orderly way, together
  /// with all other ranks; while an exception is on its way it leaves nothing in order, so that mpirun ends
  /// the others. Throws Error{distributed}.
  std::unique_ptr<Communicator> (*make)(std::chrono::milliseconds timeout);
  /// Version of the MPI library.
  std::string (*version)();
};

inline constexpr int mpi_plugin_abi = 2;
/// The plug-in's only exported symbol: `const void* deltatune_mpi_plugin(int abi)`, an MpiPlugin; nullptr:
/// other ABI.
inline constexpr const char* mpi_plugin_symbol = "deltatune_mpi_plugin";

/// Opens the plug-in once. nullptr with the reason in `why`.
const MpiPlugin* mpi_plugin(std::string& why);

/// Error{resource} that says what to install.
Error no_mpi_plugin(const std::string& why);

/// The communicator of this process. Throws no_mpi_plugin(), and Error{usage} when MPI has another world than
/// `rank` of `world_size`: the process was not started by mpirun.
std::unique_ptr<Communicator> make_mpi_communicator(int rank, int world_size,
                                                    std::chrono::milliseconds timeout);

}  // namespace deltatune
