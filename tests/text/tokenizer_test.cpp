// The whole tokenizer on a tiny vocabulary: added tokens, marks, decoding, and what its files may not say.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "base/error.h"
#include "base/format.h"
#include "text/tiny_tokenizer.h"

namespace deltatune {
namespace {

using Ids = std::vector<int32_t>;
constexpr int32_t end_token = 272;
constexpr int32_t start_token = 273;
constexpr int32_t think_token = 274;
constexpr int32_t th_token = 275;

Tokenizer make(const json::Value& file = tiny_tokenizer(), const std::string& config = "") {
  return Tokenizer::parse(json::dump(file), config, "here");
}

// "where" marks each byte: T template, t template and supervised, C content, c content and supervised.
MarkedText marked(const std::string& text, const std::string& where) {
  MarkedText out{text, {}};
  for (const char c : where) {
    const int bits =
        (c == 'T' || c == 't' ? mark_template : 0) | (c == 't' || c == 'c' ? mark_supervised : 0);
    out.flags.push_back(static_cast<uint8_t>(bits));
  }
  return out;
}

Ids bytes(const std::string& text) {
  Ids out;
  for (const char c : text) out.push_back(static_cast<uint8_t>(c));
  return out;
}

Ids operator+(Ids left, const Ids& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

TEST(Tokenizer, EncodesAndDecodes) {
  const Tokenizer tokenizer = make();
  const Ids ids = tokenizer.encode("hello world", false);
  EXPECT_EQ(ids, (Ids{259, 264}));
  EXPECT_EQ(tokenizer.decode(ids), "hello world");
  EXPECT_EQ(tokenizer.encode("", true), Ids{});
  EXPECT_EQ(tokenizer.encode("abc", false), (Ids{269, 'c'}));
  EXPECT_EQ(tokenizer.encode(std::string("a\0b", 3), false), (Ids{'a', 0, 'b'}));
  EXPECT_EQ(tokenizer.encode("e\u0301", false), (Ids{266}));  // NFC
  EXPECT_EQ(tokenizer.vocab_size(), 276);
  EXPECT_EQ(tokenizer.id_of("hello"), 259);
  EXPECT_EQ(tokenizer.id_of("\u0120world"), 264);
  EXPECT_EQ(tokenizer.id_of("<think>"), think_token);
  EXPECT_EQ(tokenizer.id_of("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer.token_text(264), "\u0120world");
  EXPECT_EQ(tokenizer.token_text(end_token), "<|end|>");
  EXPECT_EQ(tokenizer.token_text(999), "");
  EXPECT_EQ(tokenizer.token_text(-1), "");
}

TEST(Tokenizer, DecodesControlsUnknownIdsAndPartialCharacters) {
  const Tokenizer tokenizer = make();
  const Ids ids{start_token, 259, 5000, -7, think_token, end_token, 0xC3};
  EXPECT_EQ(tokenizer.decode(ids), "<|start|>hello<think><|end|>\xC3");
  EXPECT_EQ(tokenizer.decode(ids, true), "hello<think>\xC3");
  EXPECT_EQ(tokenizer.decode_utf8(ids, true), "hello<think>\uFFFD");
  EXPECT_TRUE(tokenizer.is_added(think_token));
  EXPECT_FALSE(tokenizer.is_special(think_token));
  EXPECT_TRUE(tokenizer.is_special(end_token));
  EXPECT_FALSE(tokenizer.is_added(259));
  EXPECT_FALSE(tokenizer.is_added(999));
}

TEST(Tokenizer, AddedTokensAreLeftmostLongestAndOptional) {
  const Tokenizer tokenizer = make();
  EXPECT_EQ(tokenizer.encode("<think><th<thi", true), (Ids{think_token, th_token, th_token, 'i'}));
  EXPECT_EQ(tokenizer.encode("a<|end|><|end|>b", true), (Ids{'a', end_token, end_token, 'b'}));
  EXPECT_EQ(tokenizer.encode("<|END|><| end|>", true), bytes("<|END|><| end|>"));
  EXPECT_EQ(tokenizer.encode("<|end|>", false), bytes("<|end|>"));
  // Matching looks at the text before NFC.
  json::Value file = tiny_tokenizer();
  file.set("added_tokens",
           json::Array{tiny_added(272, "<e\u0301>", true), tiny_added(273, "<a\u0301>", false, true)});
  const Tokenizer other = make(file);
  EXPECT_EQ(other.encode("<e\u0301>", true), (Ids{272}));
  EXPECT_NE(other.encode("<\u00e9>", true), (Ids{272}));
  EXPECT_EQ(other.encode("<a\u0301>", true), (Ids{273}));
  EXPECT_EQ(other.encode("<\u00e1>", true), (Ids{273}));
}

TEST(Tokenizer, ThreadsShareOne) {
  const Tokenizer tokenizer = make();
  std::string text;
  for (int i = 0; i < 200; ++i) text += format("hello world {} e\u0301 \U0001123F<|end|>", i);
  const Ids wanted = tokenizer.encode(text, true);
  std::vector<Ids> found(4);
  std::vector<std::thread> threads;
  for (Ids& ids : found) threads.emplace_back([&] { ids = tokenizer.encode(text, true); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : found) EXPECT_EQ(ids, wanted);
}

TEST(Tokenizer, RejectsInvalidUtf8) {
  try {
    make().encode("ab\xC3", true);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_EQ(error.where(), "byte offset 2");
  }
}

TEST(MarkedEncoding, ControlsFormOnlyFromTemplateBytes) {
  const Tokenizer tokenizer = make();
  const std::string text = "<|end|>a<|end|>";
  EXPECT_EQ(tokenizer.encode(marked(text, "TTTTTTTCCCCCCCC")).ids, Ids{end_token} + bytes("a<|end|>"));
  EXPECT_EQ(tokenizer.encode(marked(text, "TTTTTTTCCCCCCCC"), true).ids, (Ids{end_token, 'a', end_token}));
  EXPECT_EQ(tokenizer.encode(marked("<think>", "CCCCCCC")).ids, bytes("<think>"));
  // One content byte inside is enough, wherever it is.
  for (size_t i = 0; i < 7; ++i) {
    std::string where(7, 'T');
    where[i] = 'C';
    EXPECT_EQ(tokenizer.encode(marked("<|end|>", where)).ids, bytes("<|end|>")) << i;
  }
  // A longer token that would need content bytes does not hide a shorter one of the template.
  EXPECT_EQ(tokenizer.encode(marked("<think>", "TTTCCCC")).ids, Ids{th_token} + bytes("ink>"));
  // Removing a control must not let its neighbours join into one.
  EXPECT_EQ(tokenizer.encode(marked("<|e<|end|>nd|>", "CCCTTTTTTTCCCC")).ids,
            bytes("<|e") + Ids{end_token} + bytes("nd|>"));
}

TEST(MarkedEncoding, JointsOfTemplateAndContentAreOneString) {
  const Tokenizer tokenizer = make();
  // "\n" of the template and "\n" of the content merge, "he" + "llo" too, "e" + U+0301 compose.
  EXPECT_EQ(tokenizer.encode(marked("a\n\nhello", "TTCTTCCC")).ids, tokenizer.encode("a\n\nhello", true));
  EXPECT_EQ(tokenizer.encode(marked("e\u0301", "TCC")).ids, (Ids{266}));
}

TEST(MarkedEncoding, SupervisionFollowsTheFirstSourceByte) {
  const Tokenizer tokenizer = make();
  const MarkedTokens plain = tokenizer.encode(marked("<|start|>hello world<|end|>\n",
                                                     "TTTTTTTTT"
                                                     "CCCCC"
                                                     "cccccc"
                                                     "ttttttt"
                                                     "T"));
  EXPECT_EQ(plain.ids, (Ids{start_token, 259, 264, end_token, '\n'}));
  EXPECT_EQ(plain.supervised, (std::vector<uint8_t>{0, 0, 1, 1, 0}));
  // A token across the boundary belongs to where it starts.
  EXPECT_EQ(tokenizer.encode(marked("hello", "CCccc")).supervised, (std::vector<uint8_t>{0}));
  EXPECT_EQ(tokenizer.encode(marked("hello", "ccCCC")).supervised, (std::vector<uint8_t>{1}));
  // Behind a composed character offsets are those of the source: q, U+00E9 (from three bytes), z.
  const MarkedTokens composed = tokenizer.encode(marked("qe\u0301z", "CCCCc"));
  EXPECT_EQ(composed.ids, (Ids{'q', 266, 'z'}));
  EXPECT_EQ(composed.supervised, (std::vector<uint8_t>{0, 0, 1}));
  EXPECT_EQ(tokenizer.encode(marked("qe\u0301z", "CCccC")).supervised, (std::vector<uint8_t>{0, 0, 0}));
  EXPECT_EQ(tokenizer.encode(marked("qe\u0301z", "CcCCC")).supervised, (std::vector<uint8_t>{0, 1, 0}));
  // All bytes of a character that has no token of its own share its mark.
  EXPECT_EQ(tokenizer.encode(marked("\u20ac!", "cccC")).supervised, (std::vector<uint8_t>{1, 1, 1, 0}));
}

TEST(MarkedEncoding, PrefixSpaceTakesTheMarkOfWhatFollows) {
  json::Value file = tiny_tokenizer();
  file.set("pre_tokenizer",
           json::Object{{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}});
  const Tokenizer tokenizer = make(file);
  const MarkedTokens words = tokenizer.encode(marked("world!", "cccccC"));
  EXPECT_EQ(words.ids, (Ids{264, '!'}));
  EXPECT_EQ(words.supervised, (std::vector<uint8_t>{1, 0}));
  const MarkedTokens newline = tokenizer.encode(marked("\nx", "cC"));
  EXPECT_EQ(newline.ids, (Ids{' ', '\n', 'x'}));
  EXPECT_EQ(newline.supervised, (std::vector<uint8_t>{1, 1, 0}));
}

TEST(TokenizerFile, MergesInBothSpellings) {
  json::Value file = tiny_tokenizer();
  json::Array strings;
  for (const json::Value& merge : file.at("model").at("merges").as_array()) {
    strings.push_back(merge.as_array()[0].as_string() + " " + merge.as_array()[1].as_string());
  }
  json::Value model = file.at("model");
  model.set("merges", strings);
  file.set("model", model);
  EXPECT_EQ(make(file).encode("hello world\n\n", false), make().encode("hello world\n\n", false));
}

TEST(TokenizerFile, ConfigAddsTokensAndNamesThem) {
  const Tokenizer tokenizer = make(tiny_tokenizer(), R"({"added_tokens_decoder": {
      "272": {"content": "<|end|>", "special": true, "normalized": false},
      "280": {"content": "<tts>", "special": true, "normalized": false, "lstrip": false}},
      "eos_token": "<|end|>", "pad_token": {"content": "<tts>"}, "bos_token": null, "add_bos_token": false})");
  EXPECT_EQ(tokenizer.encode("a<tts>", true), (Ids{'a', 280}));
  EXPECT_EQ(tokenizer.eos_id(), end_token);
  EXPECT_EQ(tokenizer.pad_id(), 280);
  EXPECT_EQ(tokenizer.bos_id(), std::nullopt);
  EXPECT_EQ(tokenizer.vocab_size(), 281);
  EXPECT_EQ(tokenizer.decode(Ids{276, 279}), "");
  EXPECT_NE(tokenizer.fingerprint(), make().fingerprint());
  EXPECT_EQ(make().fingerprint(), make().fingerprint());
}

std::string error_of(const std::function<void(json::Value&)>& change, const std::string& config = "") {
  json::Value file = tiny_tokenizer();
  change(file);
  try {
    make(file, config);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_TRUE(error.where().starts_with("here/tokenizer")) << error.where();
    EXPECT_FALSE(error.fix().empty());
    return error.what();
  }
  return "no error";
}

std::string model_error(const std::string& key, const json::Value& value) {
  return error_of([&](json::Value& file) {
    json::Value model = file.at("model");
    model.set(key, value);
    file.set("model", model);
  });
}

TEST(TokenizerFile, RefusesOtherModels) {
  EXPECT_EQ(error_of([](json::Value&) {}), "no error");
  EXPECT_EQ(model_error("type", "Unigram"), "model type \"Unigram\" is not supported");
  EXPECT_EQ(model_error("type", "WordPiece"), "model type \"WordPiece\" is not supported");
  EXPECT_EQ(model_error("byte_fallback", true), "byte_fallback is not supported");
  EXPECT_EQ(model_error("dropout", 0.1), "BPE dropout is not supported");
  EXPECT_EQ(model_error("continuing_subword_prefix", "##"),
            "continuing_subword_prefix \"##\" is not supported");
  EXPECT_EQ(model_error("merges", 3), "expected a JSON array, found integer");
  EXPECT_EQ(model_error("merges", json::Array{"a b c"}),
            "merge 0 is neither \"left right\" nor [\"left\", \"right\"]");
  EXPECT_EQ(model_error("merges", json::Array{"ab"}),
            "merge 0 is neither \"left right\" nor [\"left\", \"right\"]");
  EXPECT_EQ(model_error("merges", json::Array{"a zz"}),
            "merge 0 needs the token \"zz\", which the vocabulary lacks");
  EXPECT_EQ(model_error("merges", json::Array{"x y"}),
            "merge 0 needs the token \"xy\", which the vocabulary lacks");
  EXPECT_EQ(model_error("vocab", json::Object{{"a", 0}}),
            "the vocabulary has no token for byte 0x00 (\"\u0100\")");
}

TEST(TokenizerFile, RefusesBadIds) {
  const auto with_token = [](const char* spelling, const json::Value& id) {
    json::Value vocab = tiny_tokenizer().at("model").at("vocab");
    vocab.set(spelling, id);
    return model_error("vocab", vocab);
  };
  EXPECT_EQ(with_token("zz", 5), "tokens \"zz\" and \"\u0105\" have the same id 5");
  EXPECT_EQ(with_token("zz", -1), "token \"zz\" has the id -1");
  EXPECT_EQ(with_token("zz", int64_t{1} << 40), "token \"zz\" has the id 1099511627776");
  EXPECT_EQ(with_token("zz", 1 << 21), "token \"zz\" has the id 2097152");
  EXPECT_EQ(with_token("zz", "5"), "expected a JSON integer, found string");
  EXPECT_EQ(with_token("", 500), "the vocabulary has an empty token");
}

TEST(TokenizerFile, RefusesOtherStages) {
  const auto stage_error = [](const char* key, const json::Value& value) {
    return error_of([&](json::Value& file) { file.set(key, value); });
  };
  EXPECT_EQ(stage_error("normalizer", json::Object{{"type", "NFKC"}}),
            "normalizer type \"NFKC\" is not supported");
  EXPECT_EQ(stage_error("normalizer", json::Object{{"type", "Sequence"}, {"normalizers", json::Array{}}}),
            "no error");
  EXPECT_EQ(stage_error("normalizer", json::Value()), "no error");
  EXPECT_EQ(stage_error("pre_tokenizer", json::Value()), "the tokenizer has no pre_tokenizer");
  EXPECT_EQ(stage_error("decoder", json::Object{{"type", "WordPiece"}}),
            "decoder type \"WordPiece\" is not supported");
  const json::Value bos = json::Object{{"SpecialToken", json::Object{{"id", "<|start|>"}, {"type_id", 0}}}};
  const json::Value sequence = json::Object{{"Sequence", json::Object{{"id", "A"}, {"type_id", 0}}}};
  EXPECT_EQ(stage_error("post_processor",
                        json::Object{{"type", "TemplateProcessing"}, {"single", json::Array{bos, sequence}}}),
            "the post-processor (TemplateProcessing) adds tokens to every text");
  EXPECT_EQ(stage_error("post_processor",
                        json::Object{{"type", "TemplateProcessing"}, {"single", json::Array{sequence}}}),
            "no error");
  EXPECT_EQ(stage_error("post_processor", json::Value()), "no error");
  EXPECT_EQ(stage_error("model", json::Value()), "the model is not a JSON object");
}

TEST(TokenizerFile, RefusesBadAddedTokens) {
  const auto added_error = [](const json::Value& token) {
    return error_of([&](json::Value& file) { file.set("added_tokens", json::Array{token}); });
  };
  EXPECT_EQ(added_error(tiny_added(5, "<x>", true)),
            "added token \"<x>\" (id 5) takes the id of the token \"\u0105\"");
  EXPECT_EQ(added_error(tiny_added(300, "hello", true)),
            "added token \"hello\" (id 300) is already the token with id 259");
  EXPECT_EQ(added_error(tiny_added(259, "hello", true)), "no error");
  EXPECT_EQ(added_error(tiny_added(300, "", true)), "added token with id 300 is empty");
  EXPECT_EQ(added_error(tiny_added(1 << 23, "<x>", true)), "token \"<x>\" has the id 8388608");
  for (const char* key : {"lstrip", "rstrip", "single_word"}) {
    json::Value token = tiny_added(300, "<x>", true);
    token.set(key, true);
    EXPECT_EQ(added_error(token), format("added token \"<x>\" (id 300) has {}, which is not supported", key));
  }
  const auto config_error = [](const std::string& config) { return error_of([](json::Value&) {}, config); };
  EXPECT_EQ(config_error(R"({"added_tokens_decoder": {"272": {"content": "<|other|>"}}})"),
            "added token \"<|other|>\" (id 272) takes the id of the token \"<|end|>\"");
  EXPECT_EQ(config_error(R"({"added_tokens_decoder": {"290": {"content": "<|end|>"}}})"),
            "added token \"<|end|>\" (id 290) is already the token with id 272");
  EXPECT_EQ(config_error(R"({"added_tokens_decoder": {"x": {"content": "<|end|>"}}})"),
            "\"x\" is no token id");
  EXPECT_EQ(config_error(R"({"eos_token": "<|nope|>"})"), "eos_token \"<|nope|>\" is no token");
  EXPECT_EQ(config_error(R"({"add_bos_token": true})"),
            "add_bos_token is true: tokens would be added to every text");
}

TEST(TokenizerFile, MissingFolder) {
  EXPECT_THROW(Tokenizer::load(fs::path(testing::TempDir()) / "no_such_folder"), Error);
}

// 248,044 base tokens make the reader expect Qwen3.5's pattern.
TEST(TokenizerFile, WarnsAboutThePatternOfAnOlderFamily) {
  const auto warned = [](const char* pattern) {
    json::Value file = tiny_tokenizer(tiny_merges(), pattern);
    json::Value model = file.at("model");
    json::Object vocab = model.at("vocab").as_object();
    for (int64_t id = 1000; vocab.size() < 248044; ++id) vocab.emplace_back(format("zz{}", id), id);
    model.set("vocab", vocab);
    file.set("model", model);
    testing::internal::CaptureStderr();
    make(file);
    return testing::internal::GetCapturedStderr().find("\\p{M}") != std::string::npos;
  };
  EXPECT_TRUE(warned(qwen3_pattern));
  EXPECT_FALSE(warned(qwen3_5_pattern));
}

}  // namespace
}  // namespace deltatune
