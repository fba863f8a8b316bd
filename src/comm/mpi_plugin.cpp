// Opening the MPI plug-in.
#include "comm/mpi_plugin.h"

#include "base/error.h"
#include "base/format.h"
#include "base/plugin.h"

namespace deltatune {
namespace {

struct Opened {
  const MpiPlugin* plugin = nullptr;
  std::string why;
};

}  // namespace

const MpiPlugin* mpi_plugin(std::string& why) {
  static const Opened opened = [] {
    Opened out;
    out.plugin = static_cast<const MpiPlugin*>(
        open_plugin("libdeltatune_mpi.so", mpi_plugin_symbol, mpi_plugin_abi, out.why));
    return out;
  }();
  why = opened.why;
  return opened.plugin;
}

std::unique_ptr<Communicator> make_mpi_communicator(int rank, int world_size,
                                                    std::chrono::milliseconds timeout) {
  std::string why;
  const MpiPlugin* plugin = mpi_plugin(why);
  if (!plugin) {
    throw Error(ErrorKind::resource, "several ranks on the CPU need the MPI plug-in: " + why, "nproc",
                "`./dev build` builds it where libopenmpi-dev is installed; or train on one rank");
  }
  std::unique_ptr<Communicator> comm = plugin->make(timeout);
  if (comm->rank() != rank || comm->world_size() != world_size) {
    throw Error(ErrorKind::distributed,
                format("the environment says rank {} of {}, MPI says rank {} of {}", rank, world_size,
                       comm->rank(), comm->world_size()),
                plugin->version(),
                "start CPU ranks with --nproc or mpirun; unset RANK and WORLD_SIZE of another launcher");
  }
  return comm;
}

}  // namespace deltatune
