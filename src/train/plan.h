// plan: the real step on the null table. Same code as `train`, nothing computed, everything counted.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "comm/communicator.h"
#include "observe/device_card.h"
#include "tensor/memory_plan.h"
#include "train/communication.h"
#include "train/config.h"
#include "train/layout_advice.h"
#include "train/model_source.h"

namespace deltatune {

/// Totals of one op over the step of one rank. seconds: roofline time on the card, the larger of FLOPs at its
/// attainable matrix rate and bytes at its copy rate (0 without a card).
struct PlannedOp {
  std::string name;
  std::string kernel;  ///< what serves it: "plain", "cublaslt", ...
  bool slow = false;   ///< only its plain kernel fits: a run needs allow_slow_kernels
  int64_t calls = 0;
  double flops = 0;
  double bytes = 0;
  double seconds = 0;
};

struct PlanReport {
  std::string model;
  int64_t parameters = 0;
  int64_t layers = 0, delta_layers = 0;
  int world_size = 1;
  int nodes = 1;
  std::string recompute;
  std::string recompute_detail;         ///< what is kept, and the time that computing the rest again takes
  std::map<std::string, int64_t> kept;  ///< part of a block -> blocks that keep it
  double recompute_seconds = 0;         ///< roofline, of one micro-batch
  int64_t max_tokens = 0, accumulation = 1, document_length = 0;
  int64_t max_documents = 0;      ///< segments a row may have
  MemoryPlan memory;              ///< of one rank
  uint64_t memory_available = 0;  ///< of the card, or of this machine
  std::vector<PlannedOp> ops;     ///< of one optimizer step, by time or bytes, largest first
  double flops_per_step = 0;      ///< one rank
  CommTotals comm;                ///< bytes that one rank sends per step
  std::string embedding_rows;     ///< "yes", "gradient": only in place of the table's; "no": it travels whole
  std::optional<DeviceCard> card;
  Communication links;         ///< those bytes on the card's links
  bool release = false;        ///< gradient_release
  double host_link_bytes = 0;  ///< of a step, one way: offloaded moments between device and host memory
  double host_link_seconds = 0;
  uint64_t host_bytes() const;         ///< of memory: what lies in host memory
  std::optional<LayoutAdvice> advice;  ///< where the run does not fit, and another layout does
  bool fits() const { return memory.total() <= memory_available; }
  /// Roofline time of the step's compute; 0 without a card.
  double seconds() const;
  /// Of a step of one device, with the communication and the moments' way that compute cannot hide.
  double tokens_per_second() const;

  json::Value to_json() const;
  std::string to_text() const;
};

/// nproc ranks on each of `nodes` nodes. `card`: plan for that device (its kernels' scratch sizes, memory and
/// rates); nullopt: this machine's CPU.
PlanReport make_plan(const Config& config, const ModelSource& source, const std::optional<DeviceCard>& card);

/// The same config on 2, 4, ... 1,024 devices in nodes of `per_node`, one line each.
std::string scaling_table(const Config& config, const ModelSource& source, const DeviceCard& card,
                          int per_node);

}  // namespace deltatune
