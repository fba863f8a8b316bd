// The lexer: text between tags, tags, and the tokens inside tags; see jinja_lexer.h.
#include "text/jinja_lexer.h"

#include <charconv>

#include "base/error.h"
#include "base/format.h"
#include "text/jinja_text.h"

namespace deltatune::jinja {
namespace {

constexpr size_t npos = std::string_view::npos;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_char(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

std::string normalize_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text.push_back(source[i]);
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Lexer {
 public:
  Lexer(std::string source, const std::string& where) : source_(std::move(source)), where_(where) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) text_until_tag();
    push(TokenType::end);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::data, what, format("{}, line {}", where_, line_), "correct the template");
  }

  void push(TokenType type, std::string text = {}) {
    Token token;
    token.type = type;
    token.line = line_;
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
  }

  bool starts(size_t at, std::string_view text) const { return source_.compare(at, text.size(), text) == 0; }

  size_t skip_space(size_t at) const {
    while (at < source_.size()) {
      size_t next = at;
      if (!is_space(next_char(source_, next))) break;
      at = next;
    }
    return at;
  }

  /// Moves to `to`, counting lines; remembers whether the text before it ends a line.
  void advance(size_t to) {
    for (size_t i = at_; i < to; ++i) line_ += source_[i] == '\n';
    if (to > at_) line_starting_ = source_[to - 1] == '\n';
    at_ = to;
  }

  /// Data in front of a tag, after its strip sign ('-', '+' or 0) and lstrip_blocks were applied.
  std::string before_tag(std::string_view text, char sign, bool variable) const {
    if (sign == '-') return strip(Text(text, from_content), nullptr, false, true).bytes;
    if (sign != '+' && !variable) {
      const size_t newline = text.rfind('\n');
      const size_t line_start = newline == npos ? 0 : newline + 1;
      if (line_start > 0 || line_starting_) {
        const Text tail(text.substr(line_start), from_content);
        if (strip(tail, nullptr, true, false).empty()) text = text.substr(0, line_start);
      }
    }
    return std::string(text);
  }

  /// Position behind "%}" (or the mark given) with its sign and what it strips, or npos.
  size_t tag_end(size_t at, std::string_view mark, bool plus_allowed, bool trim) const {
    if (plus_allowed && starts(at, "+") && starts(at + 1, mark)) return at + 1 + mark.size();
    if (starts(at, "-") && starts(at + 1, mark)) return skip_space(at + 1 + mark.size());
    if (!starts(at, mark)) return npos;
    at += mark.size();
    return trim && at < source_.size() && source_[at] == '\n' ? at + 1 : at;
  }

  /// End of "{%- raw %}" when one starts here.
  size_t raw_begin_end(size_t tag) const {
    size_t at = tag + 2;
    if (starts(at, "-") || starts(at, "+")) ++at;
    at = skip_space(at);
    if (!starts(at, "raw")) return npos;
    return tag_end(skip_space(at + 3), "%}", false, false);
  }

  void text_until_tag() {
    size_t tag = at_;
    while ((tag = source_.find('{', tag)) != npos) {
      const char kind = tag + 1 < source_.size() ? source_[tag + 1] : '\0';
      if (kind == '{' || kind == '%' || kind == '#') break;
      ++tag;
    }
    if (tag == npos) {
      push(TokenType::data, source_.substr(at_));
      return advance(source_.size());
    }
    const char kind = source_[tag + 1];
    size_t after = tag + 2;
    const char sign = starts(after, "-") || starts(after, "+") ? source_[after] : '\0';
    if (sign) ++after;
    std::string data = before_tag(std::string_view(source_).substr(at_, tag - at_), sign, kind == '{');
    if (!data.empty()) push(TokenType::data, std::move(data));
    if (kind == '%') {
      const size_t raw = raw_begin_end(tag);
      if (raw != npos) return raw_block(raw);
    }
    advance(after);
    if (kind == '#') return comment();
    push(kind == '{' ? TokenType::variable_begin : TokenType::block_begin);
    inside_tag(kind == '{');
  }

  void comment() {
    for (size_t at = at_; at < source_.size(); ++at) {
      const size_t end = tag_end(at, "#}", true, true);
      if (end != npos) return advance(end);
    }
    fail("a comment is not closed: #} is missing");
  }

  void raw_block(size_t begin) {
    advance(begin);
    for (size_t tag = source_.find("{%", begin); tag != npos; tag = source_.find("{%", tag + 1)) {
      size_t at = tag + 2;
      const char sign = starts(at, "-") || starts(at, "+") ? source_[at] : '\0';
      at = skip_space(sign ? at + 1 : at);
      if (!starts(at, "endraw")) continue;
      const size_t end = tag_end(skip_space(at + 6), "%}", true, true);
      if (end == npos) continue;
      std::string data = before_tag(std::string_view(source_).substr(begin, tag - begin), sign, false);
      if (!data.empty()) push(TokenType::data, std::move(data));
      return advance(end);
    }
    fail("a raw block is not closed: {% endraw %} is missing");
  }

  void inside_tag(bool variable) {
    std::string brackets;
    while (true) {
      if (at_ >= source_.size()) fail(format("a tag is not closed: {} is missing", variable ? "}}" : "%}"));
      if (brackets.empty()) {
        const size_t end = variable ? tag_end(at_, "}}", false, false) : tag_end(at_, "%}", true, true);
        if (end != npos) {
          push(variable ? TokenType::variable_end : TokenType::block_end);
          return advance(end);
        }
      }
      const size_t next = skip_space(at_);
      if (next > at_) {
        advance(next);
      } else if (is_digit(source_[at_])) {
        number();
      } else if (is_name_char(source_[at_])) {
        size_t end = at_;
        while (end < source_.size() && is_name_char(source_[end])) ++end;
        push(TokenType::name, source_.substr(at_, end - at_));
        advance(end);
      } else if (source_[at_] == '"' || source_[at_] == '\'') {
        string_literal();
      } else {
        op(brackets);
      }
    }
  }

  /// Digits with single underscores between them, from `at`.
  size_t digits(size_t at, int base = 10) const {
    const auto good = [&](size_t i) {
      if (i >= source_.size()) return false;
      const char c = source_[i];
      if (base == 16) return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
      return c >= '0' && c < '0' + base;
    };
    while (good(at) || (at < source_.size() && source_[at] == '_' && good(at + 1) && good(at - 1))) ++at;
    return at;
  }

  bool floating_literal() {
    if (at_ > 0 && source_[at_ - 1] == '.') return false;  // a.0.1 is two subscripts
    size_t end = digits(at_);
    bool is_float = false;
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      end = digits(end + 1);
      is_float = true;
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (starts(exponent, "+") || starts(exponent, "-")) ++exponent;
      if (exponent < source_.size() && is_digit(source_[exponent])) {
        end = digits(exponent);
        is_float = true;
      }
    }
    if (!is_float) return false;
    std::string spelling;
    for (size_t i = at_; i < end; ++i) {
      if (source_[i] != '_') spelling.push_back(source_[i]);
    }
    push(TokenType::floating, spelling);
    const auto result =
        std::from_chars(spelling.data(), spelling.data() + spelling.size(), tokens_.back().floating);
    if (result.ec != std::errc()) fail(format("the number {} does not fit a double", spelling));
    advance(end);
    return true;
  }

  void number() {
    if (floating_literal()) return;
    int base = 10;
    size_t begin = at_;
    if (source_[at_] == '0' && at_ + 2 < source_.size()) {
      const char kind = static_cast<char>(source_[at_ + 1] | 0x20);
      const int named = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
      size_t first = at_ + 2;
      if (source_[first] == '_') ++first;
      if (named != 10 && digits(first, named) > first) {
        base = named;
        begin = first;
      }
    }
    size_t end = digits(begin, base);
    if (base == 10 && source_[at_] == '0') {  // 0123 is the literal 0 and then 123
      end = begin;
      while (end < source_.size() && source_[end] == '0') ++end;
    }
    std::string spelling;
    for (size_t i = begin; i < end; ++i) {
      if (source_[i] != '_') spelling.push_back(source_[i]);
    }
    push(TokenType::integer, spelling);
    const auto result =
        std::from_chars(spelling.data(), spelling.data() + spelling.size(), tokens_.back().integer, base);
    if (result.ec != std::errc()) fail(format("the integer {} does not fit 64 bits", spelling));
    advance(end);
  }

  void string_literal() {
    const char quote = source_[at_];
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("a string literal is not closed");
    push(TokenType::string, unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    advance(end + 1);
  }

  std::string unescape(std::string_view text) const {
    std::string result;
    for (size_t i = 0; i < text.size();) {
      if (text[i] != '\\') {
        result.push_back(text[i++]);
        continue;
      }
      const char c = text[i + 1];  // the scan above never ends on a lone backslash
      static constexpr std::string_view names = "\\'\"abfnrtv";
      static constexpr std::string_view values = "\\'\"\a\b\f\n\r\t\v";
      const size_t simple = names.find(c);
      if (simple != npos) {
        result.push_back(values[simple]);
        i += 2;
      } else if (c == '\n') {
        i += 2;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        append_escaped(result, text, i + 2, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16);
        i += c == 'x' ? 4 : c == 'u' ? 6 : 10;
      } else if (c >= '0' && c <= '7') {
        size_t count = 1;
        while (count < 3 && i + 1 + count < text.size() && text[i + 1 + count] >= '0' &&
               text[i + 1 + count] <= '7')
          ++count;
        append_escaped(result, text, i + 1, count, 8);
        i += 1 + count;
      } else if (c == 'N' || static_cast<unsigned char>(c) >= 0x80) {
        fail("a string literal has an escape that is not supported: write the character itself");
      } else {  // an unknown escape stays as it is
        result.push_back('\\');
        ++i;
      }
    }
    return result;
  }

  void append_escaped(std::string& to, std::string_view text, size_t at, size_t count, int base) const {
    uint32_t code = 0;
    const std::string_view digits_text = text.substr(std::min(at, text.size()), count);
    const char* const end = digits_text.data() + digits_text.size();
    const auto result = std::from_chars(digits_text.data(), end, code, base);
    if (digits_text.size() != count || result.ec != std::errc() || result.ptr != end) {
      fail("a string literal has an escape with too few digits");
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      fail(format("a string literal has the escape {:#x}, which is no Unicode character", code));
    }
    append_char(to, code);
  }

  void op(std::string& brackets) {
    static constexpr std::string_view two[] = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view one = "+-/*%~[](){}<>=.:|,;";
    size_t length = 0;
    for (std::string_view candidate : two) length = starts(at_, candidate) ? 2 : length;
    if (length == 0 && one.find(source_[at_]) != npos) length = 1;
    if (length == 0) {
      size_t end = at_;
      next_char(source_, end);
      fail(format("unexpected character '{}' in a tag", source_.substr(at_, end - at_)));
    }
    const char c = source_[at_];
    if (c == '(' || c == '[' || c == '{') brackets.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty() || brackets.back() != c) fail(format("unexpected '{}'", c));
      brackets.pop_back();
    }
    push(TokenType::op, source_.substr(at_, length));
    advance(at_ + length);
  }

  std::string source_;
  const std::string& where_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& where) {
  const size_t bad = invalid_utf8_at(source);
  if (bad != npos) {
    throw Error(ErrorKind::data, "the template is not valid UTF-8", format("{}, byte {}", where, bad),
                "save the template as UTF-8");
  }
  return Lexer(normalize_newlines(source), where).run();
}

}  // namespace deltatune::jinja
