// From the pattern language of tokenizer.json to PCRE2's.
//
// tokenizer.json patterns are written for Oniguruma with Ruby's syntax. The subset that means the same in
// both libraries passes, a few spellings are translated, and everything that would mean something else is
// refused: a pattern must never split differently without a word.
#pragma once

#include <string>
#include <string_view>

namespace deltatune {

struct PcrePattern {
  std::string text;
  /// First \p{...} that is none of L, M, N, Nd ("" if there is none): its members are those of PCRE2's
  /// Unicode.
  std::string foreign_property;
};

/// Throws Error{data} naming the construct and its position; `where` is the place of the pattern.
PcrePattern translate_pattern(std::string_view pattern, std::string_view where);

/// A pattern that matches exactly `text`.
std::string literal_pattern(std::string_view text);

}  // namespace deltatune
