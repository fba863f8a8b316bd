// The parameter table: counts of the published sizes, names and shapes of the checkpoint, tying.
#include "model/params.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/file.h"
#include "io/test_files.h"

namespace deltatune {
namespace {

ModelConfig published(const std::string& name) {
  const fs::path path = fs::path(DELTATUNE_SOURCE_DIR) / "examples/configs/models" / name / "config.json";
  return ModelConfig::from_json(json::parse_file(path.string()), path.string());
}

struct Size {
  const char* name;
  int64_t backbone, head;
  size_t tensors;
};
// Counts of the text backbone and of the head. For the 27B model they add up, with vision tower and mtp, to
// the 27,781,427,952 that its model card states.
constexpr Size sizes[] = {{"qwen3.5-0.8b", 752393024, 0, 320},
                          {"qwen3.5-4b", 4205751296, 0, 426},
                          {"qwen3.5-9b", 7936684544, 1017118720, 427},
                          {"qwen3.8-27b", 25624600064, 1271398400, 851}};

TEST(ModelParamsTest, CountsOfThePublishedSizes) {
  for (const Size& size : sizes) {
    const ModelConfig config = published(size.name);
    const ModelParams params = make_params(config, config.tie_word_embeddings);
    EXPECT_EQ(params.tied(), size.head == 0) << size.name;
    EXPECT_EQ(params.table.element_count(), size.backbone + size.head) << size.name;
    size_t tensors = 0;
    for (const Param& param : params.table.params) tensors += param.slices.size();
    EXPECT_EQ(tensors, size.tensors) << size.name;
  }
}

TEST(ModelParamsTest, LayersOfThe27B) {
  const ModelParams params = make_params(published("qwen3.8-27b"), false);
  const auto count = [&](int group) {
    int64_t sum = 0;
    for (const int p : params.table.groups[static_cast<size_t>(group)].params)
      sum += params.table.params[static_cast<size_t>(p)].shape.count();
    return sum;
  };
  EXPECT_EQ(count(params.block_groups[0]), 383273184);
  EXPECT_EQ(count(params.block_groups[3]), 372255232);
}

TEST(ModelParamsTest, SlicesCoverEveryParameterOnce) {
  for (const bool tied : {false, true}) {
    const ModelParams params = make_params(published("qwen3.5-0.8b"), tied);
    std::set<std::string> names;
    for (const Param& param : params.table.params) {
      EXPECT_TRUE(names.insert(param.name).second) << param.name;
      const int64_t columns = param.shape.rank == 2 ? param.shape[1] : 1;
      int64_t row = 0;
      for (const ParamSlice& slice : param.slices) {
        EXPECT_TRUE(names.insert(slice.hf_name).second) << slice.hf_name;
        EXPECT_EQ(slice.row, row) << slice.hf_name;
        row += slice.rows;
        int64_t stored = 1;
        for (const int64_t size : slice.hf_shape) stored *= size;
        EXPECT_EQ(stored, slice.rows * columns) << slice.hf_name;
      }
      EXPECT_EQ(row, param.shape[0]) << param.name;
      // Decay: matrices and the convolution; HF exempts norms and one-dimensional parameters.
      EXPECT_EQ(param.decay, param.shape.rank == 2) << param.name;
    }
    EXPECT_EQ(names.contains("lm_head.weight"), !tied);
    EXPECT_EQ(names.contains("model.language_model.layers.3.self_attn.q_proj.weight"), true);
    EXPECT_EQ(names.contains("model.language_model.layers.0.linear_attn.A_log"), true);
  }
}

TEST(ModelParamsTest, KeepF32IsALogDtBiasAndGatedNorm) {
  const ModelParams params = make_params(published("qwen3.5-0.8b"), true);
  std::set<std::string> kinds;
  for (const Param& param : params.table.params) {
    if (param.keep_f32) kinds.insert(param.name.substr(param.name.rfind('.') + 1));
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"A_log", "dt_bias", "gated_norm"}));
}

// --- tying ---

struct Tying : testing::Test {
  ModelConfig config = published("qwen3.5-0.8b");
  MemorySource source;
  void embedding(float value) {
    source.put(config.prefix() + "embed_tokens.weight", {2, 2}, {1, 2, 3, value});
  }
  void head(float value) { source.put("lm_head.weight", {2, 2}, {1, 2, 3, value}); }
  bool decide(bool outer, bool disagree = false) {
    config.tie_word_embeddings = outer;
    config.tie_flags_disagree = disagree;
    return decide_tied(config, &source);
  }
};

TEST_F(Tying, WithoutACheckpointTheConfigDecides) {
  config.tie_word_embeddings = true;
  EXPECT_TRUE(decide_tied(config, nullptr));
  config.tie_word_embeddings = false;
  EXPECT_FALSE(decide_tied(config, nullptr));
}

TEST_F(Tying, WithoutAHead) {
  embedding(4);
  EXPECT_TRUE(decide(true));
  EXPECT_TRUE(decide(true, true));
  EXPECT_TRUE(decide(false, true));
  EXPECT_THROW(decide(false), Error);
}

TEST_F(Tying, WithAnIdenticalHead) {
  embedding(4);
  head(4);
  EXPECT_TRUE(decide(true));
  EXPECT_TRUE(decide(false, true));
  EXPECT_FALSE(decide(false)) << "an untied config keeps its own head, whatever is in it";
}

TEST_F(Tying, WithADifferentHead) {
  embedding(4);
  head(5);
  EXPECT_FALSE(decide(true));
  EXPECT_FALSE(decide(true, true));
  EXPECT_FALSE(decide(false));
}

TEST_F(Tying, HeadsOfAnotherDtypeOrZeroSignAreDifferent) {
  embedding(0.0f);
  head(-0.0f);
  EXPECT_FALSE(decide(true)) << "bit-identical is asked for";
  source.put("lm_head.weight", DType::bf16, {2, 2}, std::vector<std::byte>(8));
  EXPECT_FALSE(decide(true));
}

}  // namespace
}  // namespace deltatune
