// See written_text.h.
#include "text/written_text.h"

#include <algorithm>

namespace deltatune::jinja {
namespace {

bool template_wrote(const Text& text, size_t begin, size_t size) {
  const std::string_view flags = std::string_view(text.flags).substr(begin, size);
  return flags.size() == size && flags.find(from_content) == std::string_view::npos;
}

}  // namespace

size_t find_written(const Text& text, std::string_view what, size_t from, size_t end) {
  const std::string_view bytes = std::string_view(text.bytes).substr(0, end);
  for (size_t at = bytes.find(what, from); at != std::string_view::npos; at = bytes.find(what, at + 1)) {
    if (template_wrote(text, at, what.size())) return at;
  }
  return std::string_view::npos;
}

size_t skip_written(const Text& text, std::string_view what, size_t at) {
  const bool there = text.bytes.compare(at, what.size(), what) == 0 && template_wrote(text, at, what.size());
  return there ? at + what.size() : at;
}

size_t skip_written_space(const Text& text, size_t at) {
  constexpr std::string_view space = " \t\r\n";
  while (at < text.size() && space.find(text.bytes[at]) != std::string_view::npos &&
         text.flags[at] != from_content)
    ++at;
  return at;
}

std::string_view written_prefix(const Text& text, size_t begin, size_t end) {
  const size_t content = std::min(text.flags.find(from_content, begin), end);
  return std::string_view(text.bytes).substr(begin, content - begin);
}

ThinkBlock think_block(const Text& text, size_t begin, size_t end) {
  constexpr std::string_view opening = "<think>";
  constexpr std::string_view closing = "</think>";
  const size_t opened = skip_written(text, opening, begin);
  if (opened == begin) return {begin, begin};
  const size_t closed = find_written(text, closing, opened, end);
  if (closed == std::string_view::npos) return {opened, opened};
  const size_t behind = std::min(skip_written_space(text, closed + closing.size()), end);
  if (closed <= skip_written_space(text, opened)) return {behind, behind};
  return {skip_written(text, "\n", opened), behind};
}

}  // namespace deltatune::jinja
