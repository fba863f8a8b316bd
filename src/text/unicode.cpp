// UTF-8 after the Unicode Standard's table 3-7, and NFC segment by segment.
//
// NFC works on segments that start at a character which cannot combine with what stands before it. A segment
// of one character is copied; the others go through decompose, reorder, compose with the origin of each
// character kept beside it. A barrier character (unicode_tables.h) is a segment of its own.
#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <span>

#include "base/error.h"
#include "text/unicode_tables.h"

namespace deltatune {
namespace {

constexpr char32_t code_point_count = 0x110000;
constexpr uint8_t class_bits = 7;
constexpr uint8_t attention_bit = 8;
constexpr uint8_t barrier_bit = 16;

// One byte of properties per code point: 1.1 MB, of which a text touches a few pages.
const std::vector<uint8_t>& properties() {
  static const std::vector<uint8_t> table = [] {
    std::vector<uint8_t> bits(code_point_count, 0);
    const auto add = [&](std::span<const unicode_tables::CodeRange> ranges, uint8_t value) {
      for (const auto& range : ranges) {
        for (char32_t c = range.first; c <= range.last; ++c) bits[c] = static_cast<uint8_t>(bits[c] | value);
      }
    };
    add(unicode_tables::letters, static_cast<uint8_t>(CharClass::letter));
    add(unicode_tables::marks, static_cast<uint8_t>(CharClass::mark));
    add(unicode_tables::digits, static_cast<uint8_t>(CharClass::digit));
    add(unicode_tables::other_numbers, static_cast<uint8_t>(CharClass::other_number));
    add(unicode_tables::spaces, static_cast<uint8_t>(CharClass::space));
    add(unicode_tables::nfc_attention, attention_bit);
    add(unicode_tables::nfc_barriers, barrier_bit);
    return bits;
  }();
  return table;
}

bool is_ascii(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}

// First byte at or behind `at` that is not ASCII, or the size.
size_t skip_ascii(std::string_view text, size_t at) {
  constexpr uint64_t high_bits = 0x8080808080808080ULL;
  for (; at + sizeof(uint64_t) <= text.size(); at += sizeof(uint64_t)) {
    uint64_t eight = 0;
    std::memcpy(&eight, text.data() + at, sizeof eight);
    if ((eight & high_bits) != 0) break;
  }
  while (at < text.size() && is_ascii(text[at])) ++at;
  return at;
}

// Length of the valid sequence at `at`, or minus the length of the maximal invalid subpart (at least 1).
int sequence_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned lead = byte(at);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return -1;
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned low = 0x80;
  unsigned high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (int i = 1; i < length; ++i) {
    const unsigned next = byte(at + static_cast<size_t>(i));
    if (next < low || next > high) return -i;
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

// A decomposed character on its way through the algorithm.
struct Piece {
  char32_t code_point;
  uint8_t combining_class;
  uint32_t source;
};

uint8_t combining_class(char32_t c) {
  return static_cast<uint8_t>(utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class);
}

void decompose(char32_t c, uint32_t source, std::vector<Piece>& out) {
  std::array<utf8proc_int32_t, 32> parts{};  // the longest canonical decomposition has 4
  int last_class = 0;
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(),
                              static_cast<utf8proc_ssize_t>(parts.size()), UTF8PROC_DECOMPOSE, &last_class);
  DELTATUNE_ASSERT(count > 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()));
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const char32_t part = static_cast<char32_t>(parts[i]);
    out.push_back({part, combining_class(part), source});
  }
}

// The primary composite of two characters, or 0.
char32_t composite(char32_t first, char32_t second) {
  std::array<utf8proc_int32_t, 2> pair{static_cast<utf8proc_int32_t>(first),
                                       static_cast<utf8proc_int32_t>(second)};
  const utf8proc_ssize_t length = utf8proc_normalize_utf32(
      pair.data(), 2, static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  return length == 1 ? static_cast<char32_t>(pair[0]) : 0;
}

// Reorders and composes `pieces` in place.
void compose(std::vector<Piece>& pieces) {
  const auto end = pieces.end();
  for (auto run = pieces.begin(); run != end;) {
    if (run->combining_class == 0) {
      ++run;
      continue;
    }
    const auto stop = std::find_if(run, end, [](const Piece& p) { return p.combining_class == 0; });
    std::stable_sort(run, stop,
                     [](const Piece& a, const Piece& b) { return a.combining_class < b.combining_class; });
    run = stop;
  }
  constexpr size_t none = static_cast<size_t>(-1);
  size_t starter = none;
  size_t kept = 0;  // pieces[0, kept) is the result so far
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece piece = pieces[i];
    // Blocked when a kept character between the two has no class or one that is not lower.
    const bool adjacent = starter != none && kept == starter + 1;
    const bool blocked =
        starter == none || (!adjacent && pieces[kept - 1].combining_class >= piece.combining_class);
    if (!blocked) {
      if (const char32_t whole = composite(pieces[starter].code_point, piece.code_point); whole != 0) {
        pieces[starter].code_point = whole;
        continue;
      }
    }
    if (piece.combining_class == 0) starter = kept;
    pieces[kept++] = piece;
  }
  pieces.resize(kept);
}

}  // namespace

size_t find_invalid_utf8(std::string_view text) noexcept {
  for (size_t at = skip_ascii(text, 0); at < text.size(); at = skip_ascii(text, at)) {
    const int length = sequence_length(text, at);
    if (length < 0) return at;
    at += static_cast<size_t>(length);
  }
  return utf8_ok;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const int length = sequence_length(text, at);
    if (length > 0) {
      out.append(text.substr(at, static_cast<size_t>(length)));
    } else {
      out += "\xEF\xBF\xBD";
    }
    at += static_cast<size_t>(std::abs(length));
  }
  return out;
}

char32_t next_code_point(std::string_view text, size_t& position) noexcept {
  const auto take = [&] { return static_cast<char32_t>(static_cast<unsigned char>(text[position++])); };
  const char32_t lead = take();
  if (lead < 0x80) return lead;
  const int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  char32_t value = lead & (0x3FU >> more);
  for (int i = 0; i < more; ++i) value = (value << 6) | (take() & 0x3F);
  return value;
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

CharClass char_class(char32_t code_point) noexcept {
  if (code_point >= code_point_count) return CharClass::other;
  return static_cast<CharClass>(properties()[code_point] & class_bits);
}

bool may_need_nfc(std::string_view text) noexcept {
  const std::vector<uint8_t>& table = properties();
  for (size_t at = skip_ascii(text, 0); at < text.size(); at = skip_ascii(text, at)) {
    if (table[next_code_point(text, at)] & attention_bit) return true;
  }
  return false;
}

NormalizedText normalize_nfc(std::string_view text) {
  DELTATUNE_ASSERT(text.size() < UINT32_MAX);
  const std::vector<uint8_t>& table = properties();
  NormalizedText out;
  out.text.reserve(text.size());
  out.source.reserve(text.size());
  std::vector<Piece> pieces;
  const auto copy = [&](size_t begin, size_t end) {  // one character
    out.text.append(text.substr(begin, end - begin));
    out.source.resize(out.text.size(), static_cast<uint32_t>(begin));
  };
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t first = next_code_point(text, at);
    size_t behind = at;  // first byte behind the segment
    for (size_t look = at; look < text.size() && !is_ascii(text[look]);) {
      if (!(table[next_code_point(text, look)] & attention_bit)) break;
      behind = look;
    }
    if ((behind == at && !(table[first] & attention_bit)) || (table[first] & barrier_bit)) {
      copy(begin, at);
      continue;
    }
    pieces.clear();
    for (size_t i = begin; i < behind;) {
      const uint32_t source = static_cast<uint32_t>(i);
      decompose(next_code_point(text, i), source, pieces);
    }
    compose(pieces);
    for (const Piece& piece : pieces) {
      append_utf8(out.text, piece.code_point);
      out.source.resize(out.text.size(), piece.source);
    }
    at = behind;
  }
  return out;
}

}  // namespace deltatune
