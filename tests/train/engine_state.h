// What tests compare of an engine after training, on any device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "train/engine.h"

namespace deltatune {

/// Bytes of all weights, masters and moments that this rank holds.
inline std::vector<std::byte> state_bytes(Engine& engine) {
  std::vector<std::byte> out;
  const std::vector<StateTensor> state = engine.store().state();
  size_t bytes = 0;
  for (const StateTensor& tensor : state) bytes += tensor.data.bytes();
  out.resize(bytes);  // once: downloads write into it until sync
  size_t at = 0;
  for (const StateTensor& tensor : state) {
    engine.stream().download(out.data() + at, tensor.data);
    at += tensor.data.bytes();
  }
  engine.stream().sync();
  return out;
}

/// Nodes of all graphs that the engine has captured.
inline int64_t graph_nodes(const Engine& engine) {
  int64_t nodes = 0;
  for (int part = 0; part < StepGraphs::part_count; ++part)
    nodes += engine.graphs().nodes(static_cast<StepGraphs::Part>(part));
  return nodes;
}

}  // namespace deltatune
