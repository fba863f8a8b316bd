// A byte-level BPE tokenizer.json of a few hundred tokens, written out by the tests that need one.
//
// Ids: bytes 0..255 (id = byte), then one token per merge in order, then the added tokens.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/bpe.h"

namespace deltatune {

inline constexpr const char* qwen3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr const char* qwen3_5_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// Parts of merges in plain bytes, lowest rank first.
using PlainMerges = std::vector<std::pair<std::string, std::string>>;

inline PlainMerges tiny_merges() {
  return {{"h", "e"},   {"l", "l"}, {"he", "ll"},   {"hell", "o"}, {" ", "w"},       {"o", "r"},
          {" w", "or"}, {"l", "d"}, {" wor", "ld"}, {"\n", "\n"},  {"\xC3", "\xA9"}, {" ", " "},
          {"  ", "  "}, {"a", "b"}, {"b", "c"},     {"a", "bc"}};
}

inline json::Value tiny_added(int64_t id, const std::string& content, bool special, bool normalized = false) {
  json::Value token;
  token.set("id", id);
  token.set("content", content);
  for (const char* key : {"single_word", "lstrip", "rstrip"}) token.set(key, false);
  token.set("normalized", normalized);
  token.set("special", special);
  return token;
}

/// 272 base tokens; <|end|> 272 and <|start|> 273 are special, <think> 274 and <th 275 are not.
inline json::Value tiny_tokenizer(const PlainMerges& merges = tiny_merges(),
                                  const char* pattern = qwen3_5_pattern) {
  json::Value vocab{json::Object{}};
  json::Array merge_list;
  int64_t id = 0;
  for (int byte = 0; byte < 256; ++byte)
    vocab.set(spelling_of_bytes(std::string(1, static_cast<char>(byte))), id++);
  for (const auto& [left, right] : merges) {
    vocab.set(spelling_of_bytes(left + right), id++);
    merge_list.push_back(json::Array{spelling_of_bytes(left), spelling_of_bytes(right)});
  }
  json::Value model;
  model.set("type", "BPE");
  model.set("byte_fallback", false);
  model.set("ignore_merges", false);
  model.set("vocab", vocab);
  model.set("merges", merge_list);

  json::Value split;
  split.set("type", "Split");
  split.set("pattern", json::Object{{"Regex", pattern}});
  split.set("behavior", "Isolated");
  split.set("invert", false);
  json::Value bytes;
  bytes.set("type", "ByteLevel");
  bytes.set("add_prefix_space", false);
  bytes.set("trim_offsets", false);
  bytes.set("use_regex", false);

  json::Value file;
  file.set("version", "1.0");
  file.set("added_tokens",
           json::Array{tiny_added(id, "<|end|>", true), tiny_added(id + 1, "<|start|>", true),
                       tiny_added(id + 2, "<think>", false), tiny_added(id + 3, "<th", false)});
  file.set("normalizer", json::Object{{"type", "NFC"}});
  file.set("pre_tokenizer", json::Object{{"type", "Sequence"}, {"pretokenizers", json::Array{split, bytes}}});
  file.set("post_processor", bytes);
  file.set("decoder", bytes);
  file.set("model", model);
  return file;
}

}  // namespace deltatune
