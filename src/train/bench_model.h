// A model to time: the first layers of a known shape, random weights, random tokens. What `bench op` and
// `bench step` run on; no checkpoint is needed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "train/engine.h"

namespace deltatune {

/// The shapes of a model: a folder with config.json, such a file, or the name of one that is part of the
/// program (qwen3.5-0.8b, qwen3.5-2b, qwen3.5-4b, qwen3.5-9b, qwen3.8-27b). Throws Error{usage} naming these.
ModelConfig bench_model_config(const std::string& name);

/// The same model with these layers only, in order; each an index into full_attention.
ModelConfig with_layers(ModelConfig config, const std::vector<size_t>& layers);
/// The first layer of each kind.
std::vector<size_t> one_of_each_kind(const ModelConfig& config);

/// Document lengths, one integer a line ('#' starts a comment), of a file; empty path: 1240 alone, the mean
/// of a chat dataset, or a whole row of fewer tokens. Throws Error{data}.
std::vector<int32_t> bench_lengths(const std::string& path, int64_t tokens);

/// A row of T tokens: documents of these lengths, over and over, the last one cut; random token ids, every
/// token that has a next one in its document supervised.
Batch bench_batch(const std::vector<int32_t>& lengths, int64_t tokens, int64_t vocabulary);

/// What the optimizer of a measured step keeps, as the keys optim, optim_dtype, master_weights and
/// weight_rounding say.
struct BenchOptimizer {
  DType moments = DType::f32;  ///< storage of Adam's m and v; u8: 8-bit codes
  bool master_weights = true;
  Rounding rounding = Rounding::nearest;

  void set(EngineOptions& engine) const;
  /// In words, beside weights of `storage`.
  std::string to_text(DType storage) const;
};

/// Weights of an engine: normal of deviation 0.02, norms, gates and decays as Hugging Face initialises them.
void fill_random(Engine& engine);

}  // namespace deltatune
