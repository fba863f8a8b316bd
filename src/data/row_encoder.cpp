// Parsing, encoding and cutting of single rows.
#include "data/row_encoder.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/format.h"
#include "data/tokenized_row.h"

namespace deltatune {
namespace {

void check_encoded(const MarkedTokens& tokens, int64_t vocab_size) {
  DELTATUNE_ASSERT(tokens.ids.size() == tokens.supervised.size());
  if (tokens.ids.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw RowError(RowProblem::refused, "the row has more than 2^31 tokens", "", "split it");
  }
  for (const int32_t id : tokens.ids) {
    if (id >= 0 && id < vocab_size) continue;
    throw RowError(RowProblem::refused, format("the tokenizer made id {}, outside [0, {})", id, vocab_size),
                   "", "use the tokenizer that belongs to the model");
  }
}

MarkedTokens tokens_of_row(const json::Value& value, const RawRow& row, const std::string& file,
                           const RowOptions& options, const EncodeConversation& encode, EncodedRow& out) {
  if (is_tokenized_row(value)) return tokens_of(value, options.vocab_size);
  Conversation conversation = read_conversation(value, options.schema, &out.note.emplace());
  if (!encode) {
    throw RowError(RowProblem::unknown_schema, "a chat row where only tokenised rows are read", "",
                   "give rows with input_ids and labels");
  }
  conversation.file = file;
  conversation.line = row.number;
  out.empty_assistant_turns = conversation.empty_assistant_turns;
  for (const json::Value& message : conversation.messages.as_array()) {
    const auto role = std::find(role_names.begin(), role_names.end(), message.at("role").as_string());
    DELTATUNE_ASSERT(role != role_names.end());
    ++out.messages[static_cast<size_t>(role - role_names.begin())];
  }
  return encode(conversation);
}

}  // namespace

void check_lengths(const RowOptions& options) {
  if (options.max_tokens < 1 || options.max_length < 1) {
    throw Error(
        ErrorKind::usage,
        format("max_length {} and max_tokens {} must be positive", options.max_length, options.max_tokens),
        "max_length, max_tokens", "max_length: 8192, max_tokens: 16384");
  }
  if (options.max_length > options.max_tokens) {
    throw Error(
        ErrorKind::usage,
        format("max_length {} is larger than max_tokens {}: the longest conversation must fit one row",
               options.max_length, options.max_tokens),
        "max_length", format("max_length: {} or max_tokens: {}", options.max_tokens, options.max_length));
  }
  DELTATUNE_ASSERT(options.vocab_size > 0);
}

EncodedRow encode_row(const RawRow& row, const std::string& file, const RowOptions& options,
                      const EncodeConversation& encode) {
  EncodedRow out;
  try {
    out.tokens = tokens_of_row(row.parse(), row, file, options, encode, out);
    check_encoded(out.tokens, options.vocab_size);
    out.hash = Hasher()
                   .update(std::as_bytes(std::span(out.tokens.ids)))
                   .update(std::as_bytes(std::span(out.tokens.supervised)))
                   .digest();
  } catch (const RowError& e) {
    out.problem = e;
  } catch (const Error& e) {
    // Mistakes of the machine or of the set-up are not the row's.
    if (e.kind() != ErrorKind::data) throw;
    out.problem = RowError(RowProblem::refused, e.what(), e.where(), e.fix());
  }
  return out;
}

std::vector<Piece> pieces_of(const MarkedTokens& tokens, const RowOptions& options, DatasetCounts& counts) {
  const std::vector<uint8_t>& supervised = tokens.supervised;
  const size_t length = tokens.ids.size();
  const auto limit = static_cast<size_t>(options.max_length);
  std::vector<Piece> out;
  const auto add = [&](size_t begin, size_t end) {
    const auto first = supervised.begin() + static_cast<ptrdiff_t>(begin) + 1;
    const auto last = supervised.begin() + static_cast<ptrdiff_t>(end);
    const int64_t targets = std::count_if(first, last, [](uint8_t s) { return s != 0; });
    if (targets == 0 && !options.keep_all_masked) return false;
    out.push_back({begin, end, targets});
    ++counts.conversations;
    counts.tokens += static_cast<int64_t>(end - begin);
    counts.targets += targets;
    return true;
  };
  if (length == 0) {
    ++counts.empty;
    return out;
  }
  const bool any = std::any_of(supervised.begin() + 1, supervised.end(), [](uint8_t s) { return s != 0; });
  if (!any && !options.keep_all_masked) {
    ++counts.all_masked;
    return out;
  }
  if (length <= limit) {
    add(0, length);
    return out;
  }
  if (options.overflow == Overflow::drop) {
    ++counts.dropped;
    counts.tokens_cut += static_cast<int64_t>(length);
    return out;
  }
  if (options.overflow == Overflow::truncate) {
    if (add(0, limit)) {
      ++counts.truncated;
      counts.tokens_cut += static_cast<int64_t>(length - limit);
    } else {
      ++counts.masked_by_overflow;
      counts.tokens_cut += static_cast<int64_t>(length);
    }
    return out;
  }
  for (size_t begin = 0; begin < length; begin += limit) {
    const size_t end = std::min(length, begin + limit);
    if (add(begin, end)) continue;
    ++counts.split_pieces_masked;
    counts.tokens_cut += static_cast<int64_t>(end - begin);
  }
  ++(out.empty() ? counts.masked_by_overflow : counts.split);
  return out;
}

}  // namespace deltatune
