// Split steps: the patterns of the Qwen family by hand (text/word_scanner.h), all others on PCRE2 with JIT.
//
// Class members: PCRE2 and the `tokenizers` package know different Unicode versions. Before matching, each
// character on which the two disagree is replaced, in a copy of the text, by a character of equal UTF-8
// length on which they agree and which has the wanted class; offsets stay valid. The disagreements are
// computed once from the linked PCRE2.
#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <initializer_list>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "base/suggest.h"
#include "text/regex_syntax.h"
#include "text/unicode.h"
#include "text/word_scanner.h"

namespace deltatune {
namespace {

constexpr size_t max_pattern_bytes = 1 << 16;
// Steps that one match may take: a constant and a share per byte of the text. Ordinary patterns take a few.
constexpr size_t match_limit = 1'000'000;
constexpr size_t match_limit_per_byte = 32;
constexpr uint32_t heap_limit_kib = 256 * 1024;
// GPT-2's pattern, which ByteLevel applies with use_regex: openai/gpt-2, encoder.py.
constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
using Code = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;

std::string pcre_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

Code compile(const std::string& pattern, std::string_view where) {
  const CompileContext context(pcre2_compile_context_create(nullptr));
  DELTATUNE_ASSERT(context != nullptr);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_max_pattern_length(context.get(), max_pattern_bytes);
  int error = 0;
  PCRE2_SIZE offset = 0;
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error,
                          &offset, context.get()));
  if (code == nullptr) {
    throw Error(ErrorKind::data, format("the split pattern does not compile: {}", pcre_message(error)),
                format("{}, near byte {} of the pattern", where, offset),
                "use the tokenizer.json that came with the checkpoint");
  }
  // Without JIT (an architecture that has none) matching is slower and otherwise the same.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

// Finds matches one after the other in one text.
class Matcher {
 public:
  explicit Matcher(const pcre2_code* code)
      : code_(code),
        data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    DELTATUNE_ASSERT(data_ != nullptr && context_ != nullptr);
    pcre2_set_heap_limit(context_.get(), heap_limit_kib);
  }

  // First match that starts at or behind `from`; false: none. Throws Error{data}.
  bool find(std::string_view text, size_t from, size_t& begin, size_t& end) {
    int result = match(text, from, PCRE2_NO_UTF_CHECK);
    // JIT code has 32 KiB of stack. The interpreter keeps its state on the heap and gets further.
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(text, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) return false;
    if (result < 0) {
      throw Error(
          ErrorKind::data, format("the split pattern of the tokenizer gave up: {}", pcre_message(result)),
          format("byte {} of a text of {} bytes", from, text.size()),
          "the pattern needs too many steps on this text; shorten the text or use another tokenizer.json");
    }
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data_.get());
    begin = offsets[0];
    end = offsets[1];
    return true;
  }

 private:
  int match(std::string_view text, size_t from, uint32_t options) {
    const size_t limit = match_limit + match_limit_per_byte * text.size();
    pcre2_set_match_limit(context_.get(), static_cast<uint32_t>(std::min<size_t>(limit, UINT32_MAX)));
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, options,
                       data_.get(), context_.get());
  }

  const pcre2_code* code_;
  MatchData data_;
  MatchContext context_;
};

// For each UTF-8 length (2, 3, 4) a character of the class that every Unicode version has there. None has
// case, so that (?i) sees nothing new, and they are of scripts (N'Ko, Vai, Lycian, ...) that patterns do not
// list. There is no white space of 4 bytes.
char32_t representative(CharClass wanted, size_t length) {
  DELTATUNE_ASSERT(length >= 2 && length <= 4);
  constexpr std::array<std::array<char32_t, 3>, 6> table{{{0x7F6, 0x2603, 0x1D300},  // other
                                                          {0x7CA, 0xA500, 0x10280},  // letter (Lo)
                                                          {0x7EB, 0xA806, 0x101FD},  // mark (Mn)
                                                          {0x7C0, 0xA620, 0x104A0},  // digit (Nd)
                                                          {0xBE, 0x2189, 0x10107},   // other number (No)
                                                          {0xA0, 0x205F, 0x205F}}};  // space
  return table[static_cast<size_t>(wanted)][length - 2];
}

// The characters that PCRE2 puts in another class than we do.
class Disagreements {
 public:
  Disagreements() : differs_(0x110000 / 8, 0) {
    std::string text;
    for (char32_t c = 0x80; c < 0x110000; ++c) {
      if (c < 0xD800 || c > 0xDFFF) append_utf8(text, c);
    }
    std::vector<CharClass> theirs(0x110000, CharClass::other);
    const auto mark = [&](const char* pattern, CharClass value) {
      const Code code = compile(pattern, "class probe");
      Matcher matcher(code.get());
      size_t begin = 0;
      for (size_t end = 0; matcher.find(text, end, begin, end);) {
        for (size_t i = begin; i < end;) theirs[next_code_point(text, i)] = value;
      }
    };
    mark("\\p{L}+", CharClass::letter);
    mark("\\p{M}+", CharClass::mark);
    mark("\\p{N}+", CharClass::other_number);
    mark("\\d+", CharClass::digit);
    mark("\\s+", CharClass::space);
    for (char32_t c = 0x80; c < 0x110000; ++c) {
      if (theirs[c] != char_class(c))
        differs_[c / 8] = static_cast<uint8_t>(differs_[c / 8] | (1U << (c % 8)));
    }
  }
  bool contains(char32_t c) const { return (differs_[c / 8] >> (c % 8)) & 1; }

 private:
  std::vector<uint8_t> differs_;
};

// `text`, or a copy of it in `storage` in which PCRE2's classes are ours. Same length.
std::string_view with_agreed_classes(std::string_view text, std::string& storage) {
  static const Disagreements disagreements;
  bool copied = false;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const size_t begin = at;
    const char32_t c = next_code_point(text, at);
    if (!disagreements.contains(c)) continue;
    if (!copied) storage.assign(text);
    copied = true;
    std::string stand_in;
    append_utf8(stand_in, representative(char_class(c), at - begin));
    DELTATUNE_ASSERT(stand_in.size() == at - begin);
    storage.replace(begin, stand_in.size(), stand_in);
  }
  return copied ? std::string_view(storage) : text;
}

size_t next_character(std::string_view text, size_t at) {
  next_code_point(text, at);
  return at;
}

void check_keys(const json::Value& step, std::initializer_list<const char*> known, std::string_view where) {
  const std::vector<std::string> names(known.begin(), known.end());
  for (const auto& [key, value] : step.as_object()) {
    if (std::find(names.begin(), names.end(), key) != names.end()) continue;
    const std::string near = nearest(key, names);
    throw Error(ErrorKind::data, format("unknown key \"{}\"", key), std::string(where),
                near.empty() ? "remove the key" : format("did you mean \"{}\"?", near));
  }
}

[[noreturn]] void refuse(std::string what, std::string place) {
  throw Error(ErrorKind::data, std::move(what), std::move(place),
              "byte-level BPE tokenizers with Split and ByteLevel steps are supported");
}

bool flag(const json::Value& step, std::string_view key, bool otherwise) {
  const json::Value* value = step.find(key);
  return value == nullptr ? otherwise : value->as_bool();
}

}  // namespace

struct PreTokenizer::Step {
  std::string pattern;               // as in the file
  Code code;                         // null: no splitting
  std::optional<WordScanner> words;  // does what `code` does
  bool keep_matches = true;
  bool keep_gaps = true;
  bool prefix_space = false;

  static Step parse_split(const json::Value& value, const std::string& place, bool by_hand);
  static Step parse_byte_level(const json::Value& value, const std::string& place);
  void split(std::string_view text, std::vector<TextPiece>& out) const;
};

// Cuts all of `text`. Empty matches cut and keep nothing, and none is taken right behind a match.
void PreTokenizer::Step::split(std::string_view text, std::vector<TextPiece>& out) const {
  const auto emit = [&](size_t begin, size_t end, bool keep) {
    if (begin < end && keep) out.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end), false});
  };
  if (code == nullptr) return emit(0, text.size(), true);
  if (words.has_value()) {
    for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
      end = words->piece_end(text, begin);
      emit(begin, end, keep_matches);
    }
    return;
  }
  std::string storage;
  const std::string_view subject = with_agreed_classes(text, storage);
  Matcher matcher(code.get());
  size_t done = 0;
  size_t begin = 0;
  size_t end = 0;
  for (size_t from = 0; from < text.size() && matcher.find(subject, from, begin, end);) {
    emit(done, begin, keep_gaps);
    emit(begin, end, keep_matches);
    done = end;
    from = begin == end && end < text.size() ? next_character(text, end) : begin == end ? end + 1 : end;
  }
  emit(done, text.size(), keep_gaps);
}

PreTokenizer::PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

// A step of type Split.
PreTokenizer::Step PreTokenizer::Step::parse_split(const json::Value& value, const std::string& place,
                                                   bool by_hand) {
  check_keys(value, {"type", "pattern", "behavior", "invert"}, place);
  const std::string& behavior = value.at("behavior").as_string();
  Step step;
  if (behavior == "Removed") {
    (flag(value, "invert", false) ? step.keep_gaps : step.keep_matches) = false;
  } else if (behavior != "Isolated") {
    refuse(format("split behaviour \"{}\" is not supported", behavior), place);
  }
  const json::Value& pattern = value.at("pattern");
  check_keys(pattern, {"Regex", "String"}, place);
  if (const json::Value* literal = pattern.find("String")) {
    if (literal->as_string().empty()) refuse("the split pattern is empty", place);
    step.code = compile(literal_pattern(literal->as_string()), place);
    return step;
  }
  step.pattern = pattern.at("Regex").as_string();
  const PcrePattern translated = translate_pattern(step.pattern, place);
  if (!translated.foreign_property.empty()) {
    log::warn(
        "{}: the split pattern uses \\p{{{}}}; characters of new Unicode versions may be split differently",
        place, translated.foreign_property);
  }
  step.code = compile(translated.text, place);
  if (by_hand) step.words = WordScanner::for_pattern(step.pattern);
  return step;
}

// A step of type ByteLevel.
PreTokenizer::Step PreTokenizer::Step::parse_byte_level(const json::Value& value, const std::string& place) {
  check_keys(value, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, place);
  Step step;
  step.prefix_space = flag(value, "add_prefix_space", true);
  if (flag(value, "use_regex", true)) {
    step.pattern = gpt2_pattern;
    step.code = compile(step.pattern, place);
  }
  return step;
}

PreTokenizer PreTokenizer::parse(const json::Value& value, std::string_view where, bool by_hand) {
  PreTokenizer out;
  bool byte_level = false;
  const auto add = [&](const json::Value& step, const std::string& place) {
    const std::string& type = step.at("type").as_string();
    if (byte_level) refuse(format("a {} step behind ByteLevel is not supported", type), place);
    if (type == "Split") {
      out.steps_.push_back(Step::parse_split(step, place, by_hand));
    } else if (type == "ByteLevel") {
      byte_level = true;
      out.steps_.push_back(Step::parse_byte_level(step, place));
    } else {
      refuse(format("pre-tokenizer type \"{}\" is not supported", type), place);
    }
  };
  const std::string place = format("{}, key pre_tokenizer", where);
  if (!value.is_object()) refuse("the tokenizer has no pre_tokenizer", place);
  if (value.at("type").as_string() == "Sequence") {
    const json::Array& steps = value.at("pretokenizers").as_array();
    for (size_t i = 0; i < steps.size(); ++i) add(steps[i], format("{}, step {}", place, i + 1));
  } else {
    add(value, place);
  }
  if (!byte_level) refuse("the pre_tokenizer has no ByteLevel step", place);
  return out;
}

void PreTokenizer::split(std::string_view text, std::vector<TextPiece>& out) const {
  if (text.empty()) return;
  std::vector<TextPiece> pieces{{0, static_cast<uint32_t>(text.size()), false}};
  std::vector<TextPiece> next;
  std::vector<TextPiece> parts;
  std::string with_space;
  for (const Step& step : steps_) {
    if (step.code == nullptr && !step.prefix_space) continue;
    next.clear();
    for (const TextPiece& piece : pieces) {
      std::string_view content = text.substr(piece.begin, piece.end - piece.begin);
      const bool add_space = step.prefix_space && content.front() != ' ';
      if (add_space) {
        with_space.assign(1, ' ').append(content);
        content = with_space;
      }
      parts.clear();
      step.split(content, parts);
      const uint32_t shift = add_space ? 1 : 0;
      for (const TextPiece& part : parts) {
        // A part that is the added space alone has no byte of the text: it is an empty range with a space.
        const bool space = add_space && part.begin == 0;
        next.push_back(
            {piece.begin + (space ? 0 : part.begin - shift), piece.begin + part.end - shift, space});
      }
    }
    pieces.swap(next);
  }
  out.insert(out.end(), pieces.begin(), pieces.end());
}

bool PreTokenizer::mentions_property(std::string_view name) const {
  const std::string escape = format("\\p{{{}}}", name);
  for (const Step& step : steps_) {
    if (step.pattern.find(escape) != std::string::npos) return true;
  }
  return false;
}

}  // namespace deltatune
