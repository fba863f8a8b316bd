// Shapes by name, rows by lengths, weights by a generator.
#include "train/bench_model.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/format.h"
#include "base/rng.h"
#include "data/lengths_file.h"
#include "embedded.h"
#include "ops/ops.h"
#include "train/random_fill.h"

namespace deltatune {
namespace {

struct Known {
  const char* name;
  std::string_view (*config)();
};
constexpr Known known[] = {{"qwen3.5-0.8b", embedded::qwen35_08b_json},
                           {"qwen3.5-2b", embedded::qwen35_2b_json},
                           {"qwen3.5-4b", embedded::qwen35_4b_json},
                           {"qwen3.5-9b", embedded::qwen35_9b_json},
                           {"qwen3.8-27b", embedded::qwen38_27b_json}};

std::string known_names() {
  std::string out;
  for (const Known& model : known) out += (out.empty() ? "" : ", ") + std::string(model.name);
  return out;
}

constexpr int32_t default_length = 1240;

}  // namespace

ModelConfig bench_model_config(const std::string& name) {
  for (const Known& model : known) {
    if (name == model.name) return ModelConfig::from_json(json::parse(model.config(), name), name);
  }
  fs::path path = name;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) path /= "config.json";
  if (!fs::is_regular_file(path, ignored)) {
    throw Error(ErrorKind::usage, format("no model shape is known as {}", name), "--model",
                "give a folder with config.json, such a file, or one of " + known_names());
  }
  return ModelConfig::from_json(json::parse_file(path.string()), path.string());
}

ModelConfig with_layers(ModelConfig config, const std::vector<size_t>& layers) {
  std::vector<bool> kinds;
  for (const size_t layer : layers) kinds.push_back(config.full_attention.at(layer));
  config.full_attention = std::move(kinds);
  return config;
}

std::vector<size_t> one_of_each_kind(const ModelConfig& config) {
  std::vector<size_t> out;
  for (const bool kind : {false, true}) {
    const auto at = std::find(config.full_attention.begin(), config.full_attention.end(), kind);
    if (at != config.full_attention.end())
      out.push_back(static_cast<size_t>(at - config.full_attention.begin()));
  }
  return out;
}

std::vector<int32_t> bench_lengths(const std::string& path, int64_t tokens) {
  if (path.empty()) return {static_cast<int32_t>(std::min<int64_t>(default_length, tokens))};
  return read_lengths(path, INT32_MAX);
}

Batch bench_batch(const std::vector<int32_t>& lengths, int64_t tokens, int64_t vocabulary) {
  Batch batch;
  Rng rng(1, 2);
  batch.cu_seqlens = {0};
  for (size_t d = 0; static_cast<int64_t>(batch.tokens.size()) < tokens; ++d) {
    const int64_t left = tokens - static_cast<int64_t>(batch.tokens.size());
    const int64_t length = std::min<int64_t>(left, lengths[d % lengths.size()]);
    for (int64_t t = 0; t < length; ++t) {
      batch.tokens.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocabulary))));
      batch.positions.push_back(static_cast<int32_t>(t));
      if (t > 0) batch.targets.push_back(batch.tokens.back());
    }
    batch.targets.push_back(-100);
    batch.num_targets += length - 1;
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.tokens.size()));
    ++batch.documents;
  }
  batch.real_tokens = tokens;
  return batch;
}

void fill_random(Engine& engine) {
  Stream& stream = engine.stream();
  ParamStore& store = engine.store();
  RandomFill random;
  for (const StateTensor& state : store.state()) {
    const bool moment = state.name.ends_with(".m") || state.name.ends_with(".v");
    // Moments as training starts with: what memory held before could make every weight NaN.
    if (moment) {
      ops::fill(stream, state.data, 0);
    } else {
      random.normal(stream, state.data, 0.02);
    }
  }
  store.refresh_storage(stream);
  const std::vector<Param>& params = store.table().params;
  for (size_t i = 0; i < params.size(); ++i) {
    const CTensor& weights = store.weights()[i];
    const Tensor x{const_cast<std::byte*>(weights.data), weights.dtype, weights.shape};
    switch (params[i].init) {
      case Init::normal:
        break;
      case Init::zeros:
        ops::fill(stream, x, 0);
        break;
      case Init::ones:
        ops::fill(stream, x, 1);
        break;
      case Init::log_uniform:
        random.uniform(stream, x, 0, std::log(16.0));
        break;
    }
  }
  stream.sync();
}

void BenchOptimizer::set(EngineOptions& engine) const {
  engine.moments.dtype = moments;
  engine.master_weights = master_weights;
  engine.adamw.rounding = rounding;
}

std::string BenchOptimizer::to_text(DType storage) const {
  const bool bare = storage != DType::f32 && !master_weights;
  std::string out = format("moments {}", moments == DType::u8 ? "8-bit" : name_of(moments));
  if (bare) out += ", no master weights";
  if ((bare || moments == DType::bf16) && rounding == Rounding::stochastic) out += ", stochastic rounding";
  return out;
}

}  // namespace deltatune
