// ModelConfig: what config.json says about the text tower of `qwen3_5` and `qwen3_5_text` checkpoints.
//
// Fields and defaults: transformers `configuration_qwen3_5.py`. A composite config.json (`qwen3_5`) nests the
// text fields in `text_config`. Whatever would change the result and is not supported is refused, never
// ignored: MoE, quantisation, YaRN, attention bias, sliding windows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "ops/kernels.h"

namespace deltatune {

struct ModelConfig {
  std::string model_type;         ///< "qwen3_5" (composite names) or "qwen3_5_text"
  int64_t vocab_size = 0;         ///< rows of the embedding, V
  int64_t hidden_size = 0;        ///< D
  int64_t intermediate_size = 0;  ///< F
  int64_t max_position_embeddings = 0;
  AttentionShape attention;
  GdnShape gdn;
  std::vector<bool> full_attention;  ///< per layer: full attention, else gated delta rule
  float rms_norm_eps = 1e-6f;
  double rope_theta = 0;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;  ///< as the config says; decide_tied() has the last word
  bool tie_flags_disagree = false;   ///< composite: wrapper and text_config say different things
  std::vector<int64_t> eos_token_ids;

  int64_t layers() const { return static_cast<int64_t>(full_attention.size()); }
  bool composite() const { return model_type == "qwen3_5"; }
  /// "model.language_model." or "model.".
  std::string prefix() const { return composite() ? "model.language_model." : "model."; }

  /// Reads a parsed config.json. `where` names the file in errors (Error{model}).
  static ModelConfig from_json(const json::Value& root, std::string_view where);
};

/// The rotary angles are position times these frequencies: theta^(-2i/R), i < R/2, in fp32 as transformers
/// computes them.
std::vector<float> inverse_frequencies(const ModelConfig& config);

}  // namespace deltatune
