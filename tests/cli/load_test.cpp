// Rules of the configuration loader, one table row per rule.
#include "cli/load.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"

namespace deltatune::cli {
namespace {

// Everything an error says, or "" when the text loads.
std::string complaint(const std::string& text, const std::vector<std::string>& words = {},
                      unsigned verb = reader::train) {
  try {
    load_text(text, "cfg.yaml", split(words, verb).flags, verb);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.text();
  }
  return "";
}

Config loaded(const std::string& text, const std::vector<std::string>& words = {},
              unsigned verb = reader::train) {
  return load_text(text, "cfg.yaml", split(words, verb).flags, verb).config;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Refusal {
  const char* yaml;
  const char* says;
  const char* also;
};

TEST(Load, RefusesWithPlaceAndAdvice) {
  const Refusal cases[] = {
      {"learning_rat: 1", "unknown key learning_rat", "did you mean learning_rate?"},
      {"seed: 1\nlearning_rat: 1", "cfg.yaml:2", ""},
      {"learning_rate: fast", "a number from 0 to 1", "\"fast\""},
      {"learning_rate: 3", "a number from 0 to 1", "found 3"},
      {"learning_rate: .nan", "a number from 0 to 1", ""},
      {"learning_rate: [1, 2]", "found a list", ""},
      {"max_steps: 1.5", "a whole number", "1.5"},
      {"max_steps: 99999999999999999999", "a whole number", ""},
      {"max_length: 0", "from 2 to", ""},
      {"num_train_epochs: 0", "above 0", ""},
      {"deterministic: maybe", "true or false", ""},
      {"train_on: asistant", "one of assistant, last, all", "did you mean assistant?"},
      {"report_to: [jsonl, wandb]", "wandb", ""},
      {"grad_dtype: bf16", "not supported in this version", "f32"},
      {"dataset: {a: b}", "an entry of dataset has no a", "path"},
      {"dataset: [{path: a, wieght: 2}]", "has no wieght", "did you mean weight?"},
      {"dataset: [{weight: 2}]", "without a path", ""},
      {"dataset: [{path: [a, b]}]", "a list that holds a list", ""},
      {"dataset: [{path: a}]\ndataset_weights: [1]", "dataset_weights is set twice", ""},
      {"dataset: [[a]]", "a list that holds a list", ""},
      {"chat_template_kwargs: 3", "a map of names to values", ""},
      {"seed: 1\nseed: 2", "seed is given twice", "cfg.yaml:2"},
      {"lr: 1e-4\nlearning_rate: 1e-5", "learning_rate is set twice", "cfg.yaml:1 and cfg.yaml:2"},
      {"deepspeed: ds.json", "another framework", "shard"},
      {"lora_r: 8", "another framework", "--ignore-foreign-keys"},
      {"fsdp_config: {a: 1}", "another framework", "FULL_SHARD"},
      {"bf16: perhaps", "true or false", "dtype"},
      {"packing: true\nbatching: packed", "batching is set twice", ""},
      {"fp16: true", "fp16", ""},
      {"prompt: hello", "command line", "--prompt"},
      {"- a\n- b", "a map of keys", "a list"},
      {"just words", "a map of keys", "a single value"},
      {"a: &x 1\nb: *x", "anchors and aliases", ""},
      {"<<: {a: 1}", "merge keys", ""},
      {"seed:\n\t- 1", "not valid YAML", "tabs"},
      {"seed: [1", "not valid YAML", "cfg.yaml:"},
      {"seed: 1\n---\nseed: 2", "second document", ""},
      {"? [a]\n: 1", "a key must be a word", ""},
      {"seed: !!int 3", "tag", ""},
  };
  for (const Refusal& row : cases) {
    const std::string text = complaint(row.yaml);
    EXPECT_TRUE(contains(text, row.says)) << row.yaml << "\n" << text;
    EXPECT_TRUE(contains(text, row.also)) << row.yaml << "\n" << text;
  }
}

TEST(Load, ExpandingAliasesAreRefusedAtOnce) {
  std::string bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n";
  for (char c = 'b'; c <= 'z'; ++c) {
    const std::string before(1, static_cast<char>(c - 1));
    bomb += std::string(1, c) + ": &" + c + " [";
    for (int i = 0; i < 9; ++i) bomb += "*" + before + (i < 8 ? "," : "]\n");
  }
  EXPECT_TRUE(contains(complaint(bomb), "anchors"));
  EXPECT_TRUE(contains(complaint("dataset: " + std::string(5000, '[')), "nesting"));
  EXPECT_TRUE(contains(complaint(std::string((1 << 20) + 1, '#')), "1 MiB"));
}

TEST(Load, EntriesOfDatasetMayCarryTheirWeights) {
  for (const char* text : {"dataset: [a.jsonl, {path: b.jsonl, weight: 0.5}, {path: c.jsonl}]",
                           "train_dataset:\n- a.jsonl\n- path: b.jsonl\n  weight: 0.5\n- path: c.jsonl\n"}) {
    const Loaded result = load_text(text, "cfg.yaml", {}, reader::train);
    EXPECT_EQ(result.config.dataset, (std::vector<std::string>{"a.jsonl", "b.jsonl", "c.jsonl"}));
    EXPECT_EQ(result.config.dataset_weights, (std::vector<std::string>{"1", "0.5", "1"}));
    const Loaded again = load_text(resolved_yaml(result), "config.resolved.yaml", {}, reader::train);
    EXPECT_EQ(again.config.dataset_weights, result.config.dataset_weights);
  }
  EXPECT_EQ(loaded("dataset: {path: a, weight: 2}").dataset_weights, std::vector<std::string>{"2"});
  EXPECT_TRUE(loaded("dataset: [a, b]").dataset_weights.empty());
}

TEST(Load, FlagBeatsFileBeatsDefault) {
  EXPECT_DOUBLE_EQ(loaded("").learning_rate, 1e-5);
  EXPECT_DOUBLE_EQ(loaded("learning_rate: 2e-5").learning_rate, 2e-5);
  EXPECT_DOUBLE_EQ(loaded("learning_rate: 2e-5", {"--learning-rate", "3e-5"}).learning_rate, 3e-5);
  EXPECT_DOUBLE_EQ(loaded("learning_rate: 2e-5", {"--lr=3e-5"}).learning_rate, 3e-5);
}

TEST(Load, FlagSpellings) {
  EXPECT_EQ(loaded("", {"--max_steps", "-1"}).max_steps, -1);
  EXPECT_EQ(loaded("", {"--max-steps=7"}).max_steps, 7);
  EXPECT_TRUE(loaded("", {"--deterministic"}).deterministic);
  EXPECT_TRUE(loaded("", {"--deterministic", "true"}).deterministic);
  EXPECT_FALSE(loaded("deterministic: true", {"--no-deterministic"}).deterministic);
  EXPECT_FALSE(loaded("deterministic: true", {"--deterministic=false"}).deterministic);
  EXPECT_EQ(loaded("", {"--resume-from-checkpoint"}).resume_from_checkpoint, "true");
  EXPECT_EQ(loaded("", {"--resume-from-checkpoint", "out/checkpoint-5"}).resume_from_checkpoint,
            "out/checkpoint-5");
  EXPECT_EQ(loaded("dataset: z", {"--dataset", "a", "--dataset", "b"}).dataset,
            (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(loaded("", {"--dataset", "[a, b]"}).dataset, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(loaded("", {"--chat-template-kwargs", "enable_thinking=false"})
                .chat_template_kwargs.at("enable_thinking"),
            "false");
  EXPECT_EQ(loaded("", {"--chat-template-kwargs", "{\"n\": 3}"}).chat_template_kwargs.at("n"), "3");
}

TEST(Load, FlagRefusals) {
  EXPECT_TRUE(contains(complaint("", {"--learning-rat=1"}), "did you mean learning_rate?"));
  EXPECT_TRUE(contains(complaint("", {"--seed=1", "--seed=2"}), "set twice"));
  EXPECT_TRUE(contains(complaint("", {"--prompt", "x"}), "does not read prompt"));
  EXPECT_TRUE(contains(complaint("", {"--lora-r", "8"}), "another framework"));
  EXPECT_THROW(split({"--learning-rate"}, reader::train), Error);
  EXPECT_THROW(split({"--learning-rate", "--seed=1"}, reader::train), Error);
  EXPECT_THROW(split({"-x"}, reader::train), Error);
}

TEST(Load, PositionalWords) {
  const CommandLine line =
      split({"cfg.yaml", "--seed", "3", "--deterministic", "more", "--", "--seed"}, reader::train);
  EXPECT_EQ(line.positional, (std::vector<std::string>{"cfg.yaml", "more", "--seed"}));
  EXPECT_EQ(line.flags.size(), 2u);
}

TEST(Load, PlanDeviceIsACard) {
  EXPECT_EQ(loaded("device: cpu", {"--device", "h200"}, reader::plan).device_card, "h200");
  EXPECT_EQ(loaded("device: cpu", {"--device", "h200"}, reader::plan).device, "cpu");
  EXPECT_EQ(loaded("", {"--device", "cpu"}, reader::train).device, "cpu");
}

TEST(Load, TranslationsOfOtherFrameworks) {
  EXPECT_EQ(loaded("bf16: false").dtype, "f32");
  EXPECT_EQ(loaded("bf16: auto").dtype, "bf16");
  EXPECT_EQ(loaded("torch_dtype: float32").dtype, "f32");
  EXPECT_EQ(loaded("gradient_checkpointing: true").recompute, "block");
  EXPECT_EQ(loaded("gradient_checkpointing: false").recompute, "none");
  EXPECT_EQ(loaded("assistant_only_loss: true").train_on, "assistant");
  EXPECT_EQ(loaded("train_on_inputs: true").train_on, "all");
  EXPECT_EQ(loaded("packing: true").batching, "packed");
  EXPECT_EQ(loaded("packing: false").batching, "padded");
  EXPECT_EQ(loaded("group_by_length: true").batching, "sorted");
  EXPECT_EQ(loaded("optim: adamw_torch_fused").optim, "adamw");
  EXPECT_EQ(loaded("sequence_len: 4096").max_length, 4096);
  EXPECT_EQ(loaded("save_total_limit: null").save_total_limit, 0);
  EXPECT_EQ(loaded("", {"--bf16", "--seed", "3"}).seed, 3);
  EXPECT_EQ(loaded("", {"--no-bf16"}).dtype, "f32");
}

TEST(Load, BatchSizeBecomesTokens) {
  EXPECT_EQ(loaded("per_device_train_batch_size: 4\nmax_length: 1000").max_tokens, 4000);
  EXPECT_EQ(loaded("per_device_train_batch_size: 4", {"--max-length=500"}).max_tokens, 2000);
  EXPECT_EQ(loaded("per_device_train_batch_size: 4", {"--max-tokens=64"}).max_tokens, 64);
  EXPECT_EQ(loaded("max_tokens: 64", {"--micro-batch-size", "2"}).max_tokens, 16384);
  EXPECT_TRUE(contains(complaint("per_device_train_batch_size: 4\nmax_tokens: 9"), "set twice"));
  EXPECT_TRUE(contains(complaint("per_device_train_batch_size: 0"), "whole number"));
}

TEST(Load, NoticesComeOnce) {
  const Loaded result =
      load_text("lr: 1e-4\n", "cfg.yaml", split({"--lr", "2e-4"}, reader::train).flags, reader::train);
  EXPECT_EQ(result.notices, (std::vector<std::string>{"lr is read as learning_rate"}));
  EXPECT_EQ(result.origins.at("learning_rate").source, "flag --lr");
}

TEST(Load, ForeignKeysCanBeIgnoredByName) {
  const Loaded result = load_text("lora_r: 8\nseed: 5\n", "cfg.yaml",
                                  split({"--ignore-foreign-keys"}, reader::train).flags, reader::train);
  EXPECT_EQ(result.config.seed, 5);
  ASSERT_EQ(result.notices.size(), 1u);
  EXPECT_TRUE(contains(result.notices[0], "lora_r is ignored"));
  EXPECT_TRUE(contains(complaint("lorem: 1", {"--ignore-foreign-keys"}), "unknown key"));
}

TEST(Load, ExamplesLoad) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(std::string(DELTATUNE_SOURCE_DIR) + "/examples")) {
    if (entry.path().extension() != ".yaml" || entry.path().parent_path().filename() == "deploy") continue;
    ++files;
    EXPECT_NO_THROW(load(entry.path().string(), {}, reader::train)) << entry.path();
    EXPECT_TRUE(load(entry.path().string(), {}, reader::train).notices.empty()) << entry.path();
  }
  EXPECT_GE(files, 2);
}

TEST(Load, EmptyFileIsAllDefaults) {
  EXPECT_EQ(loaded("# nothing\n").seed, 42);
  EXPECT_TRUE(loaded("").output_dir.empty());
}

}  // namespace
}  // namespace deltatune::cli
