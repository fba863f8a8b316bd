// Compares with the PyPI package `tokenizers` through hf_tokenizer_check.py, which is run here.
//
// DELTATUNE_PYTHON names the interpreter (python3 otherwise), DELTATUNE_HF_STRINGS the number of random
// strings per tokenizer (1000 otherwise), DELTATUNE_HF_BLOCK_STRINGS of strings over all Unicode blocks for
// the patterns of Qwen (20000 otherwise).
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "base/format.h"
#include "base/json.h"
#include "base/rng.h"
#include "text/tokenizer.h"

namespace deltatune {
namespace {

std::string environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

struct Counts {
  int compared = 0;
  int mismatches = 0;
};

void check(const Tokenizer& tokenizer, const json::Value& test, Rng& random, Counts& counts) {
  const std::string& text = test.at("text").as_string();
  std::vector<int32_t> wanted;
  for (const json::Value& id : test.at("ids").as_array())
    wanted.push_back(static_cast<int32_t>(id.as_integer()));
  ++counts.compared;
  bool good = tokenizer.encode(text, true) == wanted;
  // The package's ByteLevel decoder takes the non-ASCII letters of an added token for bytes; ours does not.
  if (text.find("<n\u00e9>") == std::string::npos && text.find("<ne\u0301>") == std::string::npos) {
    good = good && tokenizer.decode_utf8(wanted) == test.at("decoded").as_string();
  }
  // Marks never change ids: all template is the plain call, and parity looks at no mark.
  MarkedText marked{text, std::vector<uint8_t>(text.size(), mark_template | mark_supervised)};
  const MarkedTokens all = tokenizer.encode(marked);
  good = good && all.ids == wanted && all.supervised == std::vector<uint8_t>(wanted.size(), 1);
  uint8_t flags = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool starts_character = (static_cast<uint8_t>(text[i]) & 0xC0) != 0x80;
    if (starts_character && random.below(4) == 0) flags = static_cast<uint8_t>(random.below(4));
    marked.flags[i] = flags;
  }
  const MarkedTokens parity = tokenizer.encode(marked, true);
  good = good && parity.ids == wanted && parity.supervised.size() == wanted.size();
  if (text.find('<') == std::string::npos) good = good && tokenizer.encode(marked).ids == wanted;
  if (good) return;
  if (++counts.mismatches <= 5) {
    ADD_FAILURE() << json::quote(text.substr(0, 400))
                  << "\n ours: " << testing::PrintToString(tokenizer.encode(text, true))
                  << "\n want: " << testing::PrintToString(wanted);
  }
}

TEST(TokenizerHf, IdsEqualThePackages) {
  const fs::path folder = fs::path(testing::TempDir()) / format("hf_tokenizer_{}", getpid());
  const fs::path source(DELTATUNE_SOURCE_DIR);
  const fs::path shared = source / ".." / "shared" / "data";
  std::string command =
      format("'{}' '{}' '{}' {} {}", environment("DELTATUNE_PYTHON", "python3"),
             (source / "tests" / "text" / "hf_tokenizer_check.py").string(), folder.string(),
             environment("DELTATUNE_HF_STRINGS", "1000"), environment("DELTATUNE_HF_BLOCK_STRINGS", "20000"));
  if (fs::exists(shared / "tokenizer" / "qwen3" / "tokenizer.json")) {
    command += format(" '{}'", (shared / "tokenizer" / "qwen3").string());
    if (fs::exists(shared / "chat")) command += format(" '{}'", (shared / "chat").string());
  }
  const int status = std::system(command.c_str());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == 77)
    GTEST_SKIP() << "needs the Python package tokenizers (DELTATUNE_PYTHON names the interpreter)";
  if (code == 127) GTEST_SKIP() << "needs python3";
  ASSERT_EQ(code, 0);

  Rng random(11);
  Counts total;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    SCOPED_TRACE(entry.path().filename().string());
    const Tokenizer tokenizer = Tokenizer::load(entry.path());
    const std::string cases = read_file(entry.path() / "cases.jsonl");
    Counts counts;
    for (size_t at = 0; at < cases.size();) {
      const size_t end = cases.find('\n', at);
      check(tokenizer, json::parse(std::string_view(cases).substr(at, end - at), "case"), random, counts);
      at = end + 1;
    }
    std::printf("%s: %d strings, %d mismatches\n", entry.path().filename().c_str(), counts.compared,
                counts.mismatches);
    total.compared += counts.compared;
    total.mismatches += counts.mismatches;
  }
  fs::remove_all(folder);
  EXPECT_GT(total.compared, 26000);
  EXPECT_EQ(total.mismatches, 0);
}

}  // namespace
}  // namespace deltatune
