// Offsets of parameters in flat groups.
#include "shard/layout.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace deltatune {
namespace {
int64_t round_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}
}  // namespace

ShardLayout::ShardLayout(const ParamTable& table, int world) : world_size(world) {
  DELTATUNE_ASSERT(world >= 1);
  placements.resize(table.params.size());
  for (const ParamGroup& group : table.groups) {
    int64_t used = 0;
    std::vector<Stretch> gaps;
    for (const bool product : {false, true}) {
      if (product) summed.push_back(used);
      for (const int index : group.params) {
        const Param& param = table.params[static_cast<size_t>(index)];
        if (param.product_gradient != product) continue;
        Placement& place = placements[static_cast<size_t>(index)];
        int64_t& cursor = param.keep_f32 ? f32_elements : used;
        place = {param.keep_f32, cursor};
        cursor = round_up(cursor + param.shape.count(), alignment);
        const int64_t end = place.offset + param.shape.count();
        if (product && !param.keep_f32 && end < used) gaps.push_back({end, used - end});
      }
      if (!product && used > 0) gaps.push_back({0, used});
    }
    padded.push_back(round_up(used, alignment * world));
    if (used < padded.back()) gaps.push_back({used, padded.back() - used});
    unwritten.push_back(std::move(gaps));
  }
}

std::vector<OptimizerRange> ShardLayout::ranges(const ParamTable& table, int group, int64_t begin,
                                                int64_t count) const {
  std::vector<size_t> order;
  for (size_t i = 0; i < table.params.size(); ++i) {
    if (placements[i].in_f32_group != (group < 0) || (group >= 0 && table.params[i].group != group)) continue;
    order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return placements[a].offset < placements[b].offset; });
  std::vector<OptimizerRange> out;
  for (const size_t i : order) {
    const Param& param = table.params[i];
    const Placement& place = placements[i];
    const int64_t first = std::max(place.offset, begin);
    const int64_t last = std::min(place.offset + param.shape.count(), begin + count);
    if (first >= last) continue;
    // Neighbours that are treated alike become one range: the padding between them is zero everywhere.
    if (!out.empty() && out.back().decay == param.decay &&
        first - begin - (out.back().begin + out.back().count) < alignment) {
      out.back().count = last - begin - out.back().begin;
    } else {
      out.push_back({first - begin, last - first, param.decay});
    }
  }
  return out;
}

}  // namespace deltatune
