// What the MPI plug-in offers, before it goes into its table (comm/mpi_plugin.h says what it does).
#pragma once

#include <chrono>
#include <memory>

#include "comm/mpi_plugin.h"

namespace deltatune {

std::unique_ptr<Communicator> make_mpi(std::chrono::milliseconds timeout);

}  // namespace deltatune
