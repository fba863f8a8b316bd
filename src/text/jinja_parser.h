// Tokens -> syntax tree. The grammar is that of the Jinja documentation ("Template
// Designer Documentation"); statements that load other templates (extends, include, import, block) are
// refused, and so are autoescape and recursive loops.
#pragma once

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace deltatune::jinja {

/// Throws Error{data} naming `where` and the line.
Tree parse(std::vector<Token> tokens, const std::string& where);

}  // namespace deltatune::jinja
