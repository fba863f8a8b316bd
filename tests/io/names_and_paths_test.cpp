// Names that do not fit, and where models are looked up.
#include <gtest/gtest.h>

#include <cstdlib>

#include "io/model_path.h"
#include "io/tensor_names.h"
#include "io/test_files.h"

namespace deltatune {
namespace {

const std::vector<std::string> expected{"model.language_model.embed_tokens.weight",
                                        "model.language_model.layers.0.mlp.up_proj.weight", "lm_head.weight"};
const std::vector<std::string> carried{"model.visual.", "mtp."};

std::string problem_of(const std::vector<std::string>& present) {
  return error_text(ErrorKind::model, [&] { check_tensor_names(expected, present, carried, "folder"); });
}

TEST(TensorNames, CarriedTensorsAreNotUnknown) {
  std::vector<std::string> present = expected;
  present.push_back("mtp.fc.weight");
  present.push_back("model.visual.pos_embed.weight");
  EXPECT_EQ(problem_of(present), "");
  present.push_back("model.language_model.extra");
  EXPECT_TRUE(has(problem_of(present), "unknown \"model.language_model.extra\""));
  EXPECT_FALSE(has(problem_of(present), "missing"));
}

TEST(TensorNames, ListsMissingAndUnknownAndGuessesTheCause) {
  const auto with_prefix = [](const std::string& old, const std::string& fresh) {
    std::vector<std::string> out;
    for (std::string name : expected) {
      if (name.starts_with(old)) name.replace(0, old.size(), fresh);
      out.push_back(name);
    }
    return out;
  };
  std::string text =
      problem_of(with_prefix("model.language_model.", "model.language_model.language_model.language_model."));
  EXPECT_TRUE(has(text, "missing \"model.language_model.embed_tokens.weight\"")) << text;
  EXPECT_TRUE(has(text, "unknown \"model.language_model.language_model.language_model.embed_tokens.weight\""))
      << text;
  EXPECT_TRUE(has(text, "transformers 5.5.0 to 5.5.3")) << text;
  EXPECT_TRUE(has(text, "rename 2 tensors")) << text;
  std::vector<std::string> visual = expected;
  visual.push_back("model.language_model.visual.pos_embed.weight");
  EXPECT_TRUE(has(problem_of(visual), "transformers 5.5.0 to 5.5.3"));
  EXPECT_TRUE(has(problem_of(with_prefix("model.language_model.", "language_model.model.")), "MLX"));
  EXPECT_TRUE(has(problem_of(with_prefix("model.language_model.", "model.")), "qwen3_5_text"));
  EXPECT_TRUE(has(problem_of(with_prefix("", "base_model.model.")), "PEFT"));
  EXPECT_TRUE(has(problem_of(with_prefix("", "module.")), "DistributedDataParallel"));
  EXPECT_TRUE(has(problem_of(with_prefix("", "_orig_mod.")), "torch.compile"));
  EXPECT_TRUE(has(problem_of(with_prefix("model.language_model.", "")), "without the outer model"));
  EXPECT_TRUE(has(problem_of({"model.layers.0.q_proj.lora_A.weight"}), "merge"));
  const std::string unrelated = problem_of({"bert.encoder.weight"});
  EXPECT_TRUE(has(unrelated, "missing") && has(unrelated, "bert.encoder.weight"));
  EXPECT_FALSE(has(unrelated, "suspected"));
  std::vector<std::string> many;
  for (int i = 0; i < 300; ++i) many.push_back("junk." + std::to_string(i));
  EXPECT_TRUE(has(problem_of(many), "(300 in all)"));
}

class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  ~Environment() { old_.empty() ? ::unsetenv(name_) : ::setenv(name_, old_.c_str(), 1); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::string old_;
};

TEST(ModelPath, FolderCacheAndErrors) {
  const TempFolder dir("model_path");
  const Environment hub("HF_HUB_CACHE", "");
  const Environment home("HF_HOME", dir.path().string());
  EXPECT_EQ(hf_hub_cache(), dir / "hub");
  EXPECT_EQ(resolve_model_path(dir.path().string()), dir.path());
  const fs::path model = dir / "hub" / "models--org--name";
  const auto problem = [](const std::string& name) {
    return error_text(ErrorKind::model, [&] { resolve_model_path(name); });
  };
  EXPECT_TRUE(has(problem("org/name"), "neither a folder nor a model in the local"));
  EXPECT_TRUE(has(problem("org/name"), "never downloads"));
  EXPECT_TRUE(has(problem("org/name"), model.string()));
  write_text(model / "refs" / "main", "abc123\n");
  EXPECT_TRUE(has(problem("org/name"), "not its revision main"));
  fs::create_directories(model / "snapshots" / "abc123");
  EXPECT_EQ(resolve_model_path("org/name"), model / "snapshots" / "abc123");
  EXPECT_EQ(resolve_model_path("org/name", "abc123"), model / "snapshots" / "abc123");
  write_text(model / "refs" / "main", "../../../..");
  EXPECT_TRUE(has(problem("org/name"), "not its revision"));
  EXPECT_TRUE(has(problem("no/such/folder"), "no such folder"));
  EXPECT_TRUE(has(problem("../org"), "no such folder"));
  write_text(dir / "file.safetensors", "x");
  EXPECT_TRUE(has(problem((dir / "file.safetensors").string()), "this is a file"));
  const Environment direct("HF_HUB_CACHE", (dir / "elsewhere").string());
  EXPECT_EQ(hf_hub_cache(), dir / "elsewhere");
}

}  // namespace
}  // namespace deltatune
