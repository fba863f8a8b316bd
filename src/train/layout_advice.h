// Which memory layout to take where a run does not fit: the layouts in order of what they cost, and the first
// of them that fits.
//
// Each layout is a few keys changed; a key that the configuration has already is left alone. Cheapest first:
// what only rounds differently, then what takes time on the link to host memory, then gradient release, which
// is another recipe (no clipping, one micro-batch an update). Not here: fewer tokens, more devices.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "train/config.h"

namespace deltatune {

/// A configuration that needs less memory.
struct MemoryLayout {
  Config config;
  std::vector<std::string> changes;  ///< "optim: adamw_8bit": what differs
  std::vector<std::string> costs;    ///< in words, one for each kind of change
};

/// What is there to try for this configuration, cheapest first. gpu: host memory is another memory.
std::vector<MemoryLayout> memory_layouts(const Config& config, bool gpu);

/// What a layout takes, of the device and of the host.
struct LayoutBytes {
  uint64_t device = 0;
  uint64_t host = 0;
  double link_seconds = 0;  ///< per step, one way, of moments on the link to host memory
};

/// The first layout of memory_layouts() that fits.
struct LayoutAdvice {
  std::vector<std::string> changes, costs;
  LayoutBytes bytes;
  json::Value to_json() const;
  /// Lines for a person.
  std::string to_text() const;
};
std::optional<LayoutAdvice> advise_layout(const Config& config, bool gpu, uint64_t available,
                                          const std::function<LayoutBytes(const Config&)>& bytes_of);

}  // namespace deltatune
