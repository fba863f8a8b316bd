// Checkpoint folders, good and bad.
#include "io/checkpoint_reader.h"

#include <gtest/gtest.h>

#include <cmath>

#include "io/finite.h"
#include "io/test_files.h"

namespace deltatune {
namespace {

std::string problem_of(const fs::path& folder) {
  return error_text(ErrorKind::model, [&] { HfCheckpoint{folder}; });
}

TEST(HfCheckpoint, FollowsTheIndexWhateverTheFileNames) {
  const TempFolder dir("ck_index");
  write_sharded_checkpoint(dir.path());
  write_text(dir / "model.safetensors", "a stray file that is not in the index");
  const HfCheckpoint checkpoint(dir.path());
  EXPECT_TRUE(checkpoint.has_weights());
  EXPECT_TRUE(checkpoint.has_index());
  EXPECT_EQ(checkpoint.files().size(), 3u);
  EXPECT_EQ(checkpoint.names().size(), 8u);
  EXPECT_EQ(checkpoint.config().at("model_type").as_string(), "qwen3_5");
  const TensorInfo* info = checkpoint.find("model.visual.patch");
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->dtype, DType::bf16);
  EXPECT_EQ(info->shape, (std::vector<int64_t>{2, 1, 2, 3, 2}));
  EXPECT_EQ(checkpoint.find("model.a.weight")->dtype, DType::f16);
  EXPECT_EQ(checkpoint.find("model.A_log")->dtype, DType::f32);
  EXPECT_EQ(checkpoint.find("table"), nullptr);             // F8 is no dtype of ours ...
  EXPECT_EQ(checkpoint.stored("table")->dtype, "F8_E4M3");  // ... but is seen and carried
  EXPECT_EQ(checkpoint.bytes("table").size(), 5u);
  EXPECT_EQ(checkpoint.find("absent"), nullptr);
  EXPECT_TRUE(has(error_text(ErrorKind::model, [&] { checkpoint.bytes("absent"); }), "no tensor \"absent\""));
  std::vector<std::byte> read(30);
  checkpoint.read("model.b.weight", read.data());
  EXPECT_EQ(std::memcmp(read.data(), checkpoint.bytes("model.b.weight").data(), 30), 0);
}

TEST(HfCheckpoint, MissingShardsAreListedAtOnce) {
  const TempFolder dir("ck_missing");
  write_sharded_checkpoint(dir.path());
  fs::remove(dir / "x.safetensors");
  fs::remove(dir / "layers-22.safetensors");
  const std::string text = problem_of(dir.path());
  EXPECT_TRUE(has(text, "2 of 3 weight files are missing: layers-22.safetensors, x.safetensors")) << text;
  EXPECT_TRUE(has(text, "incomplete download?")) << text;
}

TEST(HfCheckpoint, IndexAndFilesMustAgree) {
  const TempFolder dir("ck_stale");
  write_sharded_checkpoint(dir.path());
  write_tensors(dir / "x.safetensors", {{"lm_head.weight", "BF16", {6, 2}}});
  std::string text = problem_of(dir.path());
  EXPECT_TRUE(has(text, "maps tensor \"table\" to x.safetensors, whose header lacks it")) << text;
  write_tensors(dir / "x.safetensors",
                {{"lm_head.weight", "BF16", {6, 2}}, {"table", "F32", {1}}, {"new", "F32", {1}}});
  text = problem_of(dir.path());
  EXPECT_TRUE(has(text, "x.safetensors holds tensor \"new\", which the index does not list")) << text;
  write_tensors(dir / "x.safetensors",
                {{"lm_head.weight", "BF16", {6, 2}}, {"table", "F32", {1}}, {"model.A_log", "F32", {1}}});
  text = problem_of(dir.path());
  EXPECT_TRUE(
      has(text, "\"model.A_log\" is in x.safetensors, but the index maps it to layers-22.safetensors"))
      << text;
  fs::rename(dir / "x.safetensors", dir / "renamed.safetensors");  // stale index: no globbing as a fallback
  EXPECT_TRUE(has(problem_of(dir.path()), "1 of 3 weight files are missing: x.safetensors"));
}

TEST(HfCheckpoint, WithoutIndexOneFileOfAnyNameIsTaken) {
  const TempFolder dir("ck_single");
  write_text(dir / "config.json", "{}");
  EXPECT_FALSE(HfCheckpoint(dir.path()).has_weights());
  write_tensors(dir / "odd-name.safetensors", {{"a", "F32", {1}}});
  EXPECT_EQ(HfCheckpoint(dir.path()).names(), (std::vector<std::string>{"a"}));
  write_tensors(dir / "second.safetensors", {{"b", "F32", {1}}});
  const std::string text = problem_of(dir.path());
  EXPECT_TRUE(has(
      text,
      "2 .safetensors files and no model.safetensors.index.json: odd-name.safetensors, second.safetensors"))
      << text;
  write_tensors(dir / "model.safetensors", {{"c", "F32", {1}}});
  EXPECT_EQ(HfCheckpoint(dir.path()).names(), (std::vector<std::string>{"c"}));
}

TEST(HfCheckpoint, NamesInTheIndexCannotLeaveTheFolder) {
  const TempFolder dir("ck_traversal");
  write_tensors(dir / "outside.safetensors", {{"a", "F32", {1}}});
  const fs::path model = dir / "model";
  write_text(model / "config.json", "{}");
  for (const char* shard :
       {"../outside.safetensors", "/etc/passwd", "", ".", "..", "sub/x.safetensors", "config.json",
        "..\\\\outside.safetensors", ".safetensors", "a\\u0000.safetensors", "a\\n.safetensors"}) {
    write_text(model / index_file_name, std::string("{\"weight_map\":{\"a\":\"") + shard + "\"}}");
    EXPECT_TRUE(has(problem_of(model), "which is no file name of a .safetensors file")) << shard;
  }
  for (const char* index :
       {"", "[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":{}}", "{\"weight_map\":{\"a\":1}}",
        "{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"x.safetensors\"}}", "{\"weight_map\""}) {
    write_text(model / index_file_name, index);
    EXPECT_TRUE(has(problem_of(model), "index")) << index;
  }
}

TEST(HfCheckpoint, OtherFormatsAreNamed) {
  const TempFolder dir("ck_formats");
  EXPECT_TRUE(has(problem_of(dir / "absent"), "no such model folder"));
  EXPECT_TRUE(has(problem_of(dir.path()), "no config.json"));
  write_text(dir / "checkpoint-40" / "config.json", "{}");
  EXPECT_TRUE(has(problem_of(dir.path()), "checkpoint-40"));
  write_text(dir / "a.gguf", "GGUF");
  EXPECT_TRUE(has(problem_of(dir.path()), "GGUF"));
  write_text(dir / "config.json", "{}");
  EXPECT_TRUE(has(problem_of(dir.path()), "GGUF"));
  fs::remove(dir / "a.gguf");
  write_text(dir / "pytorch_model.bin", "x");
  EXPECT_TRUE(has(problem_of(dir.path()), "pickle"));
  fs::remove(dir / "pytorch_model.bin");
  write_tensors(dir / "adapter_model.safetensors", {{"a.lora_A.weight", "F32", {1}}});
  EXPECT_TRUE(has(problem_of(dir.path()), "LoRA adapter"));
  fs::remove(dir / "config.json");
  write_text(dir / "adapter_config.json", "{}");
  EXPECT_TRUE(has(problem_of(dir.path()), "LoRA adapter"));
  for (const char* config : {"", "[]", "{", "\xff"}) {
    write_text(dir / "config.json", config);
    EXPECT_TRUE(has(problem_of(dir.path()), "config.json"));
  }
}

TEST(HfCheckpoint, QuantisedCheckpointsAreRefusedForTraining) {
  const TempFolder dir("ck_quantised");
  const auto refusal = [&](std::string_view config, const std::vector<PlannedTensor>& tensors) {
    write_text(dir / "config.json", config);
    write_tensors(dir / "model.safetensors", tensors);
    const HfCheckpoint checkpoint(dir.path());
    return error_text(ErrorKind::model, [&] { checkpoint.check_trainable(); });
  };
  const std::vector<PlannedTensor> plain{
      {"a.weight", "BF16", {2}}, {"b.weight", "F16", {2}}, {"c", "F32", {2}}};
  EXPECT_EQ(refusal("{}", plain), "");
  EXPECT_EQ(refusal(R"({"quantization_config":null})", plain), "");
  EXPECT_TRUE(has(refusal(R"({"quantization_config":{"quant_method":"fp8"}})", plain), "quantised (fp8)"));
  EXPECT_TRUE(has(refusal(R"({"text_config":{"quantization_config":{}}})", plain), "quantization_config"));
  EXPECT_TRUE(has(refusal("{}", {{"a.weight", "F8_E4M3", {2}}}), "\"a.weight\" is F8_E4M3"));
  EXPECT_TRUE(has(refusal("{}", {{"a.weight", "F4", {2}}}), "F4"));
  EXPECT_TRUE(has(refusal("{}", {{"a.weight_scale_inv", "F32", {2}}}), "a.weight_scale_inv"));
  EXPECT_TRUE(has(refusal("{}", {{"a.input_scale", "F32", {2}}}), "a.input_scale"));
  EXPECT_TRUE(has(refusal("{}", {{"a.qweight", "I32", {2}}}), "a.qweight"));
  EXPECT_TRUE(has(refusal("{}", {{"a.lora_A.weight", "F32", {2}}}), "LoRA"));
}

TEST(Finite, CountsPerDtypeAndListsTensors) {
  const std::vector<uint16_t> bf16s{0x7f80, 0xff80, 0x7fc0, 0x7f7f, 0x0001};
  NonFinite found = count_nonfinite(DType::bf16, std::as_bytes(std::span(bf16s)));
  EXPECT_EQ(found.infinite, 2);
  EXPECT_EQ(found.nan, 1);
  EXPECT_EQ(found.first, 0);
  const std::vector<uint16_t> f16s{0x7bff, 0x7c00, 0xfc01};
  found = count_nonfinite(DType::f16, std::as_bytes(std::span(f16s)));
  EXPECT_EQ(found.infinite, 1);
  EXPECT_EQ(found.nan, 1);
  EXPECT_EQ(found.first, 1);
  const std::vector<double> doubles{1e308, -HUGE_VAL, 0.0};
  EXPECT_EQ(count_nonfinite(DType::f64, std::as_bytes(std::span(doubles))).infinite, 1);
  const std::vector<int64_t> ints{-1};
  EXPECT_FALSE(count_nonfinite(DType::i64, std::as_bytes(std::span(ints))).any());

  const TempFolder dir("ck_finite");
  write_text(dir / "config.json", "{}");
  const float values[]{1.0f, 2.0f, NAN, INFINITY};
  const auto tensors = place_tensors(std::vector<PlannedTensor>{{"good", "F32", {1}}, {"bad", "F32", {3}}});
  write_text(dir / "model.safetensors",
             safetensors_head(tensors).append(reinterpret_cast<const char*>(values), sizeof values));
  const HfCheckpoint checkpoint(dir.path());
  const std::vector<std::string> good{"good", "absent"};
  check_finite(checkpoint, good);
  const std::vector<std::string> all{"good", "bad"};
  const std::string text = error_text(ErrorKind::model, [&] { check_finite(checkpoint, all); });
  EXPECT_TRUE(has(text, "in 1 tensors: \"bad\" (1 NaN, 1 infinite, first at element 1)")) << text;
}

}  // namespace
}  // namespace deltatune
