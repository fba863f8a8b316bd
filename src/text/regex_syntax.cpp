// A walk over the pattern that knows classes, escapes, groups and quantifiers; syntax errors are left to
// PCRE2.
#include "text/regex_syntax.h"

#include <array>

#include "base/error.h"
#include "base/format.h"

namespace deltatune {
namespace {

bool is_alnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {}

  PcrePattern run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (c == '[') {
        character_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        quantifier();
      } else {
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct, std::string_view why) const {
    throw Error(ErrorKind::data, format("the split pattern uses {}, {}", construct, why),
                format("{}, byte {} of the pattern", where_, at_),
                "use the tokenizer.json that came with the checkpoint, or write the pattern without it");
  }
  char peek(size_t ahead) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  void copy(size_t count) {
    out_.text.append(pattern_.substr(at_, count));
    at_ += count;
  }

  // \p{...} and \P{...}, copied whole.
  void property() {
    const size_t close = pattern_.find('}', at_);
    if (peek(2) != '{' || close == std::string_view::npos)
      refuse("\\p without {...}", "which is not portable");
    const std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    const std::string_view bare = name.substr(name.starts_with('^') ? 1 : 0);
    constexpr std::array<std::string_view, 4> known{"L", "M", "N", "Nd"};
    bool found = false;
    for (const std::string_view k : known) found = found || k == bare;
    if (!found && out_.foreign_property.empty()) out_.foreign_property = std::string(bare);
    copy(close + 1 - at_);
  }

  // \x41, \x{4E00} and \u4E00: one code point.
  void code_point() {
    size_t digits = 0;
    const bool braces = peek(1) == 'x' && peek(2) == '{';
    const size_t start = braces ? 3 : 2;
    const size_t most = braces ? 6 : peek(1) == 'x' ? 2 : 4;
    while (digits < most && is_hex(peek(start + digits))) ++digits;
    const bool closed = !braces || peek(start + digits) == '}';
    if (digits == 0 || !closed || (peek(1) == 'u' && digits != 4)) refuse("a malformed code point", "");
    if (!braces && peek(1) == 'x' && digits == 2 && pattern_[at_ + 2] >= '8') {
      refuse("a byte above 0x7F", "which is no character in UTF-8");
    }
    out_.text += "\\x{";
    out_.text.append(pattern_.substr(at_ + start, digits));
    out_.text += '}';
    at_ += start + digits + (braces ? 1 : 0);
  }

  void escape() {
    const char c = peek(1);
    if (c == '\0') refuse("a backslash at its end", "with nothing behind it");
    if (c == 'p' || c == 'P') return property();
    if (c == 'x' || c == 'u') return code_point();
    constexpr std::string_view same = "dDsSrntfea";
    if (is_alnum(c) && same.find(c) == std::string_view::npos) {
      refuse(format("\\{}", c), "which the tokenizers library understands differently from PCRE2");
    }
    copy(2);
  }

  void character_class() {
    copy(1);
    if (peek(0) == '^') copy(1);
    if (peek(0) == ']') refuse("an empty class", "or one that starts with ]");
    while (at_ < pattern_.size() && pattern_[at_] != ']') {
      const char c = pattern_[at_];
      if (c == '[') refuse("a class inside a class", "which PCRE2 does not have");
      if (c == '&' && peek(1) == '&') refuse("&& inside a class", "which PCRE2 does not have");
      if (c == '\\') {
        escape();
      } else {
        copy(1);
      }
    }
    if (at_ >= pattern_.size()) refuse("a class without ]", "so its end is unknown");
    copy(1);
  }

  void group() {
    if (peek(1) == '*') refuse("(*", "which starts a PCRE2 verb");
    if (peek(1) != '?') return copy(1);
    const std::string_view rest = pattern_.substr(at_ + 2);
    constexpr std::array<std::string_view, 7> same{":", "=", "!", "<=", "<!", ">", "i:"};
    for (const std::string_view head : same) {
      if (rest.starts_with(head)) return copy(2 + head.size());
    }
    // Further in, Ruby's (?i) takes the alternatives that follow into its group.
    if (at_ == 0 && rest.starts_with("i)")) return copy(4);
    refuse(format("(?{}", rest.substr(0, 1)), "a kind of group that is not supported");
  }

  void quantifier() {
    const size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos) return copy(1);
    const std::string_view inside = pattern_.substr(at_ + 1, close - at_ - 1);
    if (inside.find_first_not_of("0123456789,") != std::string_view::npos || inside.empty()) return copy(1);
    if (inside.front() == ',') refuse("{,n}", "which PCRE2 takes literally; write {0,n}");
    copy(close + 1 - at_);
    if (peek(0) == '+') refuse("{n,m}+", "which Ruby's syntax does not take as possessive");
    if (peek(0) == '?' && inside.find(',') == std::string_view::npos)
      refuse("{n}?", "which Ruby's syntax reads as optional");
  }

  std::string_view pattern_;
  std::string_view where_;
  size_t at_ = 0;
  PcrePattern out_;
};

}  // namespace

PcrePattern translate_pattern(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).run();
}

std::string literal_pattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && !is_alnum(c)) {
      out += format("\\x{{{:x}}}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace deltatune
