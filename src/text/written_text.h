// Searching in rendered text for what the template itself wrote: headers, end marks, think blocks.
//
// Bytes that came in through a message never count, so a user's text cannot move a loss span.
#pragma once

#include <cstddef>
#include <string_view>

#include "text/jinja_text.h"

namespace deltatune::jinja {

/// First occurrence of `what` in bytes [from, end) of `text` all of which the template wrote, or npos.
size_t find_written(const Text& text, std::string_view what, size_t from,
                    size_t end = std::string_view::npos);

/// Behind `what` when the template wrote it at byte `at`, else `at`.
size_t skip_written(const Text& text, std::string_view what, size_t at);

/// Behind the white space that the template wrote at byte `at`.
size_t skip_written_space(const Text& text, size_t at);

/// The leading part of bytes [begin, end) that the template wrote.
std::string_view written_prefix(const Text& text, size_t begin, size_t end);

/// The block "<think>\n ... \n</think>\n\n" that a turn starts with.
struct ThinkBlock {
  size_t opening_end = 0;  ///< behind "<think>\n"; behind the whole block when it holds no thoughts
  size_t end = 0;          ///< behind the block and the white space after it
};

/// That of a turn whose text is bytes [begin, end); `begin` twice where it starts with none.
ThinkBlock think_block(const Text& text, size_t begin, size_t end);

}  // namespace deltatune::jinja
