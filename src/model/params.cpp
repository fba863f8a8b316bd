// The parameter table: one add() per parameter.
#include "model/params.h"

#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"

namespace deltatune {
namespace {

// A zero-centred norm weight [n], or another vector with its own initialiser.
Param vector_param(std::string name, std::string hf_name, int64_t n, Init init, bool keep_f32 = false) {
  Param param;
  param.name = std::move(name);
  param.shape = {n};
  param.keep_f32 = keep_f32;
  param.init = init;
  param.slices = {{std::move(hf_name), 0, n, {n}}};
  return param;
}

// A matrix of stacked row slices, all with `columns` columns. One matrix product gives its gradient.
Param matrix_param(std::string name, int64_t columns,
                   const std::vector<std::pair<std::string, int64_t>>& parts) {
  Param param;
  param.name = std::move(name);
  param.decay = true;
  param.product_gradient = true;
  int64_t rows = 0;
  for (const auto& [hf_name, count] : parts) {
    param.slices.push_back({hf_name, rows, count, {count, columns}});
    rows += count;
  }
  param.shape = {rows, columns};
  return param;
}

void add_delta_net(const ModelConfig& c, ParamTable& table, int group, const std::string& name,
                   const std::string& hf, LayerParams& p) {
  const GdnShape& g = c.gdn;
  const std::string l = hf + "linear_attn.";
  p.in_proj = table.add(group, matrix_param(name + "in_proj", c.hidden_size,
                                            {{l + "in_proj_qkv.weight", g.channels()},
                                             {l + "in_proj_z.weight", g.values()},
                                             {l + "in_proj_b.weight", g.value_heads},
                                             {l + "in_proj_a.weight", g.value_heads}}));
  Param conv = matrix_param(name + "conv", g.conv_width, {{l + "conv1d.weight", g.channels()}});
  conv.slices[0].hf_shape = {g.channels(), 1, g.conv_width};
  conv.product_gradient = false;
  p.conv = table.add(group, std::move(conv));
  p.A_log =
      table.add(group, vector_param(name + "A_log", l + "A_log", g.value_heads, Init::log_uniform, true));
  p.dt_bias =
      table.add(group, vector_param(name + "dt_bias", l + "dt_bias", g.value_heads, Init::ones, true));
  p.gated_norm =
      table.add(group, vector_param(name + "gated_norm", l + "norm.weight", g.value_dim, Init::ones, true));
  p.out_proj =
      table.add(group, matrix_param(name + "out_proj", g.values(), {{l + "out_proj.weight", c.hidden_size}}));
}

void add_attention(const ModelConfig& c, ParamTable& table, int group, const std::string& name,
                   const std::string& hf, LayerParams& p) {
  const AttentionShape& a = c.attention;
  const std::string s = hf + "self_attn.";
  p.qkv = table.add(group, matrix_param(name + "qkv", c.hidden_size,
                                        {{s + "q_proj.weight", 2 * a.query_heads * a.head_dim},
                                         {s + "k_proj.weight", a.kv_heads * a.head_dim},
                                         {s + "v_proj.weight", a.kv_heads * a.head_dim}}));
  p.q_norm = table.add(group, vector_param(name + "q_norm", s + "q_norm.weight", a.head_dim, Init::zeros));
  p.k_norm = table.add(group, vector_param(name + "k_norm", s + "k_norm.weight", a.head_dim, Init::zeros));
  p.out_proj = table.add(group, matrix_param(name + "out_proj", a.query_heads * a.head_dim,
                                             {{s + "o_proj.weight", c.hidden_size}}));
}

}  // namespace

ModelParams make_params(const ModelConfig& config, bool tied) {
  ModelParams out;
  ParamTable& table = out.table;
  const int64_t D = config.hidden_size;
  const int64_t F = config.intermediate_size;
  const std::string prefix = config.prefix();
  out.embedding_group = table.add_group("embedding");
  Param embedding = matrix_param("embedding", D, {{prefix + "embed_tokens.weight", config.vocab_size}});
  // As the head it has its product first, and the tokens are added to that.
  embedding.product_gradient = tied;
  out.embedding = table.add(out.embedding_group, std::move(embedding));
  for (int64_t i = 0; i < config.layers(); ++i) {
    const std::string name = format("layers.{}.", i);
    const std::string hf = prefix + name;
    const int group = table.add_group(format("block {}", i));
    out.block_groups.push_back(group);
    LayerParams p;
    p.input_norm =
        table.add(group, vector_param(name + "input_norm", hf + "input_layernorm.weight", D, Init::zeros));
    if (config.full_attention[static_cast<size_t>(i)]) {
      add_attention(config, table, group, name, hf, p);
    } else {
      add_delta_net(config, table, group, name, hf, p);
    }
    p.post_norm = table.add(
        group, vector_param(name + "post_norm", hf + "post_attention_layernorm.weight", D, Init::zeros));
    p.gate_up =
        table.add(group, matrix_param(name + "gate_up", D,
                                      {{hf + "mlp.gate_proj.weight", F}, {hf + "mlp.up_proj.weight", F}}));
    p.down = table.add(group, matrix_param(name + "down", F, {{hf + "mlp.down_proj.weight", D}}));
    out.layers.push_back(p);
  }
  out.final_group = table.add_group("final");
  out.final_norm =
      table.add(out.final_group, vector_param("final_norm", prefix + "norm.weight", D, Init::zeros));
  out.head =
      tied ? out.embedding
           : table.add(out.final_group, matrix_param("head", D, {{"lm_head.weight", config.vocab_size}}));
  return out;
}

bool decide_tied(const ModelConfig& config, const ParamSource* checkpoint) {
  if (!checkpoint) return config.tie_word_embeddings;
  const std::string embedding_name = config.prefix() + "embed_tokens.weight";
  const TensorInfo* head = checkpoint->find("lm_head.weight");
  const TensorInfo* embedding = checkpoint->find(embedding_name);
  if (!head) {
    if (!config.tie_word_embeddings && !config.tie_flags_disagree) {
      throw Error(ErrorKind::model, "tie_word_embeddings is false but the checkpoint has no lm_head.weight",
                  "config.json",
                  "restore the missing tensor, or set tie_word_embeddings: true if the model is tied");
    }
    if (config.tie_flags_disagree) {
      log::warn(
          "config.json and its text_config disagree on tie_word_embeddings; the checkpoint has no head, so "
          "the "
          "embedding is used as head");
    }
    return true;
  }
  if (!config.tie_word_embeddings && !config.tie_flags_disagree) return false;
  bool same = embedding && embedding->dtype == head->dtype && embedding->shape == head->shape;
  if (same) {
    size_t bytes = size_of(head->dtype);
    for (const int64_t size : head->shape) bytes *= static_cast<size_t>(size);
    std::vector<std::byte> a(bytes);
    std::vector<std::byte> b(bytes);
    checkpoint->read("lm_head.weight", a.data());
    checkpoint->read(embedding_name, b.data());
    same = std::memcmp(a.data(), b.data(), bytes) == 0;
  }
  if (!same) {
    log::warn(
        "config.json ties head and embedding, but lm_head.weight differs from {}: trained as two matrices",
        embedding_name);
  }
  return same;
}

}  // namespace deltatune
