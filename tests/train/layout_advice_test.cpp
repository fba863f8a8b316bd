// Which layout plan names where a run does not fit, and the keys that exclude each other.
#include "train/layout_advice.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "train/plan.h"
#include "train/setup.h"
#include "train/tiny_engine.h"

namespace deltatune {
namespace {

Config config_of(const std::function<void(Config&)>& change = {}) {
  Config c;
  c.max_tokens = 256;
  c.max_length = 256;
  if (change) change(c);
  return c;
}

ModelSource source_of(bool tied, int64_t vocab) {
  ModelSource source;
  source.config = tiny_config(tied, vocab);
  source.tied = tied;
  return source;
}

TEST(LayoutAdvice, LayoutsComeInTheOrderOfTheirCostAndLeaveWhatIsSetAlone) {
  const auto all = memory_layouts(config_of(), true);
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(all[0].changes,
            (std::vector<std::string>{"master_weights: false", "weight_rounding: stochastic"}));
  EXPECT_EQ(all[1].changes.back(), "optim: adamw_8bit");
  EXPECT_EQ(all[2].changes.back(), "offload_optimizer: true");
  EXPECT_FALSE(all[3].config.gradient_release);
  EXPECT_TRUE(all[4].config.gradient_release && !all[4].config.offload_optimizer);
  EXPECT_TRUE(all[5].config.gradient_release && all[5].config.offload_optimizer);
  for (const MemoryLayout& layout : all) check_engine_keys(layout.config, true);
  // Host memory is no other memory on a CPU.
  for (const MemoryLayout& layout : memory_layouts(config_of(), false))
    EXPECT_FALSE(layout.config.offload_optimizer);
  const auto few = memory_layouts(config_of([](Config& c) {
                                    c.master_weights = false;
                                    c.weight_rounding = "stochastic";
                                    c.optim = "adamw_8bit";
                                    c.max_grad_norm = 0;
                                  }),
                                  false);
  ASSERT_EQ(few.size(), 1u);
  EXPECT_EQ(few[0].changes, (std::vector<std::string>{"gradient_release: true"}));
}

// Whole states cannot be offloaded, and cutting them costs no bit: that comes first.
TEST(LayoutAdvice, WholeStatesAreCutBeforeAnythingElse) {
  const auto none = [](int64_t ranks) {
    return config_of([&](Config& c) {
      c.shard = "none";
      c.nproc = ranks;
    });
  };
  const auto several = memory_layouts(none(2), true);
  ASSERT_EQ(several.size(), 7u);
  EXPECT_EQ(several[0].changes, (std::vector<std::string>{"shard: full"}));
  for (const MemoryLayout& layout : several) {
    EXPECT_EQ(layout.changes.front(), "shard: full");
    check_engine_keys(layout.config, true);
  }
  EXPECT_EQ(memory_layouts(none(1), true).size(), 6u);
  Config offloaded = none(2);
  offloaded.offload_optimizer = true;
  EXPECT_THROW(check_engine_keys(offloaded, true), Error);
  offloaded.nproc = 1;
  check_engine_keys(offloaded, true);
}

// Weights, gradients, moments: all on every rank, nothing gathered but the sums.
TEST(LayoutAdvice, PlanCountsWholeStates) {
  const ModelSource source = source_of(false, 5000);
  const auto plan_of = [&](const char* shard, int64_t ranks, bool release = false) {
    const Config config = config_of([&](Config& c) {
      c.shard = shard;
      c.nproc = ranks;
      c.recompute = "block";
      c.dtype = "bf16";
      c.gradient_release = release;
      if (release) c.max_grad_norm = 0;
    });
    return make_plan(config, source, device_card("h200"));
  };
  const auto parameters = [](const PlanReport& report) {
    uint64_t bytes = 0;
    for (const Region& region : report.memory.regions()) {
      if (region.owner == "parameters") bytes += region.bytes;
    }
    return static_cast<double>(bytes);
  };
  const PlanReport one = plan_of("none", 1), many = plan_of("none", 8), full = plan_of("full", 8);
  EXPECT_NEAR(parameters(many), parameters(one), 0.02 * parameters(one)) << "groups are padded for 8 ranks";
  EXPECT_LT(parameters(full), 0.6 * parameters(many));
  EXPECT_NEAR(many.comm.reduce_bytes, many.comm.gather_bytes, 0.02 * many.comm.gather_bytes);
  const double all = many.links.gpu_link_seconds;
  EXPECT_GT(all, 0);
  EXPECT_DOUBLE_EQ(many.links.exposed_seconds, all);
  EXPECT_LT(plan_of("none", 8, true).memory.total(), many.memory.total());
}

TEST(LayoutAdvice, TheFirstThatFitsIsNamed) {
  const Config config = config_of([](Config& c) { c.gradient_accumulation_steps = 4; });
  std::vector<uint64_t> asked;
  const auto bytes_of = [&](const Config& c) {
    asked.push_back(c.gradient_release ? 10 : c.optim == "adamw_8bit" ? 20 : 30);
    return LayoutBytes{asked.back(), c.offload_optimizer ? 7u : 0u, 0};
  };
  const auto second = advise_layout(config, true, 25, bytes_of);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(asked, (std::vector<uint64_t>{30, 20}));
  EXPECT_EQ(second->changes.back(), "optim: adamw_8bit");
  const auto release = advise_layout(config, true, 15, bytes_of);
  ASSERT_TRUE(release.has_value());
  EXPECT_EQ(release->changes.back(), "gradient_accumulation_steps: 1");
  EXPECT_NE(release->to_text().find("in place of 4"), std::string::npos) << release->to_text();
  EXPECT_FALSE(advise_layout(config, true, 5, bytes_of).has_value());
}

// The real thing on a card of just the size that the advice says it needs.
TEST(LayoutAdvice, APlanWithTheAdviceFitsExactly) {
  const ModelSource source = source_of(false, 60000);
  DeviceCard card = device_card("h200");
  const Config config = config_of([](Config& c) { c.recompute = "block"; });
  const uint64_t full = make_plan(config, source, card).memory.total();
  const int64_t context = int64_t{1} << 30;
  card.memory_bytes = static_cast<int64_t>(full) + context;
  EXPECT_FALSE(make_plan(config, source, card).advice.has_value());
  uint64_t before = full;
  for (int i = 0; i < 8; ++i) {
    card.memory_bytes = static_cast<int64_t>(before) - 1 + context;
    const PlanReport report = make_plan(config, source, card);
    EXPECT_FALSE(report.fits());
    if (!report.advice) {
      EXPECT_GE(i, 2);
      EXPECT_NE(report.to_text().find("no memory layout fits"), std::string::npos);
      return;
    }
    EXPECT_NE(report.to_text().find("fits with " + report.advice->changes.front()), std::string::npos);
    EXPECT_LT(report.advice->bytes.device, before);
    card.memory_bytes = static_cast<int64_t>(report.advice->bytes.device) + context;
    const auto same = make_plan(config, source, card).advice;
    ASSERT_TRUE(same.has_value());
    EXPECT_EQ(same->bytes.device, report.advice->bytes.device);
    before = report.advice->bytes.device;
  }
  ADD_FAILURE() << "there is no end to the layouts";
}

TEST(LayoutAdvice, OffloadedMomentsAreBytesOfTheHostAndOfTheLink) {
  const ModelSource source = source_of(false, 60000);
  const DeviceCard card = device_card("h200");
  const PlanReport here = make_plan(config_of(), source, card);
  const PlanReport there = make_plan(config_of([](Config& c) { c.offload_optimizer = true; }), source, card);
  const int64_t elements = ShardLayout(make_params(source.config, false).table, 1).padded[0] +
                           ShardLayout(make_params(source.config, false).table, 1).padded[3];
  EXPECT_GT(there.host_link_bytes, 8.0 * static_cast<double>(elements));
  EXPECT_EQ(here.host_link_bytes, 0);
  EXPECT_GE(static_cast<double>(there.host_bytes()), there.host_link_bytes);
  EXPECT_DOUBLE_EQ(there.host_link_seconds, there.host_link_bytes / (card.host_link_gb_s * 1e9));
  // The update is planned wherever it runs.
  const auto calls = [](const PlanReport& report) {
    int64_t sum = 0;
    for (const PlannedOp& op : report.ops) sum += op.name == "adamw" ? op.calls : 0;
    return sum;
  };
  const PlanReport both = make_plan(config_of([](Config& c) {
                                      c.offload_optimizer = c.gradient_release = true;
                                      c.max_grad_norm = 0;
                                    }),
                                    source, card);
  EXPECT_EQ(calls(both), calls(here));
  EXPECT_GT(calls(here), 4);
}

TEST(MemoryKeys, ThatExcludeEachOtherAreRefusedByName) {
  const auto refusal = [](const std::function<void(Config&)>& change) -> std::string {
    try {
      check_engine_keys(config_of(change), true);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.text();
    }
    return "";
  };
  EXPECT_EQ(refusal([](Config& c) {
              c.gradient_release = true;
              c.max_grad_norm = 0;
            }),
            "");
  const std::string clip = refusal([](Config& c) { c.gradient_release = true; });
  EXPECT_NE(clip.find("gradient_release, max_grad_norm"), std::string::npos) << clip;
  const std::string accumulation = refusal([](Config& c) {
    c.gradient_release = true;
    c.max_grad_norm = 0;
    c.gradient_accumulation_steps = 2;
  });
  EXPECT_NE(accumulation.find("gradient_release, gradient_accumulation_steps"), std::string::npos)
      << accumulation;
  const std::string dtype = refusal([](Config& c) {
    c.optim = "adamw_8bit";
    c.optim_dtype = "bf16";
  });
  EXPECT_NE(dtype.find("optim, optim_dtype"), std::string::npos) << dtype;
}

}  // namespace
}  // namespace deltatune
