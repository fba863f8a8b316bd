// Template source -> tokens, as jinja2 cuts it with trim_blocks and lstrip_blocks on.
//
// Rules: line ends become \n and one trailing newline is dropped; a newline right after a block or comment
// tag is dropped; blanks between a line start and a block or comment tag are dropped; `-` at a tag strips all
// white space on that side, `+` keeps it. Inside tags, an end mark counts only outside brackets. Not here:
// line statements, non-ASCII identifiers, \N{...} escapes, integers beyond 64 bits (all refused). Source of
// the rules: Jinja documentation, "Template Designer Documentation: Whitespace Control".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deltatune::jinja {

enum class TokenType {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  floating,
  op,
  end
};

struct Token {
  TokenType type = TokenType::end;
  int line = 0;
  /// Data, name, decoded string literal or operator.
  std::string text;
  int64_t integer = 0;
  double floating = 0;
};

/// The last token is `end`. Throws Error{data} naming `where` and the line.
std::vector<Token> tokenize(std::string_view source, const std::string& where);

}  // namespace deltatune::jinja
