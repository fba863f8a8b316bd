// Reads rows in blocks: parsing and tokenising in parallel, appending in order by one thread.
#include "data/dataset.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <unordered_set>

#include "base/error.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "data/files.h"
#include "data/row_source.h"
#include "data/tokenized_row.h"

namespace deltatune {
namespace {

constexpr int shown_problems = 5;  // skipped rows that are logged one by one

// What a worker makes of one row.
struct EncodedRow {
  MarkedTokens tokens;
  std::string hash;
  int64_t empty_assistant_turns = 0;
  std::optional<SchemaNote> note;  // chat rows
  std::optional<RowError> problem;
};

template <class T>
std::string_view bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

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

}  // namespace

int64_t DatasetCounts::skipped_rows() const {
  int64_t sum = 0;
  for (const int64_t count : skipped) sum += count;
  return sum;
}

std::span<const int32_t> TokenizedSet::ids(int64_t i) const {
  return {ids_.data() + offsets_[at(i)], static_cast<size_t>(length(i))};
}

bool TokenizedSet::supervised(int64_t i, int64_t t) const {
  const auto k = static_cast<uint64_t>(offsets_[at(i)] + t);
  return (supervised_[k / 64] >> (k % 64) & 1) != 0;
}

int64_t TokenizedSet::targets(int64_t i) const {
  int64_t sum = 0;
  for (int64_t t = 1; t < length(i); ++t) sum += supervised(i, t) ? 1 : 0;
  return sum;
}

struct TokenizedSetBuilder::State {
  DatasetOptions options;
  EncodeConversation encode;
  TokenizedSet set;
  std::unordered_set<std::string> hashes;
  int logged = 0;
  SchemaNotices notices;

  EncodedRow encode_row(const RawRow& row, const std::string& file) const;
  void take_block(const std::vector<RawRow>& rows, const std::string& file);
  void take_row(EncodedRow& row, int64_t line);
  void skip(const RowError& problem, const std::string& place);
  // Appends tokens [begin, end) as one conversation if it has a target (or masked ones are kept).
  bool append(const MarkedTokens& tokens, size_t begin, size_t end, int64_t line);
  VisitRows visitor(const std::string& file) {
    set.files_.push_back(file);
    return [this, file](const std::vector<RawRow>& rows) {
      take_block(rows, file);
      return true;
    };
  }
};

EncodedRow TokenizedSetBuilder::State::encode_row(const RawRow& row, const std::string& file) const {
  EncodedRow out;
  try {
    const json::Value value = row.parse();
    if (is_tokenized_row(value)) {
      out.tokens = tokens_of(value, options.vocab_size);
    } else {
      Conversation conversation = read_conversation(value, options.schema, &out.note.emplace());
      if (!encode) {
        throw RowError(RowProblem::unknown_schema, "a chat row where only tokenised rows are read", "",
                       "give rows with input_ids and labels");
      }
      conversation.file = file;
      conversation.line = row.number;
      out.empty_assistant_turns = conversation.empty_assistant_turns;
      out.tokens = encode(conversation);
    }
    check_encoded(out.tokens, options.vocab_size);
    Hasher hasher;
    hasher.update(bytes_of(out.tokens.ids)).update(bytes_of(out.tokens.supervised));
    out.hash = hasher.hex();
  } catch (const RowError& e) {
    out.problem = e;
  } catch (const Error& e) {
    // Mistakes of the machine or of the set-up are not the row's.
    if (e.kind() != ErrorKind::data) throw;
    out.problem = RowError(RowProblem::refused, e.what(), e.where(), e.fix());
  }
  return out;
}

void TokenizedSetBuilder::State::take_block(const std::vector<RawRow>& rows, const std::string& file) {
  std::vector<EncodedRow> encoded(rows.size());
  parallel_for(static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      encoded[static_cast<size_t>(i)] = encode_row(rows[static_cast<size_t>(i)], file);
    }
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    ++set.counts_.rows;
    if (encoded[i].problem) {
      skip(*encoded[i].problem, place_of(file, rows[i]));
    } else {
      if (encoded[i].note) notices.see(file, *encoded[i].note);
      take_row(encoded[i], rows[i].number);
    }
  }
}

void TokenizedSetBuilder::State::skip(const RowError& problem, const std::string& place) {
  const Error error = problem.within(place);
  if (options.on_bad_row == OnBadRow::error) {
    throw Error(error.kind(), error.what(), error.where(), error.fix() + "; or on_bad_row: skip");
  }
  ++set.counts_.skipped[static_cast<size_t>(problem.problem())];
  if (logged < shown_problems) log::warn("skipped {}: {}", error.where(), error.what());
  if (logged == shown_problems) log::warn("further skipped rows are only counted");
  ++logged;
}

void TokenizedSetBuilder::State::take_row(EncodedRow& row, int64_t line) {
  DatasetCounts& counts = set.counts_;
  counts.empty_assistant_turns += row.empty_assistant_turns;
  const size_t length = row.tokens.ids.size();
  if (length == 0) {
    ++counts.empty;
    return;
  }
  set.raw_lengths_.push_back(static_cast<int32_t>(length));
  if (!hashes.insert(std::move(row.hash)).second) ++counts.duplicates;
  const std::vector<uint8_t>& supervised = row.tokens.supervised;
  const bool any = std::any_of(supervised.begin() + 1, supervised.end(), [](uint8_t s) { return s != 0; });
  if (!any && !options.keep_all_masked) {
    ++counts.all_masked;
    return;
  }
  const auto limit = static_cast<size_t>(options.max_length);
  if (length <= limit) {
    append(row.tokens, 0, length, line);
    return;
  }
  if (options.overflow == Overflow::drop) {
    ++counts.dropped;
    counts.tokens_cut += static_cast<int64_t>(length);
    return;
  }
  if (options.overflow == Overflow::truncate) {
    if (append(row.tokens, 0, limit, line)) {
      ++counts.truncated;
      counts.tokens_cut += static_cast<int64_t>(length - limit);
    } else {
      ++counts.masked_by_overflow;
      counts.tokens_cut += static_cast<int64_t>(length);
    }
    return;
  }
  int64_t kept = 0;
  int64_t masked = 0;
  for (size_t begin = 0; begin < length; begin += limit) {
    const size_t end = std::min(length, begin + limit);
    if (append(row.tokens, begin, end, line)) {
      ++kept;
    } else {
      ++masked;
      counts.tokens_cut += static_cast<int64_t>(end - begin);
    }
  }
  counts.split_pieces_masked += masked;
  ++(kept > 0 ? counts.split : counts.masked_by_overflow);
}

bool TokenizedSetBuilder::State::append(const MarkedTokens& tokens, size_t begin, size_t end, int64_t line) {
  const auto target = [&](size_t t) { return t > begin && tokens.supervised[t] != 0; };
  int64_t targets = 0;
  for (size_t t = begin; t < end; ++t) targets += target(t) ? 1 : 0;
  if (targets == 0 && !options.keep_all_masked) return false;
  size_t k = set.ids_.size();
  set.ids_.insert(set.ids_.end(), tokens.ids.begin() + static_cast<ptrdiff_t>(begin),
                  tokens.ids.begin() + static_cast<ptrdiff_t>(end));
  set.supervised_.resize((set.ids_.size() + 63) / 64, 0);
  for (size_t t = begin; t < end; ++t, ++k) {
    if (target(t)) set.supervised_[k / 64] |= uint64_t{1} << (k % 64);
  }
  set.offsets_.push_back(static_cast<int64_t>(set.ids_.size()));
  set.sources_.push_back({static_cast<int32_t>(set.files_.size()) - 1, line});
  ++set.counts_.conversations;
  set.counts_.tokens += static_cast<int64_t>(end - begin);
  set.counts_.targets += targets;
  return true;
}

TokenizedSetBuilder::TokenizedSetBuilder(DatasetOptions options, EncodeConversation encode) {
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
  state_ = std::make_unique<State>();
  state_->options = std::move(options);
  state_->encode = std::move(encode);
}

TokenizedSetBuilder::~TokenizedSetBuilder() = default;

void TokenizedSetBuilder::add_file(const fs::path& path) {
  visit_file(path, state_->visitor(path.string()));
}

void TokenizedSetBuilder::add_lines(std::string_view text, const std::string& name) {
  visit_lines(text, name, state_->visitor(name));
}

void TokenizedSetBuilder::add_rows(const json::Value& rows, const std::string& name) {
  visit_values(rows, name, state_->visitor(name));
}

TokenizedSet TokenizedSetBuilder::finish() {
  TokenizedSet set = std::move(state_->set);
  state_->set = {};
  state_->hashes.clear();
  const DatasetCounts& counts = set.counts_;
  const std::string left_out = format(
      "{} rows: {} malformed, {} empty, {} without a supervised token, {} too long", counts.rows,
      counts.skipped_rows(), counts.empty, counts.all_masked, counts.dropped + counts.masked_by_overflow);
  if (set.size() == 0) {
    throw Error(ErrorKind::data, "no conversation is left to train on", left_out,
                "look at rows with `deltatune data show`; raise max_length if they are too long");
  }
  if (counts.conversations != counts.rows)
    log::info("{} conversations from {}", counts.conversations, left_out);
  if (counts.truncated + counts.split > 0) {
    log::info("longer than max_length {}: {} truncated, {} split; {} tokens are left out",
              state_->options.max_length, counts.truncated, counts.split, counts.tokens_cut);
  }
  if (counts.empty_assistant_turns > 0) {
    log::warn("{} assistant turns are empty: they train the model to end its turn at once",
              counts.empty_assistant_turns);
  }
  set.set_fingerprint();
  return set;
}

void TokenizedSet::set_fingerprint() {
  Hasher hasher;
  hasher.update(bytes_of(offsets_)).update(bytes_of(ids_)).update(bytes_of(supervised_));
  fingerprint_ = hasher.hex();
}

TokenizedSet TokenizedSet::subset(std::span<const int32_t> conversations) const {
  TokenizedSet out;
  out.files_ = files_;
  for (const int32_t c : conversations) {
    const std::span<const int32_t> tokens = ids(c);
    for (size_t t = 0; t < tokens.size(); ++t) {
      const size_t bit = out.ids_.size();
      if (bit % 64 == 0) out.supervised_.push_back(0);
      if (supervised(c, static_cast<int64_t>(t))) out.supervised_.back() |= uint64_t{1} << (bit % 64);
      out.ids_.push_back(tokens[t]);
    }
    out.offsets_.push_back(static_cast<int64_t>(out.ids_.size()));
    out.sources_.push_back(sources_[at(c)]);
    out.raw_lengths_.push_back(static_cast<int32_t>(tokens.size()));
    out.counts_.targets += targets(c);
  }
  out.counts_.rows = static_cast<int64_t>(conversations.size());
  out.counts_.conversations = out.counts_.rows;
  out.counts_.tokens = static_cast<int64_t>(out.ids_.size());
  out.set_fingerprint();
  return out;
}

TokenizedSet load_dataset(const std::vector<std::string>& entries, const DatasetOptions& options,
                          const EncodeConversation& encode) {
  TokenizedSetBuilder builder(options, encode);
  for (const fs::path& path : dataset_files(entries, options.split)) builder.add_file(path);
  return builder.finish();
}

}  // namespace deltatune
