// config.json of both families: what is read, and that everything which would change the result is refused by
// name.
#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace deltatune {
namespace {

json::Value text_config() {
  return json::parse(R"({
    "model_type": "qwen3_5_text", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 160,
    "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16,
    "linear_value_head_dim": 24, "linear_conv_kernel_dim": 4, "eos_token_id": 7,
    "rope_parameters": {"rope_theta": 1000000.0, "partial_rotary_factor": 0.5, "rope_type": "default",
                        "mrope_section": [3, 3, 2]},
    "tie_word_embeddings": true})",
                     "test");
}

json::Value composite_config() {
  json::Value text = text_config();
  text.set("model_type", "qwen3_5_text");
  json::Value root;
  root.set("model_type", "qwen3_5");
  root.set("text_config", text);
  root.set("tie_word_embeddings", true);
  root.set("vision_config", json::Object{{"depth", 2}});
  return root;
}

ModelConfig read(const json::Value& root) {
  return ModelConfig::from_json(root, "config.json");
}

// The refusal's first line, which must name the field.
std::string refusal(const json::Value& root) {
  try {
    read(root);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::model);
    EXPECT_EQ(error.where().rfind("config.json", 0), 0u) << error.where();
    EXPECT_FALSE(error.fix().empty());
    return error.what();
  }
  return "accepted";
}

std::string refusal_with(const std::string& key, json::Value value) {
  json::Value root = text_config();
  root.set(key, value);
  const std::string flat = refusal(root);
  json::Value composite = composite_config();
  json::Value text = text_config();
  text.set(key, std::move(value));
  composite.set("text_config", text);
  if (key != "model_type") {
    EXPECT_EQ(refusal(composite), flat) << "composite and text-only disagree on " << key;
  }
  return flat;
}

std::string refusal_of_rope(const std::string& key, json::Value value) {
  json::Value root = text_config();
  json::Value rope = root.at("rope_parameters");
  rope.set(key, std::move(value));
  return refusal_with("rope_parameters", rope);
}

json::Value without(const json::Value& root, std::string_view key) {
  json::Object out;
  for (const auto& [name, value] : root.as_object()) {
    if (name != key) out.emplace_back(name, value);
  }
  return out;
}

void expect_names(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(ModelConfigTest, ReadsATextOnlyConfig) {
  const ModelConfig c = read(text_config());
  EXPECT_FALSE(c.composite());
  EXPECT_EQ(c.prefix(), "model.");
  EXPECT_EQ(c.vocab_size, 320);
  EXPECT_EQ(c.attention.query_heads, 4);
  EXPECT_EQ(c.attention.rotary_dim, 16);
  EXPECT_EQ(c.gdn.value_heads, 6);
  EXPECT_EQ(c.gdn.value_dim, 24);
  EXPECT_EQ(c.rope_theta, 1e6);
  EXPECT_TRUE(c.tie_word_embeddings);
  EXPECT_EQ(c.eos_token_ids, std::vector<int64_t>{7});
  // Without layer_types every fourth layer is full attention.
  EXPECT_EQ(c.full_attention, (std::vector<bool>{false, false, false, true, false, false, false, true}));
}

TEST(ModelConfigTest, ReadsACompositeConfig) {
  const ModelConfig c = read(composite_config());
  EXPECT_TRUE(c.composite());
  EXPECT_EQ(c.prefix(), "model.language_model.");
  EXPECT_EQ(c.hidden_size, 64);
  EXPECT_FALSE(c.tie_flags_disagree);
  expect_names(refusal(without(composite_config(), "text_config")), "text_config");
}

TEST(ModelConfigTest, ClassDefaultsFillWhatIsAbsent) {
  json::Value root = json::parse(R"({"model_type": "qwen3_5_text", "vocab_size": 10, "hidden_size": 8,
    "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "rope_theta": 10000000})",
                                 "test");
  const ModelConfig c = read(root);
  EXPECT_EQ(c.attention.head_dim, 256);
  EXPECT_EQ(c.attention.rotary_dim, 64);
  EXPECT_EQ(c.gdn.key_heads, 16);
  EXPECT_EQ(c.gdn.value_heads, 32);
  EXPECT_EQ(c.gdn.key_dim, 128);
  EXPECT_EQ(c.gdn.conv_width, 4);
  EXPECT_EQ(c.rms_norm_eps, 1e-6f);
  EXPECT_EQ(c.initializer_range, 0.02);
  EXPECT_FALSE(c.tie_word_embeddings);
}

TEST(ModelConfigTest, RopeParametersBeatTheTopLevel) {
  json::Value root = text_config();
  root.set("partial_rotary_factor", 0.25);
  root.set("rope_theta", 5.0);
  const ModelConfig c = read(root);
  EXPECT_EQ(c.attention.rotary_dim, 16);
  EXPECT_EQ(c.rope_theta, 1e6);
}

TEST(ModelConfigTest, RefusesOtherFamilies) {
  expect_names(refusal_with("model_type", "qwen3_5_moe"), "qwen3_5_moe");
  expect_names(refusal_with("model_type", "llama"), "llama");
  expect_names(refusal(without(text_config(), "model_type")), "model_type");
  expect_names(refusal(json::Array{}), "not a JSON object");
}

TEST(ModelConfigTest, RefusesWhatItCannotCompute) {
  expect_names(refusal_with("num_experts", 128), "mixture-of-experts");
  expect_names(refusal_with("num_local_experts", 8), "mixture-of-experts");
  expect_names(refusal_with("moe_intermediate_size", 512), "mixture-of-experts");
  EXPECT_EQ(refusal_with("num_experts", 0), "accepted");
  expect_names(refusal_with("quantization_config", json::Object{{"quant_method", "fp8"}}), "quantised");
  expect_names(refusal_with("attention_bias", true), "attention_bias");
  expect_names(refusal_with("attention_dropout", 0.1), "attention_dropout");
  expect_names(refusal_with("hidden_act", "gelu"), "gelu");
  expect_names(refusal_with("attn_output_gate", false), "attn_output_gate");
  expect_names(refusal_with("output_gate_type", "sigmoid"), "output_gate_type");
  EXPECT_EQ(refusal_with("output_gate_type", "swish"), "accepted");
  expect_names(refusal_with("use_sliding_window", true), "use_sliding_window");
  expect_names(refusal_with("mlp_only_layers", json::Array{1}), "mlp_only_layers");
  EXPECT_EQ(refusal_with("mlp_only_layers", json::Array{}), "accepted");
  json::Value wrapper = composite_config();
  wrapper.set("quantization_config", json::Object{{"quant_method", "awq"}});
  expect_names(refusal(wrapper), "quantised");
}

TEST(ModelConfigTest, RefusesRotaryItDoesNotKnow) {
  expect_names(refusal_of_rope("rope_type", "yarn"), "yarn");
  expect_names(refusal_of_rope("mrope_section", json::Array{3, 3, 3}), "mrope_section");
  expect_names(refusal_of_rope("mrope_section", json::Array{8}), "mrope_section");
  expect_names(refusal_of_rope("mrope_section", json::Array{INT64_MAX, INT64_MAX, 10}), "mrope_section");
  expect_names(refusal_of_rope("partial_rotary_factor", 1.5), "partial_rotary_factor");
  expect_names(refusal_of_rope("partial_rotary_factor", 0.01), "rotary width");
  expect_names(refusal_of_rope("rope_theta", 0), "rope_theta");
  expect_names(refusal_of_rope("rope_theta", -1e7), "rope_theta");
  expect_names(refusal_with("rope_parameters", json::Array{}), "rope_parameters");
  expect_names(refusal(without(text_config(), "rope_parameters")), "rope_theta");
}

TEST(ModelConfigTest, RefusesInconsistentShapes) {
  expect_names(refusal_with("layer_types", json::Array{"full_attention"}), "1 entries for 8 layers");
  json::Array types(8, json::Value("linear_attention"));
  EXPECT_EQ(refusal_with("layer_types", types), "accepted");
  types[3] = "sliding_attention";
  expect_names(refusal_with("layer_types", types), "layer_types[3]");
  types[3] = 1;
  expect_names(refusal_with("layer_types", types), "layer_types[3]");
  expect_names(refusal_with("layer_types", "full"), "layer_types");
  expect_names(refusal_with("linear_num_value_heads", 5), "linear_num_value_heads 5");
  expect_names(refusal_with("num_key_value_heads", 3), "num_key_value_heads 3");
}

TEST(ModelConfigTest, RefusesWrongTypesAndRanges) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "num_key_value_heads"}) {
    expect_names(refusal(without(text_config(), key)), std::string("no \"") + key + "\"");
    expect_names(refusal_with(key, "8"), key);
    expect_names(refusal_with(key, 8.5), key);
    expect_names(refusal_with(key, -1), key);
    expect_names(refusal_with(key, 0), key);
    expect_names(refusal_with(key, INT64_MAX), key);
  }
  expect_names(refusal_with("rms_norm_eps", "small"), "rms_norm_eps");
  expect_names(refusal_with("rms_norm_eps", 0), "rms_norm_eps");
  expect_names(refusal_with("tie_word_embeddings", 1), "tie_word_embeddings");
  expect_names(refusal_with("hidden_act", 3), "hidden_act");
}

TEST(ModelConfigTest, TyingOfACompositeIsRead) {
  for (const bool outer : {false, true}) {
    for (const bool inner : {false, true}) {
      json::Value root = composite_config();
      root.set("tie_word_embeddings", outer);
      json::Value text = text_config();
      text.set("tie_word_embeddings", inner);
      root.set("text_config", text);
      const ModelConfig c = read(root);
      EXPECT_EQ(c.tie_word_embeddings, outer);
      EXPECT_EQ(c.tie_flags_disagree, outer != inner);
    }
  }
}

TEST(ModelConfigTest, InverseFrequencies) {
  const std::vector<float> f = inverse_frequencies(read(text_config()));
  ASSERT_EQ(f.size(), 8u);
  for (size_t i = 0; i < f.size(); ++i) {
    const double expected = std::pow(1e6, -2.0 * static_cast<double>(i) / 16);
    EXPECT_NEAR(double{f[i]}, expected, 2e-7 * expected) << i;
  }
}

}  // namespace
}  // namespace deltatune
