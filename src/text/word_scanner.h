// The split patterns of the Qwen family by hand: what their regular expression matches, in one pass.
//
// Patterns, alternatives tried in order at each position (tokenizer.json of Qwen2, Qwen3 and Qwen3.5):
//   (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?W+ | \p{N} |  ?[^\sW\p{N}]+[\r\n]* | \s*[\r\n]+ |
//   \s+(?!\S) | \s+
// where W is \p{L}, from Qwen3.5 on [\p{L}\p{M}]. Every character belongs to a match, so there are no gaps.
// Classes are those of char_class(). Other patterns go through PCRE2 (text/pretokenizer.h); a test holds the
// two to each other.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace deltatune {

class WordScanner {
 public:
  /// Nothing when `pattern` (as in tokenizer.json) is not one of the family's.
  static std::optional<WordScanner> for_pattern(std::string_view pattern);

  /// End of the piece that begins at byte `begin` < text.size(). `text` is valid UTF-8; a piece depends on
  /// all that follows it, so pass the whole text. Cutting a text from its start to its end is linear in its
  /// bytes.
  size_t piece_end(std::string_view text, size_t begin) const;

 private:
  explicit WordScanner(bool marks) : marks_(marks) {}
  bool marks_;  // marks belong to words
};

}  // namespace deltatune
