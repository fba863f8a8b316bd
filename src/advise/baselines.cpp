// Baselines of the H200.
//
// Times: "extrapolated.ops_ms" of the "block" part of bench/results/2026-11-30-h200-step-27b-rivals-5.json (a
// step of a 27B, 8,192 tokens, bf16, recompute: block, graphs). Least times: "roofline_s" of `deltatune plan
// --device h200 --json` for the same model, tokens and recompute. Attention is missing: its least time
// depends on the documents' lengths, which that plan does not have. So are the smallest
// ops.
#include "advise/baselines.h"

#include <array>

namespace deltatune {
namespace {

struct Baseline {
  std::string_view op;
  double share;
};

constexpr std::array h200 = {
    Baseline{"matmul", 0.888},
    Baseline{"adamw", 0.876},
    Baseline{"swiglu_forward", 0.867},
    Baseline{"swiglu_backward", 0.953},
    Baseline{"sum_squares", 0.900},
    Baseline{"add_rmsnorm_forward", 0.843},
    Baseline{"add_rmsnorm_backward", 0.863},
    Baseline{"gated_delta_forward", 0.218},
    Baseline{"gated_delta_backward", 0.209},
    Baseline{"gdn_prologue_forward", 0.737},
    Baseline{"gdn_prologue_backward", 0.585},
    Baseline{"gated_rmsnorm_forward", 0.830},
    Baseline{"gated_rmsnorm_backward", 0.853},
    Baseline{"rmsnorm_forward", 0.648},
    Baseline{"cross_entropy", 0.607},
    Baseline{"qk_norm_rope_forward", 0.829},
    Baseline{"qk_norm_rope_backward", 0.804},
};

}  // namespace

std::optional<double> baseline_share(std::string_view card, std::string_view op) {
  if (card != "h200") return std::nullopt;
  for (const Baseline& baseline : h200) {
    if (baseline.op == op) return baseline.share;
  }
  return std::nullopt;
}

}  // namespace deltatune
