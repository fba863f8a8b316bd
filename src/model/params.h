// The parameters of the model: one table that says which Hugging Face tensors each fused matrix is made of,
// in which group it travels, and how it starts. Names and shapes: transformers `modeling_qwen3_5.py`.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"
#include "tensor/param_source.h"
#include "tensor/params.h"

namespace deltatune {

/// Indices into ParamTable::params; -1: this kind of layer has none.
struct LayerParams {
  int input_norm = -1;
  int in_proj = -1, conv = -1, A_log = -1, dt_bias = -1, gated_norm = -1;  // gated delta rule
  int qkv = -1, q_norm = -1, k_norm = -1;                                  // full attention
  int out_proj = -1;
  int post_norm = -1, gate_up = -1, down = -1;
};

struct ModelParams {
  ParamTable table;
  int embedding_group = 0;
  int final_group = 0;            ///< final norm, and the head where it is not tied
  std::vector<int> block_groups;  ///< per layer
  int embedding = -1;
  int final_norm = -1;
  int head = -1;  ///< == embedding when tied
  std::vector<LayerParams> layers;
  bool tied() const { return head == embedding; }
};

ModelParams make_params(const ModelConfig& config, bool tied);

/// Whether head and embedding are one parameter. Without a checkpoint: what the config says. With one, the
/// tensors have the last word: a tied config with a head that is bit-identical stays tied; with a different
/// head it is untied, with a warning; untied without a head is Error{model}; where wrapper and text_config
/// disagree the presence and contents of the head decide.
bool decide_tied(const ModelConfig& config, const ParamSource* checkpoint);

}  // namespace deltatune
