// A suspected cause is a rewriting of names; the one that turns most unknown names into known ones is
// reported.
#include "io/tensor_names.h"

#include <algorithm>
#include <array>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "io/safetensors.h"

namespace deltatune {
namespace {

struct Rewriting {
  std::string_view from;
  std::string_view to;
  bool anywhere;  // else at the start of the name only
  std::string_view cause;
};

constexpr std::string_view transformers_bug =
    "saved by transformers 5.5.0 to 5.5.3, which wrote wrong prefixes";
constexpr std::string_view mlx = "names as MLX writes them";
constexpr std::array<Rewriting, 16> rewritings{{
    {"model.language_model.language_model.language_model.", "model.language_model.", false, transformers_bug},
    {"model.language_model.language_model.", "model.language_model.", false, transformers_bug},
    {"model.language_model.visual.", "model.visual.", false, transformers_bug},
    {"language_model.model.", "model.language_model.", false, mlx},
    {"language_model.model.", "model.", false, mlx},
    {"vision_tower.", "model.visual.", false, mlx},
    {"language_model.lm_head.", "lm_head.", false, mlx},
    {"model.language_model.", "model.", false,
     "composite names under a text-only config.json (model_type should be \"qwen3_5\")"},
    {"model.", "model.language_model.", false,
     "text-only names under a composite config.json (model_type should be \"qwen3_5_text\")"},
    {"base_model.model.", "", false, "saved through a PEFT wrapper"},
    {"module.", "", false, "saved through DistributedDataParallel"},
    {"_orig_mod.", "", true, "saved through torch.compile"},
    {"_fsdp_wrapped_module.", "", true, "saved through FSDP"},
    {"model.model.", "model.", false, "a doubled prefix"},
    {"", "model.language_model.", false, "saved without the outer model"},
    {"", "model.", false, "saved without the outer model"},
}};

using Names = std::unordered_set<std::string_view>;

bool is_known(std::string_view name, const Names& expected, std::span<const std::string> carried) {
  if (expected.count(name)) return true;
  return std::any_of(carried.begin(), carried.end(),
                     [&](const std::string& p) { return name.starts_with(p); });
}

std::string rewrite(std::string_view name, const Rewriting& rule) {
  std::string out(name);
  if (!rule.anywhere) return name.starts_with(rule.from) ? out.replace(0, rule.from.size(), rule.to) : out;
  for (size_t at = 0; (at = out.find(rule.from, at)) != std::string::npos;) {
    out.replace(at, rule.from.size(), rule.to);
  }
  return out;
}

std::string list(std::span<const std::string_view> names) {
  constexpr size_t listed = 5;
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), listed); ++i) out += (i ? ", " : "") + shown(names[i]);
  if (names.size() > listed) out += format(", ... ({} in all)", names.size());
  return out;
}

}  // namespace

void check_tensor_names(std::span<const std::string> expected, std::span<const std::string> present,
                        std::span<const std::string> carried, std::string_view where) {
  const Names wanted(expected.begin(), expected.end());
  const Names there(present.begin(), present.end());
  std::vector<std::string_view> missing;
  std::vector<std::string_view> unknown;
  for (const std::string& name : expected) {
    if (!there.count(name)) missing.push_back(name);
  }
  for (const std::string& name : present) {
    if (!is_known(name, wanted, carried)) unknown.push_back(name);
  }
  if (missing.empty() && unknown.empty()) return;

  const Rewriting* best = nullptr;
  int64_t best_count = 0;
  for (const Rewriting& rule : rewritings) {
    const int64_t helped = std::count_if(unknown.begin(), unknown.end(), [&](std::string_view name) {
      const std::string renamed = rewrite(name, rule);
      return renamed != name && is_known(renamed, wanted, carried);
    });
    if (helped > best_count) {
      best = &rule;
      best_count = helped;
    }
  }
  std::string what = "the tensor names do not fit the model:";
  if (!missing.empty()) what += " missing " + list(missing);
  if (!unknown.empty()) what += std::string(missing.empty() ? "" : ";") + " unknown " + list(unknown);
  std::string fix = "check that config.json and the weights belong together";
  const bool adapter = std::any_of(unknown.begin(), unknown.end(), [](std::string_view name) {
    return name.find(".lora_") != std::string_view::npos ||
           name.find(".base_layer.") != std::string_view::npos;
  });
  if (adapter) {
    what += "; suspected cause: a LoRA adapter that was not merged";
    fix = "merge the adapter into the base model first (PEFT: merge_and_unload)";
  } else if (best) {
    what += format("; suspected cause: {}", best->cause);
    fix = format("rename {} tensors: {} -> {} (or fix config.json if the names are right)", best_count,
                 best->from.empty() ? "(start)" : best->from, best->to.empty() ? "(nothing)" : best->to);
  }
  throw Error(ErrorKind::model, std::move(what), std::string(where), std::move(fix));
}

}  // namespace deltatune
