// UTF-8, Unicode normalisation form C and coarse character classes, as the PyPI package `tokenizers` sees
// them.
//
// NFC is the algorithm of Unicode Standard Annex 15 on utf8proc's data, restricted to the characters that the
// package normalises (unicode_tables.h). Nothing here depends on the locale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deltatune {

inline constexpr size_t utf8_ok = static_cast<size_t>(-1);

/// Byte offset of the first sequence that is not UTF-8 (overlong forms, surrogates and values above U+10FFFF
/// are not), or utf8_ok.
size_t find_invalid_utf8(std::string_view text) noexcept;

/// Every maximal invalid subsequence replaced by U+FFFD (Unicode Standard 3.9, "U+FFFD Substitution of
/// Maximal Subparts"; the same as Python's errors="replace").
std::string replace_invalid_utf8(std::string_view text);

/// Code point at `position`, which is moved behind it. `text` must be valid UTF-8 there.
char32_t next_code_point(std::string_view text, size_t& position) noexcept;

void append_utf8(std::string& out, char32_t code_point);

/// What the classes of pre-tokenizer patterns can tell apart: \p{L}, \p{M}, \p{Nd}, other \p{N}, \s, the
/// rest.
enum class CharClass : uint8_t { other, letter, mark, digit, other_number, space };
CharClass char_class(char32_t code_point) noexcept;

/// False only if normalize_nfc() would return `text` as it is; costs one pass. `text` must be valid UTF-8.
bool may_need_nfc(std::string_view text) noexcept;

struct NormalizedText {
  std::string text;
  /// source[i]: offset in the original text of the character that byte i of `text` comes from. A composed
  /// character comes from the first of its parts.
  std::vector<uint32_t> source;
};

/// NFC of valid UTF-8 of less than 4 GiB.
NormalizedText normalize_nfc(std::string_view text);

}  // namespace deltatune
