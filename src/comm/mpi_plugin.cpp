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

Error no_mpi_plugin(const std::string& why) {
  return Error(ErrorKind::resource, "several ranks on the CPU need the MPI plug-in: " + why, "nproc",
               "install Open MPI (Debian: libopenmpi3 and openmpi-bin; where the plug-in has to be built, "
               "libopenmpi-dev and then `./dev build`), or train on one rank");
}

std::unique_ptr<Communicator> make_mpi_communicator(int rank, int world_size,
                                                    std::chrono::milliseconds timeout) {
  std::string why;
  const MpiPlugin* plugin = mpi_plugin(why);
  if (!plugin) throw no_mpi_plugin(why);
  std::unique_ptr<Communicator> comm = plugin->make(timeout);
  if (comm->rank() != rank || comm->world_size() != world_size) {
    throw Error(
        ErrorKind::usage,
        format("the environment says rank {} of {}, MPI says rank {} of {}", rank, world_size, comm->rank(),
               comm->world_size()),
        plugin->version(),
        "start CPU ranks with --nproc or mpirun; another launcher does not bring MPI, unset its RANK and "
        "WORLD_SIZE");
  }
  return comm;
}

}  // namespace deltatune
