// Bytes by link, seconds by phase.
#include "train/communication.h"

#include <algorithm>

namespace deltatune {
namespace {

struct Traffic {
  double gpu = 0, node = 0;  ///< bytes
  double seconds(const DeviceCard& card) const {
    return std::max(gpu / (card.gpu_link_gb_s * 1e9), node / (card.node_link_gb_s * 1e9));
  }
  Traffic operator+(const Traffic& other) const { return {gpu + other.gpu, node + other.node}; }
  Traffic operator*(double factor) const { return {gpu * factor, node * factor}; }
};

// `sent`: by one rank to all others, (world - 1) / world of the full buffers.
Traffic gathered(double sent, const CommunicationInput& in) {
  const double world = in.per_node * in.nodes, full = sent * world / (world - 1);
  return {full * (in.per_node - 1) / in.per_node, full * (in.nodes - 1) / in.nodes / in.per_node};
}
Traffic reduced(double sent, const CommunicationInput& in) {
  const double world = in.per_node * in.nodes, full = sent * world / (world - 1);
  return {full * (in.per_node - 1) / world, full * (in.nodes - 1) / in.nodes};
}

}  // namespace

Communication forecast_communication(const CommunicationInput& in, const DeviceCard& card) {
  Communication out;
  if (in.per_node * in.nodes < 2) return out;
  const Traffic forward = gathered(in.forward_gather, in);
  const Traffic lookup = reduced(in.lookup_reduce, in);
  const Traffic lookup_gradient = gathered(in.lookup_gather, in);
  const Traffic again = gathered(in.step.gather_bytes - in.forward_gather - in.lookup_gather, in);
  const Traffic reduce = reduced(in.step.reduce_bytes - in.lookup_reduce, in);
  const Traffic all = forward + again + reduce + lookup + lookup_gradient;
  out.gpu_link_bytes = all.gpu;
  out.node_link_bytes = all.node;
  out.gpu_link_seconds = all.gpu / (card.gpu_link_gb_s * 1e9);
  out.node_link_seconds = all.node / (card.node_link_gb_s * 1e9);

  if (in.at_the_end) {
    out.exposed_seconds = all.seconds(card);
    return out;
  }
  const double first = gathered(in.first_gather, in).seconds(card);
  const double last = reduced(in.last_reduce, in).seconds(card);
  out.exposed_seconds = std::max(first, forward.seconds(card) - in.forward_seconds) +
                        std::max(last, (again + reduce).seconds(card) - in.backward_seconds) +
                        lookup.seconds(card) + lookup_gradient.seconds(card);
  return out;
}

}  // namespace deltatune
