// One function per alternative of the pattern; see word_scanner.h.
#include "text/word_scanner.h"

#include <array>
#include <string>

#include "text/unicode.h"

namespace deltatune {
namespace {

constexpr std::string_view qwen3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen3_5_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// What the pattern tells apart: \p{N}, \s, words, all else.
enum class Kind : uint8_t { number, space, word, other };

Kind kind_of(CharClass char_class, bool marks) {
  switch (char_class) {
    case CharClass::letter:
      return Kind::word;
    case CharClass::mark:
      return marks ? Kind::word : Kind::other;
    case CharClass::digit:
    case CharClass::other_number:
      return Kind::number;
    case CharClass::space:
      return Kind::space;
    case CharClass::other:
      break;
  }
  return Kind::other;
}

const std::array<Kind, 128>& ascii_kinds() {
  static const std::array<Kind, 128> kinds = [] {
    std::array<Kind, 128> out{};
    for (char32_t c = 0; c < 128; ++c) out[c] = kind_of(char_class(c), false);
    return out;
  }();
  return kinds;
}

bool is_newline(char c) {
  return c == '\r' || c == '\n';
}

// A text, the kinds of its characters, and how far runs of them reach.
class Walk {
 public:
  Walk(std::string_view text, bool marks) : text_(text), marks_(marks), ascii_(ascii_kinds()) {}

  // The character at `at`, which is moved behind it.
  Kind take(size_t& at) const {
    const auto byte = static_cast<unsigned char>(text_[at]);
    if (byte < 128) {
      ++at;
      return ascii_[byte];
    }
    return kind_of(char_class(next_code_point(text_, at)), marks_);
  }

  // End of the run of `kind` that starts at `at`.
  size_t run(size_t at, Kind kind) const {
    while (at < text_.size()) {
      size_t behind = at;
      if (take(behind) != kind) break;
      at = behind;
    }
    return at;
  }

  // [^\s W \p{N}]+[\r\n]*, of which the part before `at` is matched.
  size_t symbols(size_t at) const {
    at = run(at, Kind::other);
    while (at < text_.size() && is_newline(text_[at])) ++at;
    return at;
  }

  // The three alternatives for white space.
  size_t spaces(size_t begin) const {
    size_t last = begin;        // where the last character of the run starts
    size_t behind_newline = 0;  // end of the last newline
    size_t end = begin;
    while (end < text_.size()) {
      size_t behind = end;
      if (take(behind) != Kind::space) break;
      last = end;
      if (is_newline(text_[end])) behind_newline = behind;
      end = behind;
    }
    if (behind_newline > 0) return behind_newline;
    if (end == text_.size() || last == begin) return end;
    return last;  // the last space goes to the word behind it
  }

  // 's 't 're 've 'm 'll 'd in any case, at the apostrophe; 0: none. The long s folds to s.
  size_t contraction(size_t at) const {
    const auto letter = [&](size_t i) {
      const char c = i < text_.size() ? text_[i] : '\0';
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    const char first = letter(at + 1);
    const char second = letter(at + 2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e')) return at + 3;
    if (first == 'l' && second == 'l') return at + 3;
    return text_.substr(at + 1).starts_with("\u017F") ? at + 3 : 0;
  }

 private:
  std::string_view text_;
  bool marks_;
  const std::array<Kind, 128>& ascii_;
};

}  // namespace

std::optional<WordScanner> WordScanner::for_pattern(std::string_view pattern) {
  if (pattern == qwen3_pattern) return WordScanner(false);
  if (pattern == qwen3_5_pattern) return WordScanner(true);
  return std::nullopt;
}

size_t WordScanner::piece_end(std::string_view text, size_t begin) const {
  const Walk walk(text, marks_);
  const char first = text[begin];
  if (first == '\'') {
    if (const size_t end = walk.contraction(begin); end > 0) return end;
  }
  size_t behind = begin;
  const Kind kind = walk.take(behind);
  if (kind == Kind::word) return walk.run(behind, Kind::word);
  if (kind == Kind::number) return behind;
  if (behind < text.size() && !is_newline(first)) {
    size_t second_end = behind;
    const Kind second = walk.take(second_end);
    if (second == Kind::word) return walk.run(second_end, Kind::word);
    if (first == ' ' && second == Kind::other) return walk.symbols(second_end);
  }
  return kind == Kind::space ? walk.spaces(begin) : walk.symbols(behind);
}

}  // namespace deltatune
