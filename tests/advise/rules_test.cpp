// Each rule on made-up facts: where it must speak, with the gain worked out by hand from its model, and where
// not.
#include <gtest/gtest.h>

#include "advise/baselines.h"
#include "advise/facts.h"

namespace deltatune {
namespace {

constexpr double gib = 1 << 30;

void expect_gain(const std::optional<Finding>& finding, double expected, double low, double high) {
  ASSERT_TRUE(finding && finding->gain);
  EXPECT_NEAR(finding->gain->expected, expected, 0.01 * expected + 0.01);
  EXPECT_NEAR(finding->gain->low, low, 0.01 * low + 0.01);
  EXPECT_NEAR(finding->gain->high, high, 0.01 * high + 0.01);
}

TEST(Rules, ASoundRunIsLeftAlone) {
  RunFacts facts = sound_run();
  facts.what_if =
      plans({.step_s = 0.8, .recompute_s = 0, .tokens = 32768, .memory = 130 * gib, .available = 139 * gib});
  for (const rules::NamedRule& named : rules::all()) {
    const auto finding = named.rule(facts);
    EXPECT_FALSE(finding) << named.name << ": " << finding->title << ", " << finding->evidence;
  }
  EXPECT_TRUE(advise(facts).findings.empty());
  EXPECT_NE(advise(facts).to_text().find("nothing to say"), std::string::npos);
  EXPECT_NE(advise(facts).to_text().find("100 logged steps"), std::string::npos);
}

TEST(Rules, NothingKnownIsNothingSaid) {
  for (const rules::NamedRule& named : rules::all()) EXPECT_FALSE(named.rule(RunFacts())) << named.name;
  RunFacts failed;
  failed.failure = "no such folder: models/x";
  EXPECT_NE(advise(failed).to_text().find("the run ended with: no such folder: models/x"), std::string::npos);
  const Advice advice = advise(RunFacts());
  EXPECT_TRUE(advice.findings.empty());
  EXPECT_EQ(advice.missing.size(), 5u);
}

TEST(Rules, LaunchBound) {
  RunFacts facts = sound_run();
  facts.steps.host_bound = 0.9;  // nearly all of the step was launched op by op, at the host's pace
  facts.steps.data_wait = 0.02;
  facts.settings["cuda_graph"] = "false";
  facts.profile->graph = false;
  facts.profile->busy_ms = 580;
  const auto finding = rules::launch_bound(facts);
  // Of 1 s the device is busy 0.58 s and waits 0.02 s for data: the rest goes; two thirds of it and no wait
  // for data; all but the busy time.
  expect_gain(finding, 100 * (1 / 0.58 - 1), 100 * (1 / 0.732 - 1), 100 * (1 / 0.58 - 1));
  EXPECT_EQ(finding->key, "cuda_graph");
  EXPECT_EQ(finding->value, "true");
  EXPECT_EQ(finding->confidence, Confidence::high);
  // Waits for other ranks stay.
  facts.steps.exposed_comm = 0.1;
  EXPECT_NEAR(rules::launch_bound(facts)->gain->expected, 100 * (1 / 0.68 - 1), 0.01);
  facts.steps.exposed_comm = 0;
  // No more is saved than launches hold up, and as much of the waits for data.
  facts.steps.host_bound = 0.1;
  EXPECT_NEAR(rules::launch_bound(facts)->gain->expected, 100 * (1 / 0.88 - 1), 0.01);
  facts.steps.data_wait = 0.3;
  EXPECT_NEAR(rules::launch_bound(facts)->gain->expected, 100 * (1 / 0.8 - 1), 0.01);
  facts.steps.data_wait = 0.02;
  // A host that was held up here and there ran ahead again before the meter looked: the profile has the gaps.
  facts.steps.host_bound = 0.006;
  facts.profile->host_bound_ms = 350;
  EXPECT_NEAR(rules::launch_bound(facts)->gain->expected, 100 * (1 / 0.63 - 1), 0.01);
  facts.profile->host_bound_ms = 0;
  EXPECT_FALSE(rules::launch_bound(facts));
  // A device that is busy all the same loses nothing, whoever sets the pace.
  facts.steps.host_bound = 0.9;
  facts.profile->busy_ms = 970;
  EXPECT_FALSE(rules::launch_bound(facts));
  // Without a profile: least time 0.3 s, so about 0.4 s of work; 0.6 at worst, 0.333 at best.
  const ProfileFacts profile = *facts.profile;
  facts.profile.reset();
  facts.steps.roofline = 0.3;
  expect_gain(rules::launch_bound(facts), 100 * (1 / 0.4 - 1), 100 * (1 / 0.62 - 1),
              100 * (1 / (0.3 / 0.9) - 1));
  facts.steps.roofline = unknown;
  EXPECT_FALSE(rules::launch_bound(facts)->gain);
  // Without the meter the profile speaks; below 5 % nobody does.
  facts.profile = profile;
  facts.profile->busy_ms = 900;
  facts.steps.host_bound = unknown;
  facts.profile->host_bound_ms = 60;
  EXPECT_NEAR(rules::launch_bound(facts)->gain->expected, 100 * (1 / 0.94 - 1), 0.01);
  facts.profile->host_bound_ms = 40;
  EXPECT_FALSE(rules::launch_bound(facts));
  facts.profile->host_bound_ms = 400;
  facts.profile->gpu = false;
  EXPECT_FALSE(rules::launch_bound(facts)) << "a processor launches nothing";
  facts.profile->gpu = true;
  // Graphs that are there already are not advised.
  facts.steps.host_bound = 0.2;
  facts.profile->busy_ms = 700;
  facts.profile->graph = true;
  EXPECT_EQ(rules::launch_bound(facts)->key, "max_tokens");
}

// Anchor F4: the post's run, 98 % utilisation at 4.5 % MFU; 14.4 s of host for 10.3 s of device.
TEST(Rules, HighUtilisationOfLittleArithmeticIsFlagged) {
  RunFacts facts = sound_run();
  facts.steps.seconds = 14.4;
  facts.steps.utilisation = 0.98;
  facts.steps.mfu = 0.045;
  facts.steps.host_bound = unknown;
  facts.profile->step_ms = 14400;
  facts.profile->busy_ms = 10300;
  facts.profile->host_bound_ms = 4100;
  facts.profile->launches = 269448;
  facts.profile->kernels = 269448;
  facts.profile->graph = false;
  facts.profile->ops = {{"gated_delta_forward", "", "forward", "plain", true, 48, 6400, 0.01}};
  facts.steps.fill = 0.64;
  facts.settings["batching"] = "padded";
  const Advice advice = advise(facts);
  std::string names;
  for (const Finding& finding : advice.findings) names += finding.rule + " ";
  EXPECT_EQ(names, "slow_kernel padding launch_bound utilisation ");
  EXPECT_NE(advice.findings.back().evidence.find("98 % at 4.5 % MFU"), std::string::npos);
  EXPECT_NEAR(advice.findings[2].gain->expected, 100 * (14.4 / 10.3 - 1), 0.1);
  facts.steps.mfu = 0.4;
  EXPECT_FALSE(rules::utilisation(facts));
  facts.steps.mfu = unknown;
  EXPECT_FALSE(rules::utilisation(facts));
  facts.steps.mfu = 0.045;
  facts.steps.utilisation = 0.3;
  EXPECT_FALSE(rules::utilisation(facts));
  facts.steps.utilisation = unknown;  // then telemetry's
  EXPECT_TRUE(rules::utilisation(facts));
}

TEST(Rules, SlowKernel) {
  RunFacts facts = sound_run();
  facts.profile->ops.push_back({"attention_forward", "", "forward", "plain", true, 16, 300, 0.05});
  // No baseline: to half of the roofline, 300 * (1 - 0.1); a quarter: 300 * (1 - 0.2); all: 300 * (1 - 0.05).
  expect_gain(rules::slow_kernel(facts), 100 * (1 / 0.73 - 1), 100 * (1 / 0.76 - 1), 100 * (1 / 0.715 - 1));
  EXPECT_EQ(rules::slow_kernel(facts)->key, "");
  facts.settings["dtype"] = "f32";
  EXPECT_EQ(rules::slow_kernel(facts)->key, "dtype");
  facts.profile->ops.back().device_ms = 5;
  EXPECT_FALSE(rules::slow_kernel(facts));
  // Without a profile the names of the run's start are all there is.
  facts.profile.reset();
  EXPECT_FALSE(rules::slow_kernel(facts));
  facts.kernels["attention_forward"] = "plain, slow (not cudnn: it is not installed)";
  EXPECT_FALSE(rules::slow_kernel(facts)->gain);
  EXPECT_NE(rules::slow_kernel(facts)->evidence.find("not cudnn"), std::string::npos);
  facts.kernels.clear();
  facts.slow_kernels = true;
  EXPECT_TRUE(rules::slow_kernel(facts));
}

TEST(Rules, SlowOp) {
  RunFacts facts = sound_run();
  ASSERT_TRUE(baseline_share("h200", "matmul"));
  EXPECT_FALSE(baseline_share("h100", "matmul"));
  facts.profile->ops[0].roofline = *baseline_share("h200", "matmul") / 2;
  const auto finding = rules::slow_op(facts);
  // 800 ms that would be 400: half of that, and all of it.
  expect_gain(finding, 100 * (1 / 0.6 - 1), 100 * (1 / 0.8 - 1), 100 * (1 / 0.6 - 1));
  EXPECT_EQ(finding->key, "");
  facts.settings["matmul_tuning"] = "off";
  EXPECT_EQ(rules::slow_op(facts)->key, "matmul_tuning");
  facts.profile->ops[0].roofline = 0.8;
  EXPECT_FALSE(rules::slow_op(facts));
  facts.profile->ops[0] = {
      "gated_rmsnorm_forward", "", "forward", "plain", false, 48, 10, 0.1};  // 1 % of the step
  EXPECT_FALSE(rules::slow_op(facts));
  facts.profile->ops[0].device_ms = 30;
  EXPECT_TRUE(rules::slow_op(facts));
  facts.profile->ops[0].calls = 601;  // of 49.9 us
  EXPECT_FALSE(rules::slow_op(facts));
  facts.profile->ops[0].calls = 48;
  facts.card.reset();
  EXPECT_FALSE(rules::slow_op(facts));
}

TEST(Rules, Padding) {
  RunFacts facts = sound_run();
  facts.steps.fill = 0.5;
  facts.settings["batching"] = "padded";
  const auto finding = rules::padding(facts);
  expect_gain(finding, 94, 84, 98);
  EXPECT_EQ(finding->key + " " + finding->value, "batching packed");
  facts.settings["batching"] = "packed";
  EXPECT_EQ(rules::padding(facts)->key + " " + rules::padding(facts)->value, "max_tokens 16384");
  EXPECT_NEAR(rules::padding(facts)->gain->expected, 50, 0.01);  // half of the waste goes
  facts.steps.fill = 0.93;
  EXPECT_FALSE(rules::padding(facts));
}

TEST(Rules, Recompute) {
  RunFacts facts = sound_run();
  facts.settings["recompute"] = "block";
  facts.recompute = "block";
  facts.profile->ops.push_back({"matmul", "", "recompute", "cublaslt", false, 60, 200, 0.88});
  const PlanSummary now = {
      .step_s = 0.8, .recompute_s = 0.2, .tokens = 32768, .memory = 60 * gib, .available = 139 * gib};
  PlanSummary none = now;
  none.recompute_s = 0;
  none.memory = 120 * gib;
  PlanSummary some = now;
  some.recompute_s = 0.05;
  some.memory = 135 * gib;
  facts.what_if = plans(now, {{{{"recompute", "none"}}, none}, {{{"recompute", "auto"}}, some}});
  const auto finding = rules::recompute(facts);
  // 0.2 s of 1 s.
  expect_gain(finding, 25, 100 * (1 / 0.85 - 1), 100 * (1 / 0.78 - 1));
  EXPECT_EQ(finding->key + " " + finding->value, "recompute none");
  EXPECT_EQ(finding->confidence, Confidence::high);
  facts.profile->gpu = false;  // less sure, and says why
  const auto on_cpu = rules::recompute(facts);
  expect_gain(on_cpu, 25, 100 * (1 / 0.96 - 1), 100 * (1 / 0.78 - 1));
  EXPECT_EQ(on_cpu->confidence, Confidence::low);
  EXPECT_NE(on_cpu->note.find("other programs"), std::string::npos);
  facts.profile->gpu = true;
  none.memory = 200 * gib;  // does not fit: auto leaves a quarter of the time
  facts.what_if = plans(now, {{{{"recompute", "none"}}, none}, {{{"recompute", "auto"}}, some}});
  EXPECT_EQ(rules::recompute(facts)->value, "auto");
  EXPECT_NEAR(rules::recompute(facts)->gain->expected, 100 * (1 / 0.85 - 1), 0.1);
  // From the plan alone: a quarter of the step.
  facts.profile.reset();
  EXPECT_NEAR(rules::recompute(facts)->gain->expected, 100 * (1 / (1 - 0.25 * 0.75) - 1), 0.1);
  some.memory = 150 * gib;
  facts.what_if = plans(now, {{{{"recompute", "none"}}, none}, {{{"recompute", "auto"}}, some}});
  EXPECT_FALSE(rules::recompute(facts)) << "nothing fits";
  facts.what_if = {};
  EXPECT_FALSE(rules::recompute(facts)) << "no plan";
  facts.settings["recompute"] = "auto";
  facts.what_if = plans(now, {{{{"recompute", "none"}}, now}});
  EXPECT_FALSE(rules::recompute(facts)) << "auto has chosen";
}

TEST(Rules, MemoryHeadroom) {
  RunFacts facts = sound_run();
  facts.memory = 40 * gib;
  const PlanSummary now = {.step_s = 0.8, .tokens = 32768, .memory = 40 * gib, .available = 138 * gib};
  PlanSummary then = now;
  then.step_s = 0.7;
  then.memory = 60 * gib;
  const std::map<std::string, std::string> longer = {{"max_tokens", "16384"},
                                                     {"gradient_accumulation_steps", "2"}};
  facts.what_if = plans(now, {{longer, then}});
  expect_gain(rules::memory_headroom(facts), 100 * (0.8 / 0.7 - 1), 50 * (0.8 / 0.7 - 1),
              150 * (0.8 / 0.7 - 1));
  facts.settings["gradient_accumulation_steps"] = "1";
  EXPECT_FALSE(rules::memory_headroom(facts)) << "no such plan";
  then.tokens = 65536;
  then.step_s = 1.5;
  facts.what_if = plans(now, {{{{"max_tokens", "16384"}}, then}});
  EXPECT_NEAR(rules::memory_headroom(facts)->gain->expected, 100 * (65536 / 1.5 / (32768 / 0.8) - 1), 0.1);
  then.memory = 130 * gib;
  facts.what_if = plans(now, {{{{"max_tokens", "16384"}}, then}});
  EXPECT_FALSE(rules::memory_headroom(facts)) << "a tenth has to stay free";
  facts.memory = 120 * gib;
  then.memory = 60 * gib;
  facts.what_if = plans(now, {{{{"max_tokens", "16384"}}, then}});
  EXPECT_FALSE(rules::memory_headroom(facts)) << "the memory is used";
}

TEST(Rules, ExposedCommunication) {
  RunFacts facts = sound_run();
  facts.world_size = 8;
  facts.steps.exposed_comm = 0.2;
  const PlanSummary now = {
      .step_s = 0.8, .comm_bytes = 100e9, .tokens = 32768, .memory = 100 * gib, .available = 138 * gib};
  PlanSummary bf16 = now, whole = now, longer = now;
  bf16.comm_bytes = 75e9;
  whole.comm_bytes = 50e9;
  whole.memory = 150 * gib;
  longer.tokens *= 2;
  longer.comm_bytes = 140e9;
  facts.what_if = plans(now, {{{{"reduce_dtype", "bf16"}}, bf16},
                              {{{"shard", "grads"}}, whole},
                              {{{"max_tokens", "16384"}}, longer}});
  const auto finding = rules::exposed_communication(facts);
  EXPECT_EQ(finding->key, "max_tokens");  // 0.7 of the bytes of a token; shard: grads does not fit
  expect_gain(finding, 100 * (1 / 0.94 - 1), 100 * (1 / 0.97 - 1), 25);
  whole.memory = 120 * gib;
  facts.what_if = plans(now, {{{{"reduce_dtype", "bf16"}}, bf16},
                              {{{"shard", "grads"}}, whole},
                              {{{"max_tokens", "16384"}}, longer}});
  EXPECT_EQ(rules::exposed_communication(facts)->key, "shard");
  facts.what_if = {};
  EXPECT_EQ(rules::exposed_communication(facts)->key, "") << "nothing that can be told";
  facts.steps.exposed_comm = 0.01;
  EXPECT_FALSE(rules::exposed_communication(facts));
  facts.steps.exposed_comm = 0.2;
  facts.world_size = 1;
  EXPECT_FALSE(rules::exposed_communication(facts));
}

TEST(Rules, DataStall) {
  RunFacts facts = sound_run();
  facts.steps.data_wait = 0.25;
  expect_gain(rules::data_stall(facts), 100 * (1 / 0.75 - 1), 100 * (1 / 0.875 - 1), 100 * (1 / 0.75 - 1));
  EXPECT_EQ(rules::data_stall(facts)->key + " " + rules::data_stall(facts)->value,
            "dataloader_prefetch_factor 8");
  facts.settings["streaming"] = "true";
  EXPECT_EQ(rules::data_stall(facts)->key + " " + rules::data_stall(facts)->value, "streaming false");
  facts.steps.data_wait = 0.01;
  EXPECT_FALSE(rules::data_stall(facts));
  facts.steps.data_wait = unknown;
  EXPECT_FALSE(rules::data_stall(facts));
}

TEST(Rules, Truncation) {
  RunFacts facts = sound_run();
  facts.settings["max_length"] = "1024";
  facts.settings["max_tokens"] = "2048";
  facts.data.truncated = 180;
  facts.data.tokens_cut = 250000;
  const PlanSummary fits = {.memory = 50 * gib, .available = 100 * gib};
  facts.what_if = plans(fits, {{{{"max_length", "4096"}, {"max_tokens", "4096"}}, fits}});
  const auto finding = rules::truncation(facts);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->key + " " + finding->value, "max_length 4096");
  EXPECT_NE(finding->evidence.find("180 of 1000 rows"), std::string::npos) << finding->evidence;
  EXPECT_NE(finding->evidence.find("20.0 % of the tokens"), std::string::npos) << finding->evidence;
  EXPECT_NE(finding->note.find("which fits"), std::string::npos) << finding->note;
  EXPECT_EQ(finding->severity, Severity::quality);
  EXPECT_FALSE(finding->gain);
  facts.settings["max_length"] = "8192";  // the longest 1 % alone
  EXPECT_EQ(rules::truncation(facts)->key, "");
  facts.data.truncated = 3;
  facts.data.tokens_cut = 100;
  EXPECT_FALSE(rules::truncation(facts));
}

TEST(Rules, FewSupervised) {
  RunFacts facts = sound_run();
  facts.data.supervised = 40000;
  EXPECT_NE(rules::few_supervised(facts)->evidence.find("4.0 %"), std::string::npos);
  EXPECT_EQ(rules::few_supervised(facts)->key, "");
  facts.settings["train_on"] = "last";
  EXPECT_EQ(rules::few_supervised(facts)->value, "assistant");
  facts.data.supervised = 4e5;
  EXPECT_FALSE(rules::few_supervised(facts));
  facts.data.all_masked = 80;
  EXPECT_TRUE(rules::few_supervised(facts));
  facts.data = {};  // a run that streams: from its steps
  EXPECT_FALSE(rules::few_supervised(facts));
  facts.steps.targets = 1000;
  EXPECT_TRUE(rules::few_supervised(facts));
}

TEST(Rules, Throttled) {
  RunFacts facts = sound_run();
  facts.devices.push_back({.index = 1,
                           .utilisation = 0.9,
                           .sm_clock_mhz = 1485,
                           .sm_clock_max_mhz = 1980,
                           .throttled_share = 0.8,
                           .temperature_c = 87,
                           .reasons = "sw_power_cap"});
  // 0.8 of the time a quarter of the clock.
  expect_gain(rules::throttled(facts), 25, 100 * (1 / 0.9 - 1), 25);
  EXPECT_NE(rules::throttled(facts)->title.find("GPU 1"), std::string::npos);
  facts.devices[1].lost_share = 0.1;  // the meter's own figure beats the product of means
  EXPECT_NEAR(rules::throttled(facts)->gain->expected, 100 * (1 / 0.9 - 1), 0.01);
  facts.devices[1].lost_share = unknown;
  facts.devices[1].throttled_share = 0.05;
  EXPECT_FALSE(rules::throttled(facts));
  facts.devices[1].throttled_share = unknown;
  EXPECT_FALSE(rules::throttled(facts));
}

TEST(Rules, UnbalancedRanks) {
  RunFacts facts = sound_run();
  facts.rank_profiles = {*facts.profile, *facts.profile, *facts.profile, *facts.profile};
  for (int i = 0; i < 4; ++i) {
    facts.rank_profiles[static_cast<size_t>(i)].rank = i;
    facts.rank_profiles[static_cast<size_t>(i)].busy_ms = i == 2 ? 980 : 780;
  }
  // The mean is 830 ms: 150 of 1000 ms; low half of it, high as the least busy.
  expect_gain(rules::unbalanced_ranks(facts), 100 * (1 / 0.85 - 1), 100 * (1 / 0.925 - 1), 25);
  EXPECT_NE(rules::unbalanced_ranks(facts)->title.find("Rank 2"), std::string::npos);
  facts.rank_profiles[2].busy_ms = 800;
  EXPECT_FALSE(rules::unbalanced_ranks(facts));
  facts.rank_profiles.resize(1);
  EXPECT_FALSE(rules::unbalanced_ranks(facts));
}

TEST(Rules, LossTrouble) {
  RunFacts facts = sound_run();
  facts.nonfinite_steps = 3;
  facts.nonfinite_step = 150;
  facts.nonfinite_where = "layer 17";
  const auto finding = rules::loss_trouble(facts);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->severity, Severity::problem);
  EXPECT_NE(finding->evidence.find("layer 17"), std::string::npos) << finding->evidence;
  EXPECT_EQ(finding->key + " " + finding->value, "learning_rate 5e-06");
  facts.settings["max_grad_norm"] = "0";
  EXPECT_EQ(rules::loss_trouble(facts)->key, "max_grad_norm");
  facts.nonfinite_steps = 0;
  for (size_t i = 40; i < facts.loss.size(); i += 20)
    facts.loss[i].y += 0.35;  // less than a quarter of the first level
  EXPECT_FALSE(rules::loss_trouble(facts)) << "rows of few tokens scatter";
  facts.loss = sound_run().loss;
  EXPECT_FALSE(rules::loss_trouble(facts)) << "a loss that falls and shivers";
  facts.loss[120].y = 3;
  EXPECT_FALSE(rules::loss_trouble(facts)) << "once is a row";
  facts.loss[160].y = 9;
  facts.loss[161].y = 8;
  const auto jumps = rules::loss_trouble(facts);
  ASSERT_TRUE(jumps);
  EXPECT_EQ(jumps->severity, Severity::quality);
  EXPECT_NE(jumps->evidence.find("2 times; the highest is 9 at step 160"), std::string::npos)
      << jumps->evidence;
  // A level that stays high is one jump, and a constant loss none.
  facts = sound_run();
  for (size_t i = 0; i < facts.loss.size(); ++i) facts.loss[i].y = 2;
  EXPECT_FALSE(rules::loss_trouble(facts));
}

TEST(Findings, AreSortedAndWritten) {
  RunFacts facts = sound_run();
  facts.steps.data_wait = 0.05;
  facts.steps.fill = 0.5;
  facts.settings["batching"] = "sorted";
  facts.data.supervised = 4e4;
  facts.nonfinite_steps = 1;
  facts.nonfinite_step = 3;
  const Advice advice = advise(facts);
  std::string names;
  for (const Finding& finding : advice.findings) names += finding.rule + " ";
  EXPECT_EQ(names, "loss_trouble padding data_stall few_supervised ");
  const json::Value out = to_json(advice.findings[1]);
  EXPECT_EQ(json::dump(out.at("gain")), "94");
  EXPECT_EQ(out.at("severity").as_string(), "speed");
  EXPECT_TRUE(to_json(advice.findings[0]).at("gain").is_null());
  EXPECT_EQ(to_line(advice.findings[1]),
            "Slots are computed that hold no token; batching: packed; +94 % tokens/s (84 to 98)");
  for (const Finding& finding : advice.findings) {
    EXPECT_FALSE(finding.evidence.find_first_of("0123456789") == std::string::npos)
        << finding.rule << " has no figure";
    EXPECT_EQ(finding.evidence.find("nan"), std::string::npos) << finding.evidence;
  }
}

TEST(Findings, AGuessComesBehindWhatIsMeasured) {
  RunFacts facts = sound_run();
  facts.profile->ops[0].roofline = 0.447;  // slow_op: +66 %, low confidence
  facts.steps.fill = 0.7;
  facts.settings["batching"] = "padded";  // +39 %, high
  const Advice advice = advise(facts);
  ASSERT_GE(advice.findings.size(), 2U);
  EXPECT_EQ(advice.findings[0].rule, "padding");
  EXPECT_EQ(advice.findings[1].rule, "slow_op");
  EXPECT_GT(advice.findings[1].gain->expected, advice.findings[0].gain->expected);
}

}  // namespace
}  // namespace deltatune
