// UTF-8 walking and the str methods that the template engine needs; see jinja_text.h.
#include "text/jinja_text.h"

#include <algorithm>

namespace deltatune::jinja {

void Text::append(const Text& other, size_t begin, size_t end) {
  bytes.append(other.bytes, begin, end - begin);
  flags.append(other.flags, begin, end - begin);
}

void Text::append(std::string_view text, char origin) {
  bytes.append(text);
  flags.append(text.size(), origin);
}

Text Text::slice(size_t begin, size_t end) const {
  Text result;
  result.append(*this, begin, end);
  result.markup = markup;
  return result;
}

char32_t next_char(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  size_t length = 1;
  char32_t c = lead;
  if (lead >= 0xF0) {
    length = 4;
    c = lead & 0x07u;
  } else if (lead >= 0xE0) {
    length = 3;
    c = lead & 0x0Fu;
  } else if (lead >= 0xC0) {
    length = 2;
    c = lead & 0x1Fu;
  }
  for (size_t i = 1; i < length && at + i < text.size(); ++i) c = (c << 6) | (byte(at + i) & 0x3Fu);
  at = std::min(at + length, text.size());
  return c;
}

void append_char(std::string& to, char32_t c) {
  const auto put = [&](char32_t byte) { to.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

size_t invalid_utf8_at(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    size_t length = lead < 0x80   ? 1
                    : lead < 0xC2 ? 0
                    : lead < 0xE0 ? 2
                    : lead < 0xF0 ? 3
                    : lead < 0xF5 ? 4
                                  : 0;
    if (length == 0 || i + length > text.size()) return i;
    for (size_t k = 1; k < length; ++k) {
      if ((static_cast<unsigned char>(text[i + k]) & 0xC0u) != 0x80u) return i;
    }
    size_t at = i;
    const char32_t c = next_char(text, at);
    const char32_t least = length == 3 ? 0x800 : length == 4 ? 0x10000 : 0;
    if (c < least || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return i;
    i += length;
  }
  return std::string_view::npos;
}

size_t char_count(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u; }));
}

std::vector<size_t> char_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  offsets.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0u) != 0x80u) offsets.push_back(i);
  }
  offsets.push_back(text.size());
  return offsets;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

namespace {

/// Start of the character that ends at byte `end`.
size_t char_before(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0u) == 0x80u) --at;
  return at;
}

bool in_set(std::string_view character, const std::string* chars) {
  if (chars) return chars->find(character) != std::string::npos;
  size_t at = 0;
  return is_space(next_char(character, at));
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

Text strip(const Text& text, const std::string* chars, bool left, bool right) {
  const std::string_view bytes = text.bytes;
  size_t begin = 0;
  size_t end = bytes.size();
  while (left && begin < end) {
    size_t at = begin;
    next_char(bytes, at);
    if (!in_set(bytes.substr(begin, at - begin), chars)) break;
    begin = at;
  }
  while (right && end > begin) {
    const size_t at = char_before(bytes, end);
    if (!in_set(bytes.substr(at, end - at), chars)) break;
    end = at;
  }
  return text.slice(begin, end);
}

std::vector<Text> split_space(const Text& text, int64_t limit, bool from_right) {
  std::vector<Text> parts;
  Text rest = strip(text, nullptr, !from_right, from_right);
  while (!rest.empty()) {
    const std::string_view bytes = rest.bytes;
    size_t cut = std::string_view::npos;
    if (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
      size_t at = from_right ? bytes.size() : 0;
      while (from_right ? at > 0 : at < bytes.size()) {
        const size_t begin = from_right ? char_before(bytes, at) : at;
        size_t end = begin;
        const bool space = is_space(next_char(bytes, end));
        if (space) {
          cut = from_right ? end : begin;
          break;
        }
        at = from_right ? begin : end;
      }
    }
    if (cut == std::string_view::npos) {
      parts.push_back(std::move(rest));
      break;
    }
    parts.push_back(from_right ? rest.slice(cut, rest.size()) : rest.slice(0, cut));
    rest = from_right ? strip(rest.slice(0, cut), nullptr, false, true)
                      : strip(rest.slice(cut, rest.size()), nullptr, true, false);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<Text> split(const Text& text, std::string_view separator, int64_t limit, bool from_right) {
  std::vector<Text> parts;
  const std::string_view bytes = text.bytes;
  size_t begin = 0;
  size_t end = bytes.size();
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    if (from_right) {
      const size_t at = bytes.substr(0, end).rfind(separator);
      if (at == std::string_view::npos) break;
      parts.push_back(text.slice(at + separator.size(), end));
      end = at;
    } else {
      const size_t at = bytes.find(separator, begin);
      if (at == std::string_view::npos) break;
      parts.push_back(text.slice(begin, at));
      begin = at + separator.size();
    }
  }
  parts.push_back(text.slice(begin, end));
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
  std::vector<Text> lines;
  const std::string_view bytes = text.bytes;
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t start = at;
    const char32_t c = next_char(bytes, at);
    if (!is_line_end(c)) continue;
    if (c == '\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    lines.push_back(text.slice(begin, keep_ends ? at : start));
    begin = at;
  }
  if (begin < bytes.size()) lines.push_back(text.slice(begin, bytes.size()));
  return lines;
}

Text replace(const Text& text, std::string_view old, const Text& with, int64_t limit) {
  Text result;
  result.markup = text.markup;
  const std::string_view bytes = text.bytes;
  size_t at = 0;
  int64_t done = 0;
  while (limit < 0 || done < limit) {
    if (old.empty()) {  // before every character and at the end
      result.append(with);
      ++done;
      if (at >= bytes.size()) return result;
      size_t next = at;
      next_char(bytes, next);
      result.append(text, at, next);
      at = next;
      continue;
    }
    const size_t found = bytes.find(old, at);
    if (found == std::string_view::npos) break;
    result.append(text, at, found);
    result.append(with);
    at = found + old.size();
    ++done;
  }
  result.append(text, at, text.size());
  return result;
}

Text escape(const Text& text) {
  Text result;
  result.markup = true;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes[i];
    const char* entity = c == '&'    ? "&amp;"
                         : c == '<'  ? "&lt;"
                         : c == '>'  ? "&gt;"
                         : c == '\'' ? "&#39;"
                         : c == '"'  ? "&#34;"
                                     : nullptr;
    if (entity) {
      result.append(entity, text.flags[i]);
    } else {
      result.append(text, i, i + 1);
    }
  }
  return result;
}

bool casing(const Text& text, Case how, Text& result) {
  result = text;
  bool start = true;
  for (char& c : result.bytes) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool to_upper = how == Case::upper || (how != Case::lower && start);
    if (to_upper && c >= 'a' && c <= 'z') {
      c = static_cast<char>(c - 'a' + 'A');
    } else if (!to_upper && c >= 'A' && c <= 'Z') {
      c = static_cast<char>(c - 'A' + 'a');
    }
    start = how == Case::title && !letter;
  }
  return true;
}

}  // namespace deltatune::jinja
