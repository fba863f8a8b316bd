// The list of layouts and the search through it.
#include "train/layout_advice.h"

#include "base/format.h"

namespace deltatune {
namespace {

void cut_states(MemoryLayout& layout) {
  Config& c = layout.config;
  if (c.shard != "none" || c.nproc * c.nodes == 1) return;
  c.shard = "full";
  layout.changes.emplace_back("shard: full");
  layout.costs.emplace_back("weights are gathered block by block, in every forward and backward pass");
}

void bf16_weights(MemoryLayout& layout) {
  Config& c = layout.config;
  if (c.dtype != "bf16" || (!c.master_weights && c.weight_rounding == "stochastic")) return;
  c.master_weights = false;
  c.weight_rounding = "stochastic";
  layout.changes.insert(layout.changes.end(), {"master_weights: false", "weight_rounding: stochastic"});
  layout.costs.push_back("weights are kept in bf16 alone and rounded at random, right on average");
}

void coded_moments(MemoryLayout& layout) {
  Config& c = layout.config;
  if (c.optim == "adamw_8bit") return;
  c.optim = "adamw_8bit";
  layout.changes.emplace_back("optim: adamw_8bit");
  if (c.optim_dtype != "f32") layout.changes.emplace_back("optim_dtype: f32");
  c.optim_dtype = "f32";
  layout.costs.emplace_back("moments have 3 bits of mantissa, rounded at random, right on average");
}

void offload(MemoryLayout& layout) {
  Config& c = layout.config;
  if (c.offload_optimizer) return;
  c.offload_optimizer = true;
  layout.changes.emplace_back("offload_optimizer: true");
  layout.costs.push_back(c.gradient_release
                             ? "moments cross the link to host memory in every step, beside backward"
                             : "moments cross the link to host memory in every step, and the step waits");
}

void release(MemoryLayout& layout) {
  Config& c = layout.config;
  if (c.gradient_release) return;
  c.gradient_release = true;
  layout.changes.emplace_back("gradient_release: true");
  std::string recipe = "gradients are not kept";
  if (c.max_grad_norm > 0) {
    layout.changes.emplace_back("max_grad_norm: 0");
    recipe += ", so nothing is clipped";
  }
  if (c.gradient_accumulation_steps > 1) {
    layout.changes.emplace_back("gradient_accumulation_steps: 1");
    recipe += format(", and an update has one micro-batch in place of {}: lower learning_rate",
                     c.gradient_accumulation_steps);
  }
  c.max_grad_norm = 0;
  c.gradient_accumulation_steps = 1;
  layout.costs.push_back(std::move(recipe));
}

}  // namespace

std::vector<MemoryLayout> memory_layouts(const Config& config, bool gpu) {
  using Change = void (*)(MemoryLayout&);
  std::vector<std::vector<Change>> lists = {{}, {bf16_weights}, {bf16_weights, coded_moments}};
  if (gpu) {
    lists.push_back({bf16_weights, offload});
    lists.push_back({bf16_weights, coded_moments, offload});
  }
  lists.push_back({bf16_weights, coded_moments, release});
  if (gpu) lists.push_back({bf16_weights, coded_moments, release, offload});
  std::vector<MemoryLayout> out;
  for (const auto& list : lists) {
    MemoryLayout layout{config, {}, {}};
    cut_states(layout);
    for (const Change change : list) change(layout);
    const bool known = layout.changes.empty() || (!out.empty() && out.back().changes == layout.changes);
    if (!known) out.push_back(std::move(layout));
  }
  return out;
}

std::optional<LayoutAdvice> advise_layout(const Config& config, bool gpu, uint64_t available,
                                          const std::function<LayoutBytes(const Config&)>& bytes_of) {
  for (const MemoryLayout& layout : memory_layouts(config, gpu)) {
    const LayoutBytes bytes = bytes_of(layout.config);
    if (bytes.device <= available) return LayoutAdvice{layout.changes, layout.costs, bytes};
  }
  return std::nullopt;
}

json::Value LayoutAdvice::to_json() const {
  json::Value out;
  json::Array keys, words;
  for (const std::string& change : changes) keys.emplace_back(change);
  for (const std::string& cost : costs) words.emplace_back(cost);
  out.set("changes", std::move(keys));
  out.set("costs", std::move(words));
  out.set("device_bytes", static_cast<int64_t>(bytes.device));
  out.set("host_bytes", static_cast<int64_t>(bytes.host));
  out.set("link_s", bytes.link_seconds);
  return out;
}

std::string LayoutAdvice::to_text() const {
  std::string list;
  for (const std::string& change : changes) list += (list.empty() ? "" : ", ") + change;
  std::string out = format("fits with {}: {}", list, format_bytes(bytes.device));
  // Staging of rows and scalars is always there and does not count.
  if (bytes.host > uint64_t{1} << 26) out += format(" and {} of host memory", format_bytes(bytes.host));
  out += "\n";
  for (const std::string& cost : costs) out += "  it costs: " + cost + "\n";
  if (bytes.link_seconds > 0)
    out += format("  {:.0f} ms a step on the link, each way\n", bytes.link_seconds * 1e3);
  return out;
}

}  // namespace deltatune
