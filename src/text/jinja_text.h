// Strings of the template engine: UTF-8 bytes, each with its origin.
//
// Invariants: flags.size() == bytes.size(); bytes is valid UTF-8; cuts happen at character borders only.
// The functions follow Python's str methods: positions and lengths count code points, white space is what
// str.isspace() accepts, line ends are those of str.splitlines(). Every result keeps the origin of each byte
// it took from its arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/marked_text.h"

namespace deltatune::jinja {

inline constexpr char from_content = 0;
inline constexpr char from_template = static_cast<char>(mark_template);

struct Text {
  std::string bytes;
  std::string flags;
  /// Result of `safe` or `escape`: `+` escapes the other side, as markupsafe does.
  bool markup = false;

  Text() = default;
  Text(std::string_view text, char origin) : bytes(text), flags(text.size(), origin) {}
  size_t size() const { return bytes.size(); }
  bool empty() const { return bytes.empty(); }
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, size_t begin, size_t end);
  void append(std::string_view text, char origin);
  /// Bytes [begin, end) with their origins.
  Text slice(size_t begin, size_t end) const;
};

/// Decodes the code point at byte `at` of valid UTF-8 and moves `at` behind it.
char32_t next_char(std::string_view text, size_t& at);
/// Appends the UTF-8 form of a scalar value.
void append_char(std::string& to, char32_t c);
/// Byte offset of the first invalid UTF-8 sequence, or npos.
size_t invalid_utf8_at(std::string_view text);
/// Number of code points.
size_t char_count(std::string_view text);
/// Byte offsets of all characters, and the length as last element.
std::vector<size_t> char_offsets(std::string_view text);
/// Python's str.isspace for one character.
bool is_space(char32_t c);

/// str.strip / lstrip / rstrip; `chars` == nullptr strips white space.
Text strip(const Text& text, const std::string* chars, bool left, bool right);
/// str.split() at runs of white space; at most `limit` cuts (negative: no limit).
std::vector<Text> split_space(const Text& text, int64_t limit, bool from_right);
/// str.split(separator) / rsplit; the separator is not empty.
std::vector<Text> split(const Text& text, std::string_view separator, int64_t limit, bool from_right);
std::vector<Text> split_lines(const Text& text, bool keep_ends);
/// str.replace; limit < 0: all.
Text replace(const Text& text, std::string_view old, const Text& with, int64_t limit);
/// HTML escapes of markupsafe: & < > ' ".
Text escape(const Text& text);

/// Letter case of one character (ASCII letters; see casing()).
enum class Case { lower, upper, capitalize, title };
/// str.lower / upper / capitalize, or the `title` of str (words are runs of letters). Returns false when the
/// text has non-ASCII characters, whose mappings are not here.
bool casing(const Text& text, Case how, Text& result);

}  // namespace deltatune::jinja
