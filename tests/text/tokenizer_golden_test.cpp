// The real Qwen3 tokenizer on the strings of qwen3_token_golden.json. Where the stored ids, which come from a
// JavaScript implementation, are known to differ from the reference implementation, the latter's are written
// here.
#include <gtest/gtest.h>

#include <map>

#include "base/json.h"
#include "base/log.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace deltatune {
namespace {

const fs::path shared_folder = fs::path(DELTATUNE_SOURCE_DIR) / ".." / "shared" / "data" / "tokenizer";

std::vector<int32_t> ids_of(const json::Value& list) {
  std::vector<int32_t> out;
  for (const json::Value& id : list.as_array()) out.push_back(static_cast<int32_t>(id.as_integer()));
  return out;
}

std::string bytes_of_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

const Tokenizer& qwen3() {
  static const Tokenizer tokenizer = Tokenizer::load(shared_folder / "qwen3");
  return tokenizer;
}

class Qwen3Golden : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(shared_folder / "qwen3" / "tokenizer.json"))
      GTEST_SKIP() << "needs ../shared/data/tokenizer";
  }
};

TEST_F(Qwen3Golden, EveryCase) {
  const json::Value golden = json::parse_file((shared_folder / "qwen3_token_golden.json").string());
  int compared = 0;
  for (const json::Value& test : golden.at("cases").as_array()) {
    const std::string& name = test.at("name").as_string();
    if (test.find("utf8_hex") == nullptr || test.find("ids") == nullptr) continue;
    const std::string text = bytes_of_hex(test.at("utf8_hex").as_string());
    EXPECT_EQ(qwen3().encode(text, true), ids_of(test.at("ids"))) << name;
    if (const json::Value* literal = test.find("ids_literal")) {
      EXPECT_EQ(qwen3().encode(text, false), ids_of(*literal)) << name;
    }
    if (const json::Value* same = test.find("decode_equals_nfc"); same != nullptr && same->as_bool()) {
      EXPECT_EQ(qwen3().decode(ids_of(test.at("ids"))), normalize_nfc(text).text) << name;
    }
    ++compared;
  }
  EXPECT_GE(compared, 20);
}

TEST_F(Qwen3Golden, Facts) {
  EXPECT_EQ(qwen3().vocab_size(), 151669);
  EXPECT_EQ(qwen3().eos_id(), 151645);
  EXPECT_EQ(qwen3().pad_id(), 151643);
  EXPECT_EQ(qwen3().bos_id(), std::nullopt);
  EXPECT_EQ(qwen3().id_of("<think>"), 151667);
  EXPECT_TRUE(qwen3().is_added(151667));
  EXPECT_FALSE(qwen3().is_special(151667));
  EXPECT_TRUE(qwen3().is_special(151645));
  EXPECT_EQ(qwen3().encode("<|im_end|>", false), (std::vector<int32_t>{27, 91, 318, 6213, 91, 29}));
  EXPECT_EQ(qwen3().decode(std::vector<int32_t>{151935, 9707}), "Hello");
}

TEST_F(Qwen3Golden, LongWord) {
  std::string word;
  while (word.size() < 1000000) word += "QmFzZTY0IHRleHQgd2l0aG91dCBzcGFjZXM";
  EXPECT_EQ(qwen3().decode(qwen3().encode(word, true)), word);
}

}  // namespace
}  // namespace deltatune
