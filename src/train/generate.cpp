// Sampling.
#include "train/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace deltatune {
namespace {

// One document of the tokens so far, the rest filler.
Batch row_of(std::span<const int32_t> tokens, int64_t slots) {
  Batch batch;
  const auto length = static_cast<int32_t>(tokens.size());
  batch.tokens.assign(tokens.begin(), tokens.end());
  batch.tokens.resize(static_cast<size_t>(slots), 0);
  batch.targets.assign(static_cast<size_t>(slots), -100);
  for (int32_t t = 0; t < static_cast<int32_t>(slots); ++t)
    batch.positions.push_back(t < length ? t : t - length);
  batch.cu_seqlens = {0, length};
  if (length < slots) batch.cu_seqlens.push_back(static_cast<int32_t>(slots));
  batch.documents = 1;
  batch.real_tokens = length;
  return batch;
}

}  // namespace

int32_t sample(std::span<const float> logits, const SamplingOptions& options, Rng& rng) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (options.temperature <= 0) return static_cast<int32_t>(best - logits.begin());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  size_t kept = order.size();
  if (options.top_k > 0) kept = std::min(kept, static_cast<size_t>(options.top_k));
  std::vector<double> weights;
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    weights.push_back(
        std::exp((double{logits[static_cast<size_t>(order[i])]} - double{*best}) / options.temperature));
    sum += weights.back();
  }
  double limit = 0;
  for (size_t i = 0; i < kept; ++i) {
    limit += weights[i];
    if (limit >= options.top_p * sum) {
      kept = i + 1;
      break;
    }
  }
  double draw = rng.uniform() * limit;
  for (size_t i = 0; i + 1 < kept; ++i) {
    draw -= weights[i];
    if (draw < 0) return order[i];
  }
  return order[kept - 1];
}

std::vector<int32_t> generate(Engine& engine, std::span<const int32_t> prompt, std::span<const int32_t> stop,
                              const SamplingOptions& options, const std::function<void(int32_t)>& each) {
  const int64_t slots = engine.options().tokens;
  DELTATUNE_ASSERT(!prompt.empty() && static_cast<int64_t>(prompt.size()) + options.max_new_tokens <= slots);
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  Rng rng(options.seed);
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    int32_t next = -1;
    engine.logits(
        row_of(tokens, slots), {static_cast<int32_t>(tokens.size()) - 1},
        [&](int64_t, int64_t, const float* values) {
          next = sample({values, static_cast<size_t>(engine.model().config().vocab_size)}, options, rng);
        });
    if (std::find(stop.begin(), stop.end(), next) != stop.end()) break;
    tokens.push_back(next);
    if (each) each(next);
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), tokens.end()};
}

}  // namespace deltatune
