// Encoding and decoding. Marks travel as one flag byte per byte of text through all steps.
#include "text/tokenizer.h"

#include "base/error.h"
#include "base/format.h"
#include "text/unicode.h"

namespace deltatune {

// Result and buffers of one encode() call. A thread keeps its own from call to call.
struct Tokenizer::Work {
  std::vector<int32_t> ids;
  std::vector<uint8_t> supervised;
  std::vector<TextPiece> pieces;
  std::vector<AddedTokens::Match> matches;
  std::vector<AddedTokens::Match> normalized_matches;
  std::string spaced;
  Bpe::Scratch scratch;

  static Work& of_this_thread() {
    thread_local Work work;
    work.ids.clear();
    work.supervised.clear();
    return work;
  }
  // What one huge text needed is not kept for ever.
  void trim() {
    constexpr size_t usual = size_t{1} << 18;
    if (ids.capacity() > usual) ids = {};
    if (supervised.capacity() > usual) supervised = {};
    if (pieces.capacity() > usual) pieces = {};
    scratch.trim();
  }
};

namespace {

void check_text(std::string_view text) {
  if (const size_t at = find_invalid_utf8(text); at != utf8_ok) {
    throw Error(ErrorKind::data, "the text is not valid UTF-8", format("byte offset {}", at),
                "convert the text to UTF-8");
  }
  if (text.size() >= (size_t{1} << 31)) {
    throw Error(ErrorKind::data, format("the text has {} bytes; at most 2 GiB are supported", text.size()),
                {}, "split the text");
  }
}

std::span<const uint8_t> part(std::span<const uint8_t> flags, size_t begin, size_t end) {
  return flags.empty() ? flags : flags.subspan(begin, end - begin);
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_added) const {
  check_text(text);
  Work& work = Work::of_this_thread();
  encode_text(text, {}, parse_added, 0, work);
  std::vector<int32_t> ids = work.ids;
  work.trim();
  return ids;
}

MarkedTokens Tokenizer::encode(const MarkedText& marked, bool parity) const {
  DELTATUNE_ASSERT(marked.flags.size() == marked.text.size());
  check_text(marked.text);
  Work& work = Work::of_this_thread();
  encode_text(marked.text, marked.flags, true, parity ? 0 : mark_template, work);
  MarkedTokens tokens{work.ids, work.supervised};
  work.trim();
  return tokens;
}

// Cuts at the added tokens that are looked for in the raw text.
void Tokenizer::encode_text(std::string_view text, std::span<const uint8_t> flags, bool parse_added,
                            uint8_t required, Work& work) const {
  work.matches.clear();
  if (parse_added) added_raw_.find(text, flags, required, work.matches);
  size_t done = 0;
  for (const AddedTokens::Match& match : work.matches) {
    encode_stretch(text.substr(done, match.begin - done), part(flags, done, match.begin), parse_added,
                   required, work);
    work.ids.push_back(match.id);
    if (!flags.empty()) work.supervised.push_back((flags[match.begin] & mark_supervised) != 0);
    done = match.end;
  }
  encode_stretch(text.substr(done), part(flags, done, text.size()), parse_added, required, work);
}

// Normalises, then cuts at the added tokens that are looked for in normalised text.
void Tokenizer::encode_stretch(std::string_view text, std::span<const uint8_t> flags, bool parse_added,
                               uint8_t required, Work& work) const {
  if (text.empty()) return;
  NormalizedText normalized;
  std::vector<uint8_t> moved_flags;
  if (nfc_ && may_need_nfc(text)) {
    normalized = normalize_nfc(text);
    text = normalized.text;
    if (!flags.empty()) {
      for (const uint32_t source : normalized.source) moved_flags.push_back(flags[source]);
      flags = moved_flags;
    }
  }
  work.normalized_matches.clear();
  if (parse_added && !added_normalized_.empty())
    added_normalized_.find(text, flags, required, work.normalized_matches);
  size_t done = 0;
  for (const AddedTokens::Match& match : work.normalized_matches) {
    encode_normal(text.substr(done, match.begin - done), part(flags, done, match.begin), work);
    work.ids.push_back(match.id);
    if (!flags.empty()) work.supervised.push_back((flags[match.begin] & mark_supervised) != 0);
    done = match.end;
  }
  encode_normal(text.substr(done), part(flags, done, text.size()), work);
}

// Pieces and BPE of text without added tokens.
void Tokenizer::encode_normal(std::string_view text, std::span<const uint8_t> flags, Work& work) const {
  work.pieces.clear();
  pre_tokenizer_->split(text, work.pieces);
  for (const TextPiece& piece : work.pieces) {
    std::string_view bytes = text.substr(piece.begin, piece.end - piece.begin);
    if (piece.space_before) {
      work.spaced.assign(1, ' ').append(bytes);
      bytes = work.spaced;
    }
    const size_t first_token = work.ids.size();
    bpe_.encode(bytes, work.scratch, work.ids);
    if (flags.empty()) continue;
    const auto supervised = [&](size_t source) {
      return static_cast<uint8_t>((flags[std::min(source, text.size() - 1)] & mark_supervised) != 0);
    };
    bool uniform = true;
    for (size_t i = piece.begin + size_t{1}; i < piece.end; ++i)
      uniform = uniform && ((flags[i] ^ flags[piece.begin]) & mark_supervised) == 0;
    if (uniform) {
      work.supervised.resize(work.ids.size(), supervised(piece.begin));
      continue;
    }
    // The space that add_prefix_space wrote counts as part of the character behind it.
    const size_t added = piece.space_before ? 1 : 0;
    size_t at = 0;
    for (size_t i = first_token; i < work.ids.size(); ++i) {
      work.supervised.push_back(supervised(piece.begin + (at < added ? 0 : at - added)));
      at += tokens_[static_cast<size_t>(work.ids[i])].bytes.size();
    }
  }
}

const Tokenizer::Token* Tokenizer::token(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens_.size()) return nullptr;
  const Token& found = tokens_[static_cast<size_t>(id)];
  return found.present ? &found : nullptr;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  for (const int32_t id : ids) {
    const Token* found = token(id);
    if (found != nullptr && !(skip_special && found->special)) out += found->bytes;
  }
  return out;
}

std::string Tokenizer::decode_utf8(std::span<const int32_t> ids, bool skip_special) const {
  return replace_invalid_utf8(decode(ids, skip_special));
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional<int32_t>(found->second);
}

std::string Tokenizer::token_text(int32_t id) const {
  const Token* found = token(id);
  if (found == nullptr) return {};
  return found->byte_level && !found->added ? spelling_of_bytes(found->bytes) : found->bytes;
}

bool Tokenizer::is_added(int32_t id) const {
  const Token* found = token(id);
  return found != nullptr && found->added;
}

bool Tokenizer::is_special(int32_t id) const {
  const Token* found = token(id);
  return found != nullptr && found->special;
}

}  // namespace deltatune
