// Text to token ids and back, as the PyPI package `tokenizers` does with the same tokenizer.json.
//
// Pipeline: cut at added tokens, NFC, pre-tokenizer, byte-level BPE (spec of the file format:
// huggingface/tokenizers). No BOS or EOS is ever added. Not done here: truncation, padding, chat templates.
// Refused: other models than BPE, byte_fallback, dropout, other normalizers than NFC, added tokens with
// lstrip, rstrip or single_word, post-processors that add tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/marked_text.h"
#include "text/pretokenizer.h"

namespace deltatune {

/// Constant after it is made; any number of threads may use one.
class Tokenizer {
 public:
  /// From a folder with tokenizer.json and, if there is one, tokenizer_config.json. The latter's
  /// added_tokens_decoder may add tokens, and its flags count; an id or a content that the two give
  /// differently is an error. Throws Error{data}.
  static Tokenizer load(const fs::path& folder);
  /// The same from the bytes of the two files (`tokenizer_config_json` may be empty). `where`: their folder.
  static Tokenizer parse(std::string_view tokenizer_json, std::string_view tokenizer_config_json,
                         std::string_view where);

  /// Plain text to ids. parse_added: added tokens in the text become their ids (what `tokenizers` does),
  /// otherwise they stay ordinary text. Throws Error{data} on invalid UTF-8, with the byte offset.
  std::vector<int32_t> encode(std::string_view text, bool parse_added) const;

  /// A rendered conversation to ids and targets. Added tokens form only where every byte is marked
  /// mark_template (parity: anywhere). What lies between two of them is encoded as one string, also across
  /// places where template and content meet. A token is supervised if the source byte of its first character
  /// is marked mark_supervised.
  MarkedTokens encode(const MarkedText& marked, bool parity = false) const;

  /// Bytes of the tokens one after the other; ids that are no token give nothing. The result may end inside a
  /// UTF-8 sequence. skip_special: leave special added tokens out.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
  /// The same with every invalid UTF-8 subsequence replaced by U+FFFD.
  std::string decode_utf8(std::span<const int32_t> ids, bool skip_special = false) const;

  /// Largest id + 1. The rows of a model's embedding may be more.
  int64_t vocab_size() const { return static_cast<int64_t>(tokens_.size()); }
  /// Id of a token spelled as in the vocabulary (byte alphabet) or of an added token.
  std::optional<int32_t> id_of(std::string_view token) const;
  /// The spelling of an id as in the vocabulary; "" for ids that are no token.
  std::string token_text(int32_t id) const;
  bool is_added(int32_t id) const;
  bool is_special(int32_t id) const;

  /// As named by tokenizer_config.json.
  std::optional<int32_t> eos_id() const { return eos_id_; }
  std::optional<int32_t> pad_id() const { return pad_id_; }
  std::optional<int32_t> bos_id() const { return bos_id_; }

  /// Hash of the bytes of the two files.
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  friend class TokenizerReader;
  struct StringHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  struct Token {
    std::string bytes;
    bool present = false;
    bool byte_level = false;  // spelled in the byte alphabet
    bool added = false;
    bool special = false;
    bool normalized = false;  // an added token that is looked for behind the normaliser
  };
  struct Work;

  Tokenizer() = default;
  const Token* token(int32_t id) const;
  void encode_text(std::string_view text, std::span<const uint8_t> flags, bool parse_added, uint8_t required,
                   Work& work) const;
  void encode_stretch(std::string_view text, std::span<const uint8_t> flags, bool parse_added,
                      uint8_t required, Work& work) const;
  void encode_normal(std::string_view text, std::span<const uint8_t> flags, Work& work) const;

  std::vector<Token> tokens_;  // by id
  std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>> ids_;
  AddedTokens added_raw_;         // looked for in the text as it is
  AddedTokens added_normalized_;  // looked for behind the normaliser
  bool nfc_ = false;
  std::optional<PreTokenizer> pre_tokenizer_;
  Bpe bpe_;
  std::optional<int32_t> eos_id_;
  std::optional<int32_t> pad_id_;
  std::optional<int32_t> bos_id_;
  std::string fingerprint_;
};

}  // namespace deltatune
