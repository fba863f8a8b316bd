// Cuts text into the pieces that BPE works on: the `pre_tokenizer` of tokenizer.json.
//
// Supported: Split (Regex or String; behaviour Isolated or Removed, invert), ByteLevel (add_prefix_space, and
// use_regex with GPT-2's pattern) as the last step, and Sequence of them. The byte alphabet of ByteLevel is
// not applied: pieces are plain bytes and the vocabulary is kept in bytes too. Everything else is refused.
// \p{L}, \p{M}, \p{N}, \p{Nd} and \s have the members that the PyPI package `tokenizers` gives them, whatever
// Unicode version PCRE2 carries.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace deltatune {

/// A piece is bytes [begin, end) of the text, with one space in front of it if add_prefix_space put it there.
struct TextPiece {
  uint32_t begin = 0;
  uint32_t end = 0;
  bool space_before = false;
};

class PreTokenizer {
 public:
  /// From the value of the key "pre_tokenizer". `where` names the file. Throws Error{data}: unsupported type,
  /// behaviour or pattern construct, a pattern that PCRE2 does not compile, no ByteLevel step. by_hand:
  /// patterns that text/word_scanner.h knows are not left to PCRE2.
  static PreTokenizer parse(const json::Value& value, std::string_view where, bool by_hand = true);

  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  /// Appends the pieces of `text` (valid UTF-8, less than 4 GiB) to `out`, in order, none empty. Linear in
  /// the text for patterns that do not backtrack without bound; throws Error{data} when a match takes too
  /// many steps. Any number of threads may call it at once.
  void split(std::string_view text, std::vector<TextPiece>& out) const;

  /// Whether a pattern names this property as "\p{name}".
  bool mentions_property(std::string_view name) const;

 private:
  struct Step;
  PreTokenizer();
  std::vector<Step> steps_;
};

}  // namespace deltatune
