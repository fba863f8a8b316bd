// Sets of made-up conversations for the tests of this folder.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/json.h"
#include "base/rng.h"
#include "data/dataset.h"

namespace deltatune::testing_data {

inline constexpr int64_t vocab = 1 << 20;

/// One token per character of every content; those of assistant messages are supervised.
inline MarkedTokens encode_letters(const Conversation& conversation) {
  MarkedTokens out;
  for (const json::Value& message : conversation.messages.as_array()) {
    const bool answer = message.at("role").as_string() == "assistant";
    for (const char c : message.at("content").as_string()) {
      out.ids.push_back(static_cast<unsigned char>(c));
      out.supervised.push_back(answer ? 1 : 0);
    }
  }
  return out;
}

/// One line of JSON: a question and its answer, which need no escapes.
inline std::string chat(const std::string& question, const std::string& answer) {
  return format(
      R"({{"messages": [{{"role": "user", "content": "{}"}}, {{"role": "assistant", "content": "{}"}}]}})",
      question, answer);
}

/// Builds a set in which every token of the whole set is different: token ids count up from 1. Each token at
/// t >= 1 is supervised with probability share (one per conversation always is, where there is one).
inline TokenizedSet set_of_lengths(const std::vector<int32_t>& lengths, int64_t max_tokens, uint64_t seed = 1,
                                   double share = 0.5) {
  DatasetOptions options;
  options.max_length = max_tokens;
  options.max_tokens = max_tokens;
  options.vocab_size = INT32_MAX;
  options.keep_all_masked = true;
  Rng rng(seed, 99);
  json::Array rows;
  int64_t id = 0;
  for (const int32_t length : lengths) {
    json::Array ids;
    json::Array labels;
    for (int32_t t = 0; t < length; ++t) {
      ids.emplace_back(++id);
      labels.emplace_back(t == 1 || rng.uniform() < share ? id : int64_t{-100});
    }
    rows.push_back(json::Object{{"input_ids", std::move(ids)}, {"labels", std::move(labels)}});
  }
  TokenizedSetBuilder builder(options, {});
  builder.add_rows(rows, "made up");
  return builder.finish();
}

/// Lognormal lengths in [1, most] with the given mean.
inline std::vector<int32_t> lognormal_lengths(int64_t count, double mean, double sigma, int32_t most,
                                              uint64_t seed) {
  Rng rng(seed, 7);
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i) {
    const double length = std::exp(std::log(mean) - sigma * sigma / 2 + sigma * rng.normal());
    out.push_back(std::clamp(static_cast<int32_t>(std::lround(length)), 1, most));
  }
  return out;
}

}  // namespace deltatune::testing_data
