// Layout of parameter groups in flat buffers.
//
// A group's parameters of the storage dtype lie one behind the other, those with a product gradient at the
// end, each starting at a multiple of 128 elements (every view is aligned in every dtype, and neither a range
// nor a chunk cuts a block of 8-bit moments, ops/moment_codes.h); the group is padded to a multiple of
// world_size * 128 elements and cut into equal chunks, one per rank. keep_f32 parameters of all groups form
// one small group of their own that every rank holds in full. Padding is zero in every buffer and stays zero.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/params.h"

namespace deltatune {

/// Where a parameter lies, in elements of its flat group.
struct Placement {
  bool in_f32_group = false;
  int64_t offset = 0;
};

/// A stretch of one flat buffer that the optimizer treats alike.
struct OptimizerRange {
  int64_t begin = 0;
  int64_t count = 0;
  bool decay = false;
};

/// Elements [begin, begin + count).
struct Stretch {
  int64_t begin = 0;
  int64_t count = 0;
};

struct ShardLayout {
  static constexpr int64_t alignment = 128;

  ShardLayout(const ParamTable& table, int world_size);

  /// Elements of a chunk of group g (the whole padded group / world_size).
  int64_t chunk(int group) const { return padded[static_cast<size_t>(group)] / world_size; }
  /// Ranges of [begin, begin + count) of a group, in coordinates that start at `begin`. group -1: the f32
  /// group.
  std::vector<OptimizerRange> ranges(const ParamTable& table, int group, int64_t begin, int64_t count) const;

  int world_size;
  std::vector<Placement> placements;  ///< per parameter
  std::vector<int64_t> padded;        ///< elements per group, padded
  std::vector<int64_t> summed;        ///< per group: elements in front of the first product gradient
  /// Per group: stretches of the padded group that no product gradient covers, in ascending order.
  std::vector<std::vector<Stretch>> unwritten;
  int64_t f32_elements = 0;  ///< elements of the f32 group
};

}  // namespace deltatune
