// StepRoofline: the least time that a device of a card's rates needs for the rows of a step, as laid out and
// with the activations that this run computes again.
//
// The rows run through the step on the null table, as `plan` does: each op costs the larger of its FLOPs at
// the card's attainable matrix rate and its bytes at the card's copy rate, summed over the step. Filler costs
// what it costs; communication and the moments' way to host memory are not in it.
#pragma once

#include <array>
#include <memory>

#include "comm/communicator.h"
#include "observe/device_card.h"
#include "tensor/device.h"
#include "train/engine.h"

namespace deltatune {

/// Sum over ops: the larger of FLOPs at the card's matrix rate and bytes at its copy rate.
double roofline_seconds(const std::array<OpTotals, max_ops>& totals, const DeviceCard& card);

class StepRoofline {
 public:
  /// `options` of the run's engine. The engine that is made here holds no memory but its tables.
  StepRoofline(const ModelConfig& config, bool tied, const EngineOptions& options, const DeviceFacts& facts,
               int world_size, DeviceCard card);

  /// A new step.
  void begin();
  /// One more row of it.
  void row(const Batch& batch);
  /// Of the step so far, its update included, on one device.
  double seconds() const;
  /// The step's matrix products alone: their FLOPs at the card's matrix rate.
  double matmul_seconds() const;

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<Engine> engine_;
  DeviceCard card_;
  bool release_;
  bool first_ = true;
  std::array<OpTotals, max_ops> before_{};  ///< the engine's counts at the start of the step
  std::array<OpTotals, max_ops> update_{};  ///< costs of an update, where rows do not make it themselves
};

}  // namespace deltatune
