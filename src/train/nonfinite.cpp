// Looking at what a step has left behind.
#include "train/nonfinite.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <vector>

#include "base/format.h"
#include "comm/exchange.h"

namespace deltatune {
namespace {

bool all_finite(Stream& stream, CTensor x) {
  std::vector<std::byte> bytes(x.bytes());
  stream.download(bytes.data(), x);
  stream.sync();
  constexpr int64_t piece = 4096;
  float values[piece];
  for (int64_t at = 0; at < x.count(); at += piece) {
    const int64_t count = std::min(piece, x.count() - at);
    convert(values, DType::f32, bytes.data() + static_cast<size_t>(at) * size_of(x.dtype), x.dtype, count);
    if (!std::all_of(values, values + count, [](float v) { return std::isfinite(v); })) return false;
  }
  return true;
}

// The first block whose input is not finite, layers() without one: the stream between blocks is a sum, in
// which what is not finite stays so.
int64_t first_bad_input(Engine& engine) {
  int64_t low = 0;
  int64_t high = engine.model().config().layers();
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (all_finite(engine.stream(), engine.model().block_input(middle))) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Groups in forward order, as the table has them.
std::set<int> bad_groups(const ParamTable& table, const std::vector<int>& params) {
  std::set<int> out;
  for (const int index : params) out.insert(table.params[static_cast<size_t>(index)].group);
  return out;
}

}  // namespace

void NonfiniteOrigin::add_to(json::Value& event) const {
  const auto add = [&](const char* key, const std::string& text) {
    if (!text.empty()) event.set(key, text);
  };
  add("where", where);
  add("pass", pass);
  if (layer >= 0) event.set("layer", layer);
  add("group", group);
  add("tensor", tensor);
  add("first_group", first_group);
  add("last_group", last_group);
  if (groups > 0) event.set("gradient_groups", groups);
}

NonfiniteOrigin find_nonfinite(Engine& engine, int64_t rows) {
  const ModelParams& params = engine.model().params();
  const auto& groups = params.table.groups;
  const int64_t layers = engine.model().config().layers();
  const auto name_of_group = [&](int group) { return groups[static_cast<size_t>(group)].name; };
  NonfiniteOrigin out;
  const std::vector<int> bad_params = engine.store().nonfinite_gradients(engine.stream());
  const std::set<int> bad = bad_groups(params.table, bad_params);
  out.groups = static_cast<int64_t>(bad.size());
  if (!bad.empty()) {
    out.first_group = name_of_group(*bad.begin());
    out.last_group = name_of_group(*bad.rbegin());
  }
  const int64_t input = min_over_ranks(engine.comm(), first_bad_input(engine));
  const bool known = !engine.options().gradient_release;  // the gradients
  if (input < layers) {
    out.pass = "forward";
    out.layer = input - 1;
    out.group = name_of_group(input == 0 ? params.embedding_group
                                         : params.block_groups[static_cast<size_t>(input - 1)]);
    out.where = input == 0 ? "the embedding, forward" : format("layer {}, forward", out.layer);
  } else if (!known || bad.empty()) {
    out.where = rows == 1 && bad.empty() && known ? "the loss" : "";
  } else if (bad.contains(params.final_group)) {
    // Behind the last block's input: the block itself, the head and the loss have no record of their own. Nor
    // have earlier rows, and gradients are the sum of all rows: which of them it was cannot be told.
    if (rows == 1) {
      out.layer = layers - 1;
      out.where = format("layer {} or behind it (head, loss)", layers - 1);
    } else {
      out.where = format("an earlier row of the step, or layer {} or behind it (head, loss)", layers - 1);
    }
  } else {
    out.pass = "backward";
    out.group = out.last_group;
    // The last of the group in forward order is the first that the pass backward comes to.
    out.tensor = params.table.params[static_cast<size_t>(bad_params.back())].name;
    const auto block = std::find(params.block_groups.begin(), params.block_groups.end(), *bad.rbegin());
    if (block != params.block_groups.end()) out.layer = block - params.block_groups.begin();
    out.where = out.layer >= 0 ? format("layer {}, backward, {}", out.layer, out.tensor)
                               : format("the {}, backward", out.group);
  }
  return out;
}

}  // namespace deltatune
