// Sampling from a model, one token at a time. The whole row is computed again for each token: a check of a
// checkpoint, not a server.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/rng.h"
#include "train/engine.h"

namespace deltatune {

struct SamplingOptions {
  int64_t max_new_tokens = 128;
  double temperature = 0;  ///< 0: the most likely token (the lowest id of equals)
  int64_t top_k = 0;       ///< 0: no limit
  double top_p = 1;        ///< nucleus: the smallest set of tokens with this probability
  uint64_t seed = 42;
};

/// Draws one id from logits [V].
int32_t sample(std::span<const float> logits, const SamplingOptions& options, Rng& rng);

/// Continues `prompt` until one of `stop` (which is not returned) or max_new_tokens; each(id) is called for
/// every new token. The engine's T must be at least prompt + max_new_tokens. Returns the new tokens.
std::vector<int32_t> generate(Engine& engine, std::span<const int32_t> prompt, std::span<const int32_t> stop,
                              const SamplingOptions& options, const std::function<void(int32_t)>& each);

}  // namespace deltatune
