// MemoryPlan: the list of named regions that a device was asked for. Not an estimate: Device::allocate
// appends to it, so the plan of a run is what the run allocated, and the plan of a null device is what a run
// would.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace deltatune {

/// How long the bytes of a region are needed; what a reader of the plan wants to know first.
enum class Lifetime {
  run,    ///< from start to end: weights, optimizer states, gradients
  step,   ///< forward to backward of one micro-batch: block inputs, saved activations, batch
  block,  ///< reused by each block: recompute slot, working buffers, gathered weights
  op,     ///< reused by each op: kernel scratch
};

/// "run", "step", "block" or "op".
const char* name_of(Lifetime lifetime);

struct Region {
  std::string name;   ///< what it holds, e.g. "block inputs"
  std::string owner;  ///< which part of the program asked, e.g. "params", "model"
  Lifetime lifetime = Lifetime::run;
  size_t bytes = 0;
  bool host = false;  ///< host memory beside a GPU: listed, but no part of the device's total
};

class MemoryPlan {
 public:
  void add(Region region) { regions_.push_back(std::move(region)); }
  const std::vector<Region>& regions() const { return regions_; }
  /// Bytes of the device's memory.
  size_t total() const;

 private:
  std::vector<Region> regions_;
};

}  // namespace deltatune
