// Costs of parts on the null device, and the greedy choice.
#include "train/recompute.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "comm/communicator.h"
#include "comm/gpu_memory.h"
#include "ops/null_device.h"
#include "ops/op.h"
#include "train/setup.h"

namespace deltatune {
namespace {

constexpr auto part_count = static_cast<size_t>(SavedPart::count);

struct Policy {
  const char* name;
  Keep (*keep)();
};
constexpr Policy policies[] = {{"none", Keep::all}, {"cheap", Keep::outputs}, {"block", Keep::nothing}};

SavedPart part_of(size_t i) {
  return static_cast<SavedPart>(i);
}

// Weights that have a shape but no memory.
std::vector<CTensor> weight_shapes(const ParamTable& table, DType storage) {
  Arena arena;
  std::vector<CTensor> out;
  for (const Param& param : table.params)
    out.push_back(arena.take(param.keep_f32 ? compute_dtype(storage) : storage, param.shape));
  return out;
}

// What the parts of one kind of block are worth.
struct PartCosts {
  std::array<double, part_count> seconds{};  // to make it again
  std::array<size_t, part_count> bytes{};
  double all_seconds = 0;  // to make all of them again
  size_t all_bytes = 0;

  size_t unkept_bytes(const SavedParts& kept) const {
    size_t sum = 0;
    for (size_t i = 0; i < part_count; ++i) sum += kept.has(part_of(i)) ? 0 : bytes[i];
    return sum;
  }
  double unkept_seconds(const SavedParts& kept) const {
    double sum = 0;
    for (size_t i = 0; i < part_count; ++i) sum += kept.has(part_of(i)) ? 0 : seconds[i];
    return sum;
  }
};

// Recomputes single blocks of the model on the null device.
class CostMeter {
 public:
  CostMeter(const EngineOptions& options, const ModelSource& source, const DeviceFacts& facts,
            const DeviceCard& card, int64_t document_length)
      : card_(card),
        device_(make_null_device(facts)),
        model_(source.config, make_params(source.config, source.tied), options.storage, options.tokens,
               options.max_documents),
        batch_(options.tokens, options.max_documents),
        weights_(weight_shapes(model_.params().table, options.storage)) {
    Arena arena;
    batch_.bind(arena);
    const auto stream = device_->make_stream("costs");
    row_ = batch_.upload(*stream, synthetic_batch(options.tokens, document_length, options.max_documents));
  }

  PartCosts of_block(int64_t layer) {
    PartCosts out;
    const Measured nothing = measure(layer, {});
    const Measured all = measure(layer, SavedParts::all());
    out.all_seconds = nothing.seconds - all.seconds;
    for (size_t i = 0; i < part_count; ++i) {
      const Measured one = measure(layer, {part_of(i)});
      out.seconds[i] = std::max(0.0, nothing.seconds - one.seconds);
      out.bytes[i] = nothing.shared - one.shared;
      out.all_bytes += out.bytes[i];
    }
    return out;
  }

 private:
  struct Measured {
    double seconds = 0;
    size_t shared = 0;
  };
  Measured measure(int64_t layer, SavedParts kept) {
    Keep keep = Keep::all();  // of all other blocks: they then take nothing from the shared arena
    keep.blocks.assign(static_cast<size_t>(model_.config().layers()), SavedParts::all());
    keep.blocks[static_cast<size_t>(layer)] = kept;
    Arena kept_arena, shared, work;
    model_.bind(kept_arena, shared, work, keep);
    const auto stream = device_->make_stream("costs");
    model_.recompute_block(*stream, weights_, layer, row_);
    Measured out;
    out.shared = shared.high_water();
    for (const OpTotals& t : stream->totals())
      out.seconds += std::max(t.flops / (card_.gemm_tflops * 1e12), t.bytes / (card_.copy_gb_s * 1e9));
    return out;
  }

  const DeviceCard& card_;
  std::unique_ptr<Device> device_;
  Model model_;
  DeviceBatch batch_;
  std::vector<CTensor> weights_;
  RowInputs row_;
};

// Both kinds of blocks, and which block is of which.
struct ModelCosts {
  std::array<PartCosts, 2> kinds;
  std::vector<size_t> kind_of;

  ModelCosts(CostMeter& meter, const ModelConfig& config) {
    std::array<bool, 2> known{};
    for (int64_t l = 0; l < config.layers(); ++l) {
      const size_t kind = config.full_attention[static_cast<size_t>(l)] ? 1 : 0;
      kind_of.push_back(kind);
      if (!known[kind]) kinds[kind] = meter.of_block(l);
      known[kind] = true;
    }
  }
  const PartCosts& of(size_t block) const { return kinds[kind_of[block]]; }
  double seconds(const Keep& keep) const {
    double sum = 0;
    for (size_t b = 0; b < kind_of.size(); ++b) sum += of(b).unkept_seconds(keep.of(static_cast<int64_t>(b)));
    return sum;
  }
};

size_t plan_of(const Config& config, const ModelSource& source, const DeviceFacts& facts, int world_size,
               const Keep& keep) {
  const auto device = make_null_device(facts);
  const auto comm = make_null_communicator(world_size);
  const CommMemory exchange = allocate_comm_memory(*device, world_size);
  const Engine engine(*device, *comm, source.config, source.tied, engine_options(config, keep, true));
  return device->plan().total();
}

// Adds the parts of all blocks in the order of time saved per byte, each where it still fits. `base_bytes`:
// the plan that keeps nothing. What is kept leaves the arena that the blocks share, so the plan grows by less
// than the bytes of the part where all blocks keep it.
Keep greedy(const ModelCosts& costs, size_t base_bytes, uint64_t budget_bytes) {
  struct Candidate {
    size_t block, part;
    double worth;
  };
  const size_t blocks = costs.kind_of.size();
  std::vector<Candidate> candidates;
  size_t shared_before = 0;
  for (size_t b = 0; b < blocks; ++b) {
    const PartCosts& c = costs.of(b);
    shared_before = std::max(shared_before, c.all_bytes);
    for (size_t p = 0; p < part_count; ++p) {
      if (c.bytes[p] > 0) candidates.push_back({b, p, c.seconds[p] / static_cast<double>(c.bytes[p])});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& x, const Candidate& y) {
    return x.worth != y.worth ? x.worth > y.worth : x.part < y.part;
  });
  Keep keep;
  keep.blocks.resize(blocks);
  size_t kept_bytes = 0;
  for (const Candidate& candidate : candidates) {
    const size_t bytes = costs.of(candidate.block).bytes[candidate.part];
    SavedParts& parts = keep.blocks[candidate.block];
    const SavedParts before = parts;
    parts.add(part_of(candidate.part));
    size_t shared = 0;
    for (size_t b = 0; b < blocks; ++b) shared = std::max(shared, costs.of(b).unkept_bytes(keep.blocks[b]));
    if (base_bytes - shared_before + shared + kept_bytes + bytes <= budget_bytes) {
      kept_bytes += bytes;
    } else {
      parts = before;
    }
  }
  return keep;
}

std::string name_of_keep(const Keep& keep, int64_t blocks) {
  for (const Policy& policy : policies) {
    const Keep fixed = policy.keep();
    bool same = true;
    for (int64_t b = 0; b < blocks; ++b) same = same && keep.of(b) == fixed.of(b);
    if (same) return policy.name;
  }
  return "auto";
}

}  // namespace

Keep keep_of(const std::string& recompute) {
  for (const Policy& policy : policies) {
    if (recompute == policy.name) return policy.keep();
  }
  DELTATUNE_ASSERT(false && "auto is not one policy");
  return {};
}

uint64_t recompute_margin(Target target) {
  return target == Target::cuda ? uint64_t{1} << 30 : uint64_t{256} << 20;
}

KeepChoice choose_keep(const Config& config, const ModelSource& source, const DeviceFacts& facts,
                       int world_size, uint64_t budget_bytes, const std::optional<DeviceCard>& card) {
  const DeviceCard rates = card ? *card : device_card(facts.target == Target::cuda ? "h200" : "cpu-laptop");
  EngineOptions options = engine_options(config, Keep::nothing(), true);
  CostMeter meter(options, source, facts, rates, std::min(config.max_length, config.max_tokens));
  const ModelCosts costs(meter, source.config);
  KeepChoice choice;
  if (config.recompute == "auto") {
    const uint64_t margin = recompute_margin(facts.target);
    const size_t base = plan_of(config, source, facts, world_size, Keep::nothing());
    choice.keep = greedy(costs, base, budget_bytes > margin ? budget_bytes - margin : 0);
  } else {
    choice.keep = keep_of(config.recompute);
  }
  choice.plan_bytes = plan_of(config, source, facts, world_size, choice.keep);
  choice.name = name_of_keep(choice.keep, source.config.layers());
  for (int64_t b = 0; b < source.config.layers(); ++b) {
    for (size_t p = 0; p < part_count; ++p) {
      const bool there = costs.of(static_cast<size_t>(b)).bytes[p] > 0;
      if (there && choice.keep.of(b).has(part_of(p))) ++choice.blocks[deltatune::name_of(part_of(p))];
    }
  }
  choice.recompute_seconds = costs.seconds(choice.keep);
  choice.block_seconds = costs.seconds(Keep::nothing());
  return choice;
}

std::string KeepChoice::describe() const {
  std::string list;
  for (const auto& [part, count] : blocks)
    list += format("{}{} of {}", list.empty() ? "" : ", ", part, count);
  return format(
      "kept: {} blocks; the rest is computed again in {:.1f} ms of a micro-batch (block: {:.1f} ms)",
      list.empty() ? "nothing but the inputs of all" : list, recompute_seconds * 1e3, block_seconds * 1e3);
}

}  // namespace deltatune
