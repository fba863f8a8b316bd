// Facts of made-up runs for the tests of rules.
#pragma once

#include "advise/advise.h"
#include "advise/rules.h"

namespace deltatune {

/// A run that no rule has anything to say about: one GPU, packed rows, graphs, nothing recomputed, memory
/// used.
inline RunFacts sound_run() {
  RunFacts facts;
  facts.settings = {{"batching", "packed"},
                    {"max_tokens", "8192"},
                    {"max_length", "8192"},
                    {"dtype", "bf16"},
                    {"cuda_graph", "auto"},
                    {"recompute", "auto"},
                    {"train_on", "assistant"},
                    {"learning_rate", "1e-05"},
                    {"max_grad_norm", "1"},
                    {"shard", "full"},
                    {"reduce_dtype", "f32"},
                    {"streaming", "false"},
                    {"dataloader_prefetch_factor", "2"},
                    {"gradient_accumulation_steps", "4"}};
  facts.recompute = "auto";
  facts.steps = {.steps = 100,
                 .seconds = 1,
                 .slots = 32768,
                 .real_tokens = 32000,
                 .targets = 20000,
                 .fill = 32000.0 / 32768,
                 .data_wait = 0.001,
                 .exposed_comm = 0,
                 .host_bound = 0.01,
                 .mfu = 0.5,
                 .roofline = 0.8,
                 .utilisation = 0.98};
  facts.memory = 130.0 * (1 << 30);
  facts.memory_available = 139.0 * (1 << 30);
  facts.data = {.rows = 1000,
                .conversations = 1000,
                .truncated = 2,
                .dropped = 0,
                .all_masked = 0,
                .tokens = 1e6,
                .supervised = 6e5,
                .tokens_cut = 100,
                .length_p50 = 800,
                .length_p99 = 4000,
                .length_max = 9000};
  facts.card = device_card("h200");
  ProfileFacts profile;
  profile.device = "NVIDIA H200";
  profile.step_ms = 1000;
  profile.busy_ms = 985;
  profile.host_bound_ms = 10;
  profile.data_wait_ms = 1;
  profile.launches = 300;
  profile.kernels = 4000;
  profile.graph = true;
  profile.ops = {{"matmul", "", "forward", "cublaslt", false, 100, 800, 0.88},
                 {"gated_delta_forward", "", "forward", "mma", false, 48, 100, 0.22},
                 {"swiglu_backward", "", "backward", "plain", false, 64, 85, 0.93}};
  facts.profile = profile;
  facts.devices = {{.index = 0,
                    .utilisation = 0.98,
                    .sm_clock_mhz = 1950,
                    .sm_clock_max_mhz = 1980,
                    .throttled_share = 0.01,
                    .temperature_c = 60,
                    .reasons = ""}};
  for (int i = 0; i < 200; ++i) {
    facts.loss.push_back({static_cast<double>(i), 2 * std::exp(-i / 100.0) + 0.02 * std::sin(i * 1.7)});
    facts.grad_norm.push_back({static_cast<double>(i), 0.5});
  }
  return facts;
}

/// A plan of `step_s` seconds for the settings as they are, and with other figures where `then` says so.
inline WhatIf plans(PlanSummary now, std::map<std::map<std::string, std::string>, PlanSummary> then = {}) {
  return [now, then](const std::map<std::string, std::string>& changes) -> std::optional<PlanSummary> {
    if (changes.empty()) return now;
    const auto found = then.find(changes);
    return found == then.end() ? std::nullopt : std::optional<PlanSummary>(found->second);
  };
}

}  // namespace deltatune
