// From a configuration to tokenizer and template: what is part of the fingerprint, and what is warned of.
#include "train/text_source.h"

#include <gtest/gtest.h>

#include <set>

#include "base/file.h"
#include "scratch_folder.h"

namespace deltatune {
namespace {

const fs::path demo = fs::path(DELTATUNE_SOURCE_DIR) / "examples/demo/model";

Config demo_config() {
  Config config;
  config.model_name_or_path = demo.string();
  return config;
}

TEST(TextSource, EverythingThatChangesTokensChangesTheFingerprint) {
  const std::string plain = open_text(demo_config()).fingerprint();
  EXPECT_EQ(open_text(demo_config()).fingerprint(), plain) << "a pure function of the configuration";
  std::set<std::string> seen = {plain};
  const auto differs = [&](const char* what, auto&& change) {
    Config config = demo_config();
    change(config);
    EXPECT_TRUE(seen.insert(open_text(config).fingerprint()).second) << what;
  };
  differs("train_on", [](Config& c) { c.train_on = "all"; });
  differs("think_prefix", [](Config& c) { c.think_prefix = "all"; });
  differs("a variable", [](Config& c) { c.chat_template_kwargs["enable_thinking"] = "false"; });
  differs("its value", [](Config& c) { c.chat_template_kwargs["enable_thinking"] = "true"; });
  differs("--set", [](Config& c) { c.set = {"enable_thinking=1"}; });
  differs("control tokens", [](Config& c) { c.parse_special_in_content = true; });
  ScratchFolder scratch;
  const std::string source = read_file(demo / "chat_template.jinja");
  differs("the template", [&](Config& c) { c.chat_template = scratch.write("t.jinja", source + "{# x #}"); });
  // Another tokenizer: one byte of its configuration.
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    if (fs::exists(demo / file)) scratch.write(file, read_file(demo / file));
  }
  scratch.write("tokenizer.json", read_file(demo / "tokenizer.json") + " ");
  differs("the tokenizer", [&](Config& c) { c.tokenizer_name_or_path = scratch.path().string(); });
}

// Where the files are, and what does not reach a token, is no part of it: the cache stays good.
TEST(TextSource, PathsAndOtherKeysLeaveTheFingerprint) {
  const std::string plain = open_text(demo_config()).fingerprint();
  ScratchFolder scratch;
  for (const auto& entry : fs::directory_iterator(demo)) {
    if (entry.is_regular_file()) scratch.write(entry.path().filename().string(), read_file(entry.path()));
  }
  Config moved = demo_config();
  moved.model_name_or_path = scratch.path().string();
  moved.seed = 7;
  moved.max_tokens = 512;
  EXPECT_EQ(open_text(moved).fingerprint(), plain);
}

TEST(TextSource, WarnsOfVariablesThatTheTemplateNeverReads) {
  const ChatTemplate chat = ChatTemplate::compile(
      "{% set own = 1 %}{% macro m(x, y=deep) %}{{ x }}{% endmacro %}{% for t in messages if cond %}"
      "{{ m(arg, k=named) }}{% endfor %}{{ '' if flag is defined else (a ~ b)[lo:hi] | join(sep) }}",
      "t.jinja");
  const std::vector<std::string> read = chat.names_read();
  for (const char* name : {"deep", "cond", "arg", "named", "flag", "a", "b", "lo", "hi", "sep", "messages"})
    EXPECT_TRUE(std::binary_search(read.begin(), read.end(), name)) << name;
  EXPECT_FALSE(std::binary_search(read.begin(), read.end(), "own"));
  Config config;
  config.chat_template_kwargs = {{"flag", "true"}, {"flags", "true"}};
  config.set = {"elsewhere=1"};
  testing::internal::CaptureStderr();
  warn_unread_variables(chat, config);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("never reads flags"), std::string::npos) << said;
  EXPECT_NE(said.find("did you mean flag?"), std::string::npos) << said;
  EXPECT_NE(said.find("never reads elsewhere"), std::string::npos) << said;
  EXPECT_EQ(said.find("never reads flag:"), std::string::npos) << said;
}

}  // namespace
}  // namespace deltatune
