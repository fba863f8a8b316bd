// config.json -> ModelConfig, with every unsupported value refused by name.
#include "model/config.h"

#include <array>
#include <cmath>

#include "base/error.h"
#include "base/format.h"

namespace deltatune {
namespace {

// Limits far above any model, which keep every product of sizes below 2^63.
constexpr int64_t most_width = int64_t{1} << 20, most_rows = int64_t{1} << 26, most_heads = 1 << 14;

constexpr const char* repair = "repair or restore the checkpoint's config.json";

// One JSON object with the place it came from, so that every error names file and field.
class Fields {
 public:
  Fields(const json::Value& object, std::string where) : object_(object), where_(std::move(where)) {}

  [[noreturn]] void fail(std::string what, std::string fix = repair) const {
    throw Error(ErrorKind::model, std::move(what), where_, std::move(fix));
  }
  [[noreturn]] void unsupported(std::string what) const {
    fail(std::move(what), "deltatune trains dense Qwen3.5, 3.6 and 3.8 text models only");
  }
  const json::Value* find(std::string_view key) const {
    const json::Value* value = object_.find(key);
    return value && !value->is_null() ? value : nullptr;
  }
  int64_t integer(std::string_view key, int64_t fallback, int64_t low = 1, int64_t high = most_rows) const {
    const json::Value* value = find(key);
    if (!value) {
      if (fallback < low) fail(format("config.json has no \"{}\"", key));
      return fallback;
    }
    if (!value->is_integer()) fail(format("\"{}\" must be an integer, it is a {}", key, value->type_name()));
    const int64_t number = value->as_integer();
    if (number < low || number > high) fail(format("\"{}\" is {}, outside {}..{}", key, number, low, high));
    return number;
  }
  double number(std::string_view key, double fallback) const {
    const json::Value* value = find(key);
    if (!value) return fallback;
    if (!value->is_number()) fail(format("\"{}\" must be a number, it is a {}", key, value->type_name()));
    if (!std::isfinite(value->as_number())) fail(format("\"{}\" is not finite", key));
    return value->as_number();
  }
  bool boolean(std::string_view key, bool fallback) const {
    const json::Value* value = find(key);
    if (!value) return fallback;
    if (!value->is_bool()) fail(format("\"{}\" must be true or false, it is a {}", key, value->type_name()));
    return value->as_bool();
  }
  std::string text(std::string_view key, std::string_view fallback) const {
    const json::Value* value = find(key);
    if (!value) return std::string(fallback);
    if (!value->is_string()) fail(format("\"{}\" must be a string, it is a {}", key, value->type_name()));
    return value->as_string();
  }
  const std::string& where() const { return where_; }

 private:
  const json::Value& object_;
  std::string where_;
};

void refuse_unsupported(const Fields& fields) {
  static constexpr std::array moe = {"num_experts", "num_local_experts", "moe_intermediate_size",
                                     "n_routed_experts"};
  for (const char* key : moe) {
    const json::Value* value = fields.find(key);
    if (value && !(value->is_integer() && value->as_integer() == 0)) {
      fields.unsupported(format("this is a mixture-of-experts checkpoint (\"{}\")", key));
    }
  }
  if (fields.find("quantization_config")) {
    fields.fail("the checkpoint is quantised (\"quantization_config\")",
                "take the BF16 release of the model: a full fine-tune needs unquantised weights");
  }
  if (fields.boolean("attention_bias", false))
    fields.unsupported("\"attention_bias\": true is not supported");
  if (fields.number("attention_dropout", 0) != 0) fields.unsupported("\"attention_dropout\" must be 0");
  if (const std::string act = fields.text("hidden_act", "silu"); act != "silu") {
    fields.unsupported(format("\"hidden_act\": \"{}\" is not supported, only \"silu\"", act));
  }
  if (!fields.boolean("attn_output_gate", true))
    fields.unsupported("\"attn_output_gate\": false is not supported");
  if (const std::string gate = fields.text("output_gate_type", "swish"); gate != "swish" && gate != "silu") {
    fields.unsupported(format("\"output_gate_type\": \"{}\" is not supported, only \"swish\"", gate));
  }
  if (fields.boolean("use_sliding_window", false))
    fields.unsupported("\"use_sliding_window\": true is not supported");
  if (const json::Value* list = fields.find("mlp_only_layers");
      list && list->is_array() && !list->as_array().empty()) {
    fields.unsupported("\"mlp_only_layers\" must be empty");
  }
}

std::vector<bool> read_layer_types(const Fields& fields, int64_t layers) {
  std::vector<bool> full(static_cast<size_t>(layers));
  const json::Value* types = fields.find("layer_types");
  if (!types) {
    const int64_t interval = fields.integer("full_attention_interval", 4);
    for (int64_t i = 0; i < layers; ++i) full[static_cast<size_t>(i)] = (i + 1) % interval == 0;
    return full;
  }
  if (!types->is_array())
    fields.fail(format("\"layer_types\" must be a list, it is a {}", types->type_name()));
  const json::Array& list = types->as_array();
  if (static_cast<int64_t>(list.size()) != layers) {
    fields.fail(format("\"layer_types\" has {} entries for {} layers", list.size(), layers));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string kind = list[i].is_string() ? list[i].as_string() : json::dump(list[i]);
    if (kind != "full_attention" && kind != "linear_attention") {
      fields.unsupported(
          format("layer_types[{}] is {}; known are full_attention and linear_attention", i, kind));
    }
    full[i] = kind == "full_attention";
  }
  return full;
}

void read_rope(const Fields& fields, ModelConfig& config) {
  const json::Value* rope = fields.find("rope_parameters");
  if (!rope) rope = fields.find("rope_scaling");
  // A top-level partial_rotary_factor is a class default that saving writes out; rope_parameters wins.
  double factor = fields.number("partial_rotary_factor", 0.25);
  double theta = fields.number("rope_theta", 0);
  const auto width = [&] {
    if (!(factor > 0 && factor <= 1))
      fields.fail(format("partial_rotary_factor {} is outside (0, 1]", factor));
    return static_cast<int64_t>(static_cast<double>(config.attention.head_dim) * factor);
  };
  if (rope) {
    if (!rope->is_object())
      fields.fail(format("\"rope_parameters\" must be an object, it is a {}", rope->type_name()));
    const Fields inner(*rope, fields.where() + ", rope_parameters");
    factor = inner.number("partial_rotary_factor", factor);
    theta = inner.number("rope_theta", theta);
    const std::string type = inner.text("rope_type", inner.text("type", "default"));
    if (type != "default" && type != "mrope") {
      inner.fail(format("rope_type \"{}\" is not supported, only \"default\"", type),
                 "remove the long-context override from config.json to train at the native length");
    }
    if (const json::Value* section = inner.find("mrope_section"); section && section->is_array()) {
      int64_t sum = 0;
      bool valid = section->as_array().size() == 3;
      for (const json::Value& part : section->as_array()) {
        valid = valid && part.is_integer() && part.as_integer() >= 0 && part.as_integer() <= 4096;
        if (valid) sum += part.as_integer();
      }
      if (!valid || sum != width() / 2) {
        inner.fail(format("mrope_section sums to {}, half the rotary width is {}", sum, width() / 2));
      }
    }
  }
  if (!(theta > 0 && theta < 1e30)) {
    fields.fail("config.json has no rope_theta",
                "add rope_parameters.rope_theta (1e7 in the published sizes)");
  }
  config.rope_theta = theta;
  config.attention.rotary_dim = width();
  if (width() < 2 || width() % 2 != 0)
    fields.fail(format("rotary width {} must be even and at least 2", width()));
}

void read_eos(const Fields& fields, ModelConfig& config) {
  const json::Value* eos = fields.find("eos_token_id");
  if (!eos) return;
  if (eos->is_integer()) config.eos_token_ids.push_back(eos->as_integer());
  if (eos->is_array()) {
    for (const json::Value& id : eos->as_array()) {
      if (id.is_integer()) config.eos_token_ids.push_back(id.as_integer());
    }
  }
}

void read_heads(const Fields& fields, ModelConfig& config) {
  config.attention.query_heads = fields.integer("num_attention_heads", 0, 1, most_heads);
  config.attention.kv_heads = fields.integer("num_key_value_heads", 0, 1, most_heads);
  config.attention.head_dim = fields.integer("head_dim", 256, 2, 4096);
  if (config.attention.query_heads % config.attention.kv_heads != 0) {
    fields.fail(format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                       config.attention.query_heads, config.attention.kv_heads));
  }
  config.gdn.key_heads = fields.integer("linear_num_key_heads", 16, 1, most_heads);
  config.gdn.value_heads = fields.integer("linear_num_value_heads", 32, 1, most_heads);
  config.gdn.key_dim = fields.integer("linear_key_head_dim", 128, 1, 4096);
  config.gdn.value_dim = fields.integer("linear_value_head_dim", 128, 1, 4096);
  config.gdn.conv_width = fields.integer("linear_conv_kernel_dim", 4, 1, 64);
  if (config.gdn.value_heads % config.gdn.key_heads != 0) {
    fields.fail(format("linear_num_value_heads {} is not a multiple of linear_num_key_heads {}",
                       config.gdn.value_heads, config.gdn.key_heads));
  }
}

}  // namespace

ModelConfig ModelConfig::from_json(const json::Value& root, std::string_view where) {
  const Fields outer(root, std::string(where));
  if (!root.is_object()) outer.fail("config.json is not a JSON object");
  ModelConfig config;
  config.model_type = outer.text("model_type", "");
  if (config.model_type != "qwen3_5" && config.model_type != "qwen3_5_text") {
    outer.fail(format("model_type \"{}\" is not supported", config.model_type),
               "supported are \"qwen3_5\" and \"qwen3_5_text\" (dense Qwen3.5, 3.6 and 3.8)");
  }
  const json::Value* text = config.composite() ? outer.find("text_config") : &root;
  if (!text || !text->is_object()) outer.fail("config.json has no \"text_config\" object");
  const Fields fields(*text, std::string(where) + (config.composite() ? ", text_config" : ""));
  refuse_unsupported(outer);
  refuse_unsupported(fields);

  config.vocab_size = fields.integer("vocab_size", 0);
  config.hidden_size = fields.integer("hidden_size", 0, 1, most_width);
  config.intermediate_size = fields.integer("intermediate_size", 0);
  config.max_position_embeddings = fields.integer("max_position_embeddings", 32768);
  read_heads(fields, config);
  config.full_attention = read_layer_types(fields, fields.integer("num_hidden_layers", 0, 1, 10000));
  read_rope(fields, config);
  const double eps = fields.number("rms_norm_eps", 1e-6);
  if (!(eps > 0 && eps < 1)) fields.fail(format("\"rms_norm_eps\" is {}, outside 0..1", eps));
  config.rms_norm_eps = static_cast<float>(eps);
  config.initializer_range = fields.number("initializer_range", 0.02);
  const bool inner_tie = fields.boolean("tie_word_embeddings", outer.boolean("tie_word_embeddings", false));
  config.tie_word_embeddings = outer.boolean("tie_word_embeddings", inner_tie);
  config.tie_flags_disagree = config.tie_word_embeddings != inner_tie;
  read_eos(fields, config);
  if (config.eos_token_ids.empty()) read_eos(outer, config);
  return config;
}

std::vector<float> inverse_frequencies(const ModelConfig& config) {
  const int64_t half = config.attention.rotary_dim / 2;
  std::vector<float> out(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.attention.rotary_dim);
    out[static_cast<size_t>(i)] = 1.0f / std::pow(static_cast<float>(config.rope_theta), exponent);
  }
  return out;
}

}  // namespace deltatune
