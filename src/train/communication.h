// What a step's collectives cost on the links of a device card, for plan: bytes by class of link, seconds,
// and how much of them no compute can hide. Arithmetic only.
//
// Model. Ranks are nodes of per_node devices. A gathered byte reaches every device of a node over the GPU
// links, and every node once over the node links, which its devices share (what NCCL's rings do). A reduced
// byte goes straight from each rank to the one that adds it up in rank order, so every device receives its
// part from every device of the other nodes over its own node link. The two classes of links work at the same
// time. Gathers of forward and the gathers and reductions of backward hide behind the compute of their phase,
// except what the phase begins or ends with: the first block's weights, the last block's gradients and the
// embedding's, or what is looked up of it and the gradients of that. Latencies are not in it.
#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "observe/device_card.h"

namespace deltatune {

struct CommunicationInput {
  CommTotals step;            ///< of one rank and optimizer step, as communicators count
  double forward_gather = 0;  ///< bytes of step.gather_bytes that belong to forward, all micro-batches
  /// Bytes of forward_gather without which forward cannot begin, and of step.reduce_bytes that come behind
  /// all compute: the first block's, and the embedding's where it travels whole.
  double first_gather = 0, last_reduce = 0;
  /// Where rows of the embedding travel: bytes of step.reduce_bytes that forward begins with, and of
  /// step.gather_bytes that come behind all compute.
  double lookup_reduce = 0, lookup_gather = 0;
  double forward_seconds = 0;  ///< compute of forward, all micro-batches
  double backward_seconds = 0;
  bool at_the_end = false;  ///< all of it behind backward, with nothing to hide it (whole states)
  int per_node = 1;
  int nodes = 1;
};

struct Communication {
  double gpu_link_bytes = 0;   ///< sent by one device in a step to others of its node
  double node_link_bytes = 0;  ///< to other nodes
  double gpu_link_seconds = 0, node_link_seconds = 0;
  double exposed_seconds = 0;  ///< of a step
};

Communication forecast_communication(const CommunicationInput&, const DeviceCard&);

}  // namespace deltatune
