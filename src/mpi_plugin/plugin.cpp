// The plug-in's table and its one exported function.
#include <mpi.h>

#include <array>

#include "mpi_plugin/mpi_communicator.h"

namespace deltatune {
namespace {

std::string version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string all(text.data());
  return all.substr(0, all.find(','));
}

}  // namespace
}  // namespace deltatune

extern "C" __attribute__((visibility("default"))) const void* deltatune_mpi_plugin(int abi) {
  static const deltatune::MpiPlugin plugin = {&deltatune::make_mpi, &deltatune::version};
  return abi == deltatune::mpi_plugin_abi ? &plugin : nullptr;
}
