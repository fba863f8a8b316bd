// tokenizer.json, tokenizer_config.json, split patterns and texts from arbitrary bytes.
//
// The first byte chooses what the rest is: F a tokenizer.json, C a tokenizer_config.json beside a good
// tokenizer.json, P a split pattern up to a line feed and then a text, T a text whose bytes are marked by the
// digits in front of it. Every accepted tokenizer encodes a text. Only Error{data} may come out; on
// byte-exact tokenizers decoding gives back the NFC of the text.
#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "base/log.h"
#include "text/tiny_tokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace {

using namespace deltatune;

constexpr std::string_view sample = "hello w\u00f6rld e\u0301 <|end|>\n\n 12 <think> \U0001123F";

// The flags change only between characters, as MarkedText demands.
MarkedText mark(std::string_view text, std::string_view digits) {
  MarkedText out{std::string(text), std::vector<uint8_t>(text.size(), 0)};
  uint8_t flags = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool starts_character = (static_cast<uint8_t>(text[i]) & 0xC0) != 0x80;
    if (starts_character && !digits.empty()) flags = static_cast<uint8_t>(digits[i % digits.size()]) & 3;
    out.flags[i] = flags;
  }
  return out;
}

void use(const Tokenizer& tokenizer, std::string_view text, std::string_view digits) {
  const MarkedText marked = mark(text, digits);
  for (const bool parity : {false, true}) {
    const MarkedTokens tokens = tokenizer.encode(marked, parity);
    DELTATUNE_ASSERT(tokens.ids.size() == tokens.supervised.size());
    for (const int32_t id : tokens.ids) DELTATUNE_ASSERT(id >= 0 && id < tokenizer.vocab_size());
    tokenizer.decode_utf8(tokens.ids, parity);
  }
}

void use_text(std::string_view text) {
  static const Tokenizer tokenizer = Tokenizer::parse(json::dump(tiny_tokenizer()), "", "fuzz");
  const size_t digits = std::min(text.find_first_not_of("0123"), text.size());
  use(tokenizer, text.substr(digits), text.substr(0, digits));
  const std::string_view rest = text.substr(digits);
  DELTATUNE_ASSERT(tokenizer.decode(tokenizer.encode(rest, false)) == normalize_nfc(rest).text);
  if (!may_need_nfc(rest)) DELTATUNE_ASSERT(normalize_nfc(rest).text == rest);
}

void use_pattern(std::string_view input) {
  const size_t line = std::min(input.find('\n'), input.size());
  const std::string pattern = replace_invalid_utf8(input.substr(0, line));
  const std::string text = replace_invalid_utf8(input.substr(line).substr(0, 200));
  const Tokenizer tokenizer =
      Tokenizer::parse(json::dump(tiny_tokenizer(tiny_merges(), pattern.c_str())), "", "fuzz");
  DELTATUNE_ASSERT(tokenizer.decode(tokenizer.encode(text, false)) == normalize_nfc(text).text);
  use(tokenizer, text, "0123");
}

void dispatch(std::string_view input) {
  if (input.empty()) return;
  const std::string_view rest = input.substr(1);
  switch (input[0]) {
    case 'F':
      return use(Tokenizer::parse(rest, "", "fuzz"), sample, "3210");
    case 'C':
      return use(Tokenizer::parse(json::dump(tiny_tokenizer()), rest, "fuzz"), sample, "3210");
    case 'P':
      return use_pattern(rest);
    default:
      return use_text(rest);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  log::set_level(log::Level::error);
  try {
    dispatch(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) throw;
  }
  return 0;
}
