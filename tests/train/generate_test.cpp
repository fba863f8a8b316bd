// Drawing tokens: greedy, temperature, top-k, nucleus; and generating with a model.
#include "train/generate.h"

#include <gtest/gtest.h>

#include "train/tiny_engine.h"

namespace deltatune {
namespace {

const std::vector<float> logits = {0.0f, 2.0f, 1.0f, 2.0f, -1.0f};

// Shares of 20,000 draws.
std::vector<double> shares(const SamplingOptions& options) {
  constexpr int draws = 20000;
  Rng rng(1);
  std::vector<double> out(logits.size());
  for (int i = 0; i < draws; ++i) out[static_cast<size_t>(sample(logits, options, rng))] += 1.0 / draws;
  return out;
}

std::vector<double> softmax(double temperature, const std::vector<bool>& allowed) {
  std::vector<double> out;
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    out.push_back(allowed[i] ? std::exp(double{logits[i]} / temperature) : 0);
    sum += out.back();
  }
  for (double& x : out) x /= sum;
  return out;
}

void expect_shares(const SamplingOptions& options, const std::vector<double>& expected) {
  const std::vector<double> actual = shares(options);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(actual[i], 0) << i;
    } else {
      // Five standard deviations of a share.
      EXPECT_NEAR(actual[i], expected[i], 5 * std::sqrt(expected[i] * (1 - expected[i]) / 20000) + 1e-12)
          << i;
    }
  }
}

TEST(SampleTest, GreedyTakesTheLowestOfEquals) {
  Rng rng(1);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(sample(logits, {}, rng), 1);
}

TEST(SampleTest, TemperatureIsSoftmax) {
  const std::vector<bool> all(5, true);
  SamplingOptions o;
  for (const double temperature : {0.5, 1.0, 3.0}) {
    o.temperature = temperature;
    expect_shares(o, softmax(temperature, all));
  }
  o.temperature = 1e-4;  // so cold that only the two largest are left
  expect_shares(o, {0, 0.5, 0, 0.5, 0});
}

TEST(SampleTest, TopKKeepsTheLargest) {
  SamplingOptions o;
  o.temperature = 1;
  o.top_k = 1;
  expect_shares(o, {0, 1, 0, 0, 0});
  o.top_k = 3;
  expect_shares(o, softmax(1, {false, true, true, true, false}));
  o.top_k = 50;
  expect_shares(o, softmax(1, {true, true, true, true, true}));
}

TEST(SampleTest, TopPKeepsTheSmallestSetThatReachesIt) {
  SamplingOptions o;
  o.temperature = 1;
  // Shares: 0.394 twice, 0.145, 0.053, 0.020.
  o.top_p = 0.39;
  expect_shares(o, {0, 1, 0, 0, 0});
  o.top_p = 0.40;
  expect_shares(o, {0, 0.5, 0, 0.5, 0});
  o.top_p = 0.80;
  expect_shares(o, softmax(1, {false, true, true, true, false}));
  o.top_p = 1;
  expect_shares(o, softmax(1, {true, true, true, true, true}));
  o.top_p = 1e-9;
  expect_shares(o, {0, 1, 0, 0, 0});
}

TEST(GenerateTest, ContinuesWhatItWasTaught) {
  // A model that has learnt to count up by one says the rest of the row.
  std::vector<int32_t> ids(20);
  for (int32_t i = 0; i < 20; ++i) ids[static_cast<size_t>(i)] = i + 1;
  EngineOptions options = tiny_options(DType::f32, 32);
  options.weight_decay = 0;
  TinyEngine t(options);
  const Batch batch = packed_row({{ids, true}}, 32);
  for (int step = 1; step <= 150; ++step) {
    t.engine.begin_window();
    t.engine.micro_step(batch);
    t.engine.update(2e-2, step, batch.num_targets);
  }
  const std::vector<int32_t> prompt(ids.begin(), ids.begin() + 6);
  SamplingOptions greedy;
  greedy.max_new_tokens = 10;
  std::vector<int32_t> seen;
  const auto each = [&](int32_t id) { seen.push_back(id); };
  EXPECT_EQ(generate(t.engine, prompt, {}, greedy, each),
            std::vector<int32_t>(ids.begin() + 6, ids.begin() + 16));
  EXPECT_EQ(seen.size(), 10u);
  const std::vector<int32_t> stop = {12};
  EXPECT_EQ(generate(t.engine, prompt, stop, greedy, {}),
            std::vector<int32_t>(ids.begin() + 6, ids.begin() + 11));
}

TEST(GenerateTest, OneSeedOneAnswer) {
  TinyEngine t(tiny_options(DType::f32, 32));
  const std::vector<int32_t> prompt = {1, 2, 3};
  SamplingOptions warm;
  warm.temperature = 2;
  warm.max_new_tokens = 12;
  const std::vector<int32_t> first = generate(t.engine, prompt, {}, warm, {});
  EXPECT_EQ(first.size(), 12u);
  EXPECT_EQ(generate(t.engine, prompt, {}, warm, {}), first);
  warm.seed = 43;
  EXPECT_NE(generate(t.engine, prompt, {}, warm, {}), first);
}

}  // namespace
}  // namespace deltatune
