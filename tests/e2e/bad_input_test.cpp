// What users get wrong, through the program: each mistake has its exit code and the three lines, and nothing
// that was there before is lost.
#include "e2e/runs.h"
#include "io/safetensors.h"

namespace deltatune {
namespace {

struct BadInput : testing::Test {
  TempFolder folder{"bad"};
  fs::path model = folder / "model";
  Keys keys;
  void SetUp() override {
    write_small_model(model);
    keys = with(small_keys(model, folder / "out"), {{"max_steps", "2"}});
  }
  // A checkpoint with weights.
  void use_pretrained() {
    fs::remove_all(model);
    fs::copy(source_dir / "tests/golden/tiny_tied/model", model);
    fs::permissions(model, fs::perms::owner_all, fs::perm_options::add);
    for (const fs::directory_entry& entry : fs::directory_iterator(model))
      fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
    write_text(folder / "rows.jsonl", token_rows(source_dir / "tests/golden/tiny_tied/case.json"));
    keys["init"] = "pretrained";
    keys["dataset"] = (folder / "rows.jsonl").string();
  }
  void change_config(const std::string& key, const json::Value& value) const {
    json::Value config = json::parse_file((model / "config.json").string());
    config.set(key, value);
    write_text(model / "config.json", json::dump(config));
  }
  void expect_refused(int code, const std::string& says) const {
    expect_error(run_verb("train", keys), code, says);
    EXPECT_FALSE(fs::exists(folder / "out/model.safetensors"));
  }
};

TEST_F(BadInput, TheCasesStartFromARunThatWorks) {
  EXPECT_EQ(run_verb("train", keys).code, 0);
  use_pretrained();
  keys["output_dir"] = (folder / "second").string();
  const ProgramResult result = run_verb("train", keys);
  EXPECT_EQ(result.code, 0) << result.err;
}

TEST_F(BadInput, MissingShard) {
  use_pretrained();
  fs::rename(model / "model.safetensors", model / "a.safetensors");
  json::Value map;
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight"}) map.set(name, "b.safetensors");
  json::Value index;
  index.set("weight_map", map);
  write_text(model / "model.safetensors.index.json", json::dump(index));
  expect_refused(3, "b.safetensors");
}

TEST_F(BadInput, AWeightOfIntegers) {
  use_pretrained();
  std::string bytes = read_file(model / "model.safetensors");
  const size_t at = bytes.find("\"F32\"");
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 5, "\"I32\"");
  write_text(model / "model.safetensors", bytes);
  expect_refused(3, "does not hold floating-point numbers");
}

TEST_F(BadInput, OverwritingCostsNothingBeforeTheNewRunIsLoaded) {
  keys["save_steps"] = "1";
  ASSERT_EQ(run_verb("train", keys).code, 0);
  keys["overwrite_output_dir"] = "true";
  keys["dataset"] = (folder / "nowhere.jsonl").string();
  expect_error(run_verb("train", keys), 3, "nowhere.jsonl");
  EXPECT_TRUE(fs::exists(folder / "out/checkpoint-2/model.safetensors"));
  EXPECT_TRUE(fs::exists(folder / "out/metrics.jsonl"));
}

TEST_F(BadInput, TruncatedWeights) {
  use_pretrained();
  fs::resize_file(model / "model.safetensors", fs::file_size(model / "model.safetensors") - 100);
  expect_refused(3, "model.safetensors");
  fs::resize_file(model / "model.safetensors", 4);
  expect_refused(3, "model.safetensors");
  fs::resize_file(model / "model.safetensors", 0);
  expect_refused(3, "model.safetensors");
}

TEST_F(BadInput, DamagedWeights) {
  use_pretrained();
  std::string bytes = slurp(model / "model.safetensors");
  for (size_t i = bytes.size() - 4; i < bytes.size(); ++i) bytes[i] = '\xff';  // a NaN in the last tensor
  write_text(model / "model.safetensors", bytes);
  expect_refused(3, "NaN");
}

TEST_F(BadInput, NoWeights) {
  keys["init"] = "pretrained";
  expect_refused(3, "no weights");
}

TEST_F(BadInput, ModelsThatAreNotOurs) {
  change_config("num_experts", 8);
  expect_refused(3, "mixture-of-experts");
  change_config("num_experts", 0);
  change_config("quantization_config", json::Object{{"quant_method", "fp8"}});
  expect_refused(3, "quantised");
  change_config("quantization_config", nullptr);
  change_config("model_type", "llama");
  expect_refused(3, "llama");
}

TEST_F(BadInput, AnAdapter) {
  fs::remove(model / "config.json");
  write_text(model / "adapter_config.json", R"({"peft_type": "LORA"})");
  expect_refused(3, "adapter");
}

TEST_F(BadInput, ATemplateItDoesNotKnow) {
  std::string text = slurp(model / "chat_template.jinja");
  write_text(model / "chat_template.jinja", text + "{% teleport x %}");
  expect_refused(3, "teleport");
  write_text(model / "chat_template.jinja", "{{ messages | frobnicate }}");
  expect_refused(3, "frobnicate");
  write_text(model / "chat_template.jinja", "{% for m in messages %}");
  expect_refused(3, "chat_template.jinja");
}

TEST_F(BadInput, MalformedRows) {
  const std::string good =
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ahoy"}]})";
  for (const std::string& bad :
       {std::string("{\"messages\": ["), std::string("{\"messages\": 7}"), std::string("[]"),
        std::string(R"({"messages": [{"role": "user"}]})"),
        std::string(R"({"messages": [{"role": "wizard", "content": "x"}]})"),
        std::string("{\"text\": \"x\"}"), std::string(R"({"input_ids": [1, 99999], "labels": [1, 2]})"),
        std::string(R"({"input_ids": [1, 2], "labels": [1]})")}) {
    write_text(folder / "rows.jsonl", good + "\n" + bad + "\n" + good + "\n");
    keys["dataset"] = (folder / "rows.jsonl").string();
    keys["on_bad_row"] = "error";
    const ProgramResult result = run_verb("train", keys);
    expect_error(result, 3, "rows.jsonl");
    EXPECT_NE(result.err.find("rows.jsonl, line 2"), std::string::npos) << bad << "\n" << result.err;
    keys["on_bad_row"] = "skip";
    keys["overwrite_output_dir"] = "true";
    const ProgramResult skipped = run_verb("train", keys);
    EXPECT_EQ(skipped.code, 0) << bad << "\n" << skipped.err;
  }
}

TEST_F(BadInput, CutConversationsAreReported) {
  std::string rows;
  for (int i = 0; i < 3; ++i) {
    json::Value row;
    json::Array ids;
    for (int t = 0; t < (i == 0 ? 8 : 20); ++t) ids.emplace_back(1 + i + t);
    row.set("input_ids", ids);
    row.set("labels", ids);
    rows += json::dump(row) + "\n";
  }
  write_text(folder / "rows.jsonl", rows);
  keys = with(keys, {{"dataset", (folder / "rows.jsonl").string()},
                     {"max_length", "12"},
                     {"overwrite_output_dir", "true"}});
  for (const auto& [overflow, says] : std::map<std::string, std::string>{
           {"truncate", "longer than max_length 12: 2 truncated, 0 split; 16 tokens left out"},
           {"split", "longer than max_length 12: 0 truncated, 2 split; 0 tokens left out"},
           {"drop", "0 without a supervised token, 2 too long"}}) {
    keys["overflow"] = overflow;
    const ProgramResult result = run_verb("train", keys);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.err.find(says), std::string::npos) << overflow << "\n" << result.err;
  }
}

TEST_F(BadInput, NothingToTrainOn) {
  write_text(folder / "rows.jsonl", R"({"input_ids": [1, 2, 3], "labels": [-100, -100, -100]})");
  keys["dataset"] = (folder / "rows.jsonl").string();
  expect_refused(3, "1 without a supervised token");
  write_text(folder / "rows.jsonl", "");
  expect_refused(3, "rows.jsonl");
  keys["dataset"] = (folder / "nowhere.jsonl").string();
  expect_refused(3, "nowhere.jsonl");
}

TEST_F(BadInput, Keys) {
  keys["learning_rat"] = "1";
  expect_refused(2, "learning_rate");
  keys.erase("learning_rat");
  keys["max_tokens"] = "-5";
  expect_refused(2, "max_tokens");
  keys["max_tokens"] = "lots";
  expect_refused(2, "max_tokens");
  keys["max_tokens"] = "64";  // less than max_length is not a row
  keys["lr_scheduler_type"] = "zigzag";
  expect_refused(2, "lr_scheduler_type");
}

TEST_F(BadInput, AnOutputFolderInUse) {
  ASSERT_EQ(run_verb("train", keys).code, 0);
  const std::string weights = slurp(folder / "out/model.safetensors");
  const std::string metrics = slurp(folder / "out/metrics.jsonl");
  expect_error(run_verb("train", keys), 2, "already holds a run");
  EXPECT_TRUE(slurp(folder / "out/model.safetensors") == weights);
  EXPECT_EQ(slurp(folder / "out/metrics.jsonl"), metrics);
  keys["output_dir"] = model.string();
  expect_error(run_verb("train", keys), 2, "input model");
}

TEST_F(BadInput, AFullDiskKeepsWhatIsThere) {
  keys["max_steps"] = "10";
  ASSERT_EQ(run_verb("train", with(keys, {{"output_dir", (folder / "straight").string()}})).code, 0);
  // The limit lets the small files through, but no checkpoint.
  const ProgramResult first = run_verb("train", keys, "", "ulimit -f 64;");
  expect_error(first, 4, "out");
  EXPECT_FALSE(fs::exists(folder / "out/checkpoint-5"));
  EXPECT_FALSE(fs::exists(folder / "out/model.safetensors"));
  // A run with a checkpoint that runs into the limit later.
  keys["output_dir"] = (folder / "later").string();
  ASSERT_EQ(run_verb("train", keys).code, 0);
  fs::remove_all(folder / "later/checkpoint-10");
  const std::string weights = slurp(folder / "later/model.safetensors");
  keys["resume_from_checkpoint"] = "true";
  expect_error(run_verb("train", keys, "", "ulimit -f 64;"), 4, "later");
  EXPECT_TRUE(slurp(folder / "later/model.safetensors") == weights);
  EXPECT_EQ(run_verb("train", keys).code, 0);
  EXPECT_TRUE(slurp(folder / "later/model.safetensors") == slurp(folder / "straight/model.safetensors"));
}

TEST_F(BadInput, ALossThatIsNotFinite) {
  use_pretrained();
  // The largest float in all of one matrix: its products overflow.
  std::string bytes = slurp(model / "model.safetensors");
  {
    const SafetensorsFile file(model / "model.safetensors");
    const auto down = file.bytes(*file.find("model.layers.1.mlp.down_proj.weight"));
    const size_t begin = bytes.find(std::string(reinterpret_cast<const char*>(down.data()), down.size()));
    ASSERT_NE(begin, std::string::npos);
    for (size_t i = 0; i < down.size(); i += 4) bytes.replace(begin + i, 4, "\xff\xff\x7f\x7f");
  }
  write_text(model / "model.safetensors", bytes);
  keys = with(keys, {{"max_tokens", "512"}, {"max_length", "512"}, {"dtype", "f32"}, {"max_steps", "3"}});
  expect_refused(6, "not finite at step 1");
  EXPECT_EQ(events(folder / "out", "nan").size(), 1u);
  // Skipping, every step is left out; a run that never updated anything does not end as a success.
  keys["on_nonfinite"] = "skip";
  keys["overwrite_output_dir"] = "true";
  const ProgramResult result = run_verb("train", keys);
  EXPECT_EQ(result.code, 6) << result.err;
  EXPECT_EQ(events(folder / "out", "nan").size(), 3u) << result.err;
  EXPECT_FALSE(fs::exists(folder / "out/model.safetensors"));
  EXPECT_NE(result.err.find("error: no step has updated the weights\n"), std::string::npos) << result.err;
  // With gradient release some blocks may have been updated: the warnings and the end say the same.
  keys = with(keys,
              {{"gradient_release", "true"}, {"max_grad_norm", "0"}, {"gradient_accumulation_steps", "1"}});
  const ProgramResult released = run_verb("train", keys);
  EXPECT_EQ(released.code, 6) << released.err;
  EXPECT_NE(released.err.find("blocks from the first such gradient on are not updated"), std::string::npos)
      << released.err;
  EXPECT_NE(released.err.find("error: no step has updated all of the weights\n"), std::string::npos)
      << released.err;
}

}  // namespace
}  // namespace deltatune
