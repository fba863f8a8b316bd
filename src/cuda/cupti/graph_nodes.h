// Which work of a CUDA graph is whose: the id that was open in the capturing thread when a node was made.
//
// CUPTI calls back for every node that is made and for every copy of it when the graph is instantiated, and
// its records of kernels name the node that they ran for. Ids of nodes are not used twice in a process, so
// what is noted stays true; a node costs 40 bytes or so.
#pragma once

#include <cstdint>
#include <string>

namespace deltatune::cuda {

/// From now on nodes are noted, in all threads, until the process ends. False, and why, where CUPTI has
/// another subscriber. Thread-safe; the second call does nothing.
bool watch_graph_nodes(std::string& why);

/// Of the calling thread: the id that nodes are noted with. They nest; beyond 64 the outer one counts.
void open_id(uint64_t id);
void close_id();

/// The id that the node was noted with; 0: none.
uint64_t noted_id(uint64_t node);

}  // namespace deltatune::cuda
