// Reads rows in blocks: parsing and tokenising in parallel, appending in order by one thread.
#include "data/dataset.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "data/files.h"
#include "data/progress.h"
#include "data/row_source.h"
#include "data/token_cache.h"

namespace deltatune {
namespace {

constexpr int shown_problems = 5;  // skipped rows that are logged one by one

struct HashOfHash {
  size_t operator()(const Hash128& hash) const { return static_cast<size_t>(hash[1]); }
};

// The arrays of a set that is being made; ids are here only where no cache file takes them.
class MemoryStorage final : public TokenStorage {
 public:
  std::vector<int32_t> ids;
  std::vector<uint64_t> supervised;
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> source_file;
  std::vector<int64_t> source_line;
  std::vector<int32_t> raw_lengths;

  void check_ids(int64_t, int64_t) const override {}
  void set_arrays() { arrays = {ids, supervised, offsets, source_file, source_line, raw_lengths}; }
};

}  // namespace

struct TokenizedSetBuilder::State {
  DatasetOptions options;
  EncodeConversation encode;
  std::shared_ptr<MemoryStorage> storage = std::make_shared<MemoryStorage>();
  std::vector<std::string> files;
  DatasetCounts counts;
  std::vector<SkippedRow> skipped;
  std::unordered_set<Hash128, HashOfHash> hashes;
  Hasher ids_hash;
  int logged = 0;
  SchemaNotices notices;
  RowProgress progress{"tokenising"};
  const DatasetCache* cache = nullptr;
  std::unique_ptr<TokenCacheWriter> writer;

  void take_block(const std::vector<RawRow>& rows, const std::string& file);
  void take_row(const EncodedRow& row, int64_t line);
  void skip(const RowError& problem, const RawRow& row, const std::string& file);
  void append(const MarkedTokens& tokens, const Piece& piece, int64_t line);
  void append_ids(std::span<const int32_t> ids);
  void leave_cache(const Error& reason, size_t tokens);
  std::shared_ptr<const TokenStorage> finish_cache(const std::string& fingerprint);
  std::string fingerprint() const;
  VisitRows visitor(const std::string& file) {
    files.push_back(file);
    return [this, file](const std::vector<RawRow>& rows) {
      take_block(rows, file);
      return true;
    };
  }
};

void TokenizedSetBuilder::State::take_block(const std::vector<RawRow>& rows, const std::string& file) {
  std::vector<EncodedRow> encoded(rows.size());
  parallel_for(static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const auto k = static_cast<size_t>(i);
      encoded[k] = encode_row(rows[k], file, options, encode);
    }
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    ++counts.rows;
    if (encoded[i].problem) {
      skip(*encoded[i].problem, rows[i], file);
    } else {
      if (encoded[i].note) notices.see(file, *encoded[i].note);
      take_row(encoded[i], rows[i].number);
    }
  }
  progress.show(counts.rows, counts.tokens, rows);
}

void TokenizedSetBuilder::State::skip(const RowError& problem, const RawRow& row, const std::string& file) {
  const Error error = problem.within(place_of(file, row));
  if (options.on_bad_row == OnBadRow::error) {
    throw Error(error.kind(), error.what(), error.where(), error.fix() + "; or on_bad_row: skip");
  }
  ++counts.skipped[static_cast<size_t>(problem.problem())];
  skipped.push_back({static_cast<int32_t>(files.size()) - 1, row.number, problem.problem(), problem.what(),
                     problem.where(), problem.fix()});
  if (logged < shown_problems) log::warn("skipped {}: {}", error.where(), error.what());
  if (logged == shown_problems) log::warn("further skipped rows are only counted");
  ++logged;
}

void TokenizedSetBuilder::State::take_row(const EncodedRow& row, int64_t line) {
  counts.empty_assistant_turns += row.empty_assistant_turns;
  for (size_t r = 0; r < row.messages.size(); ++r) counts.messages[r] += row.messages[r];
  if (!row.tokens.ids.empty()) {
    storage->raw_lengths.push_back(static_cast<int32_t>(row.tokens.ids.size()));
    if (!hashes.insert(row.hash).second) ++counts.duplicates;
  }
  for (const Piece& piece : pieces_of(row.tokens, options, counts)) append(row.tokens, piece, line);
}

void TokenizedSetBuilder::State::append(const MarkedTokens& tokens, const Piece& piece, int64_t line) {
  MemoryStorage& to = *storage;
  auto k = static_cast<size_t>(to.offsets.back());
  append_ids(std::span(tokens.ids).subspan(piece.begin, piece.end - piece.begin));
  const size_t end = k + piece.end - piece.begin;
  to.supervised.resize((end + 63) / 64, 0);
  ++k;  // the first token is no target
  for (size_t t = piece.begin + 1; t < piece.end; ++t, ++k) {
    if (tokens.supervised[t] != 0) to.supervised[k / 64] |= uint64_t{1} << (k % 64);
  }
  to.offsets.push_back(static_cast<int64_t>(end));
  to.source_file.push_back(static_cast<int32_t>(files.size()) - 1);
  to.source_line.push_back(line);
}

void TokenizedSetBuilder::State::append_ids(std::span<const int32_t> ids) {
  ids_hash.update(std::as_bytes(ids));
  if (writer) {
    try {
      writer->append(ids);
      return;
    } catch (const Error& error) {
      leave_cache(error, static_cast<size_t>(storage->offsets.back()));
    }
  }
  storage->ids.insert(storage->ids.end(), ids.begin(), ids.end());
}

// Takes the ids of what was kept so far, `tokens` of them, into memory.
void TokenizedSetBuilder::State::leave_cache(const Error& reason, size_t tokens) {
  log::warn("no token cache: {}; the tokens are kept in memory", reason.what());
  storage->ids = writer->appended();
  storage->ids.resize(tokens);
  writer.reset();
}

// Same bytes as a set that came without a cache.
std::string TokenizedSetBuilder::State::fingerprint() const {
  Hasher hasher;
  hasher.update(std::as_bytes(std::span(storage->offsets))).update(ids_hash.hex());
  hasher.update(std::as_bytes(std::span(storage->supervised)));
  return hasher.hex();
}

// The arrays of the finished file; nullptr when the set stays in memory. It is mapped before others can see
// it: whatever they do to the name, the mapping stays.
std::shared_ptr<const TokenStorage> TokenizedSetBuilder::State::finish_cache(const std::string& fingerprint) {
  const auto tokens = static_cast<size_t>(storage->offsets.back());
  try {
    if (!cache->inputs_unchanged()) {
      throw Error(ErrorKind::data, "a file of the dataset was written to while it was read");
    }
    const TokenCacheLabel label{cache->key(), fingerprint, options.vocab_size,
                                dump_meta({counts, skipped, notices.lines()})};
    storage->set_arrays();
    writer->finish(storage->arrays, label);
    std::shared_ptr<const TokenStorage> mapped =
        open_token_cache(writer->temporary(), label.key, options.vocab_size, options.max_length,
                         static_cast<int64_t>(files.size()), cache->path().string())
            .storage;
    writer->publish();
    log::info("tokens kept in {}", cache->path().string());
    cache->trim();
    return mapped;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal) throw;
    leave_cache(error, tokens);
    return nullptr;
  }
}

TokenizedSetBuilder::TokenizedSetBuilder(DatasetOptions options, EncodeConversation encode) {
  check_lengths(options);
  state_ = std::make_unique<State>();
  state_->options = std::move(options);
  state_->encode = std::move(encode);
}

TokenizedSetBuilder::~TokenizedSetBuilder() = default;

void TokenizedSetBuilder::keep_in(const DatasetCache& cache) {
  DELTATUNE_ASSERT(state_->files.empty());
  try {
    state_->writer = std::make_unique<TokenCacheWriter>(cache.path());
    state_->cache = &cache;
  } catch (const Error& error) {
    log::warn("no token cache: {}; the tokens are kept in memory", error.what());
  }
}

void TokenizedSetBuilder::expect_bytes(int64_t bytes) {
  state_->progress.expect_bytes(bytes);
}

void TokenizedSetBuilder::add_file(const fs::path& path) {
  visit_file(path, state_->visitor(path.string()));
  state_->progress.file_done(path);
}

void TokenizedSetBuilder::add_lines(std::string_view text, const std::string& name) {
  visit_lines(text, name, state_->visitor(name));
}

void TokenizedSetBuilder::add_rows(const json::Value& rows, const std::string& name) {
  visit_values(rows, name, state_->visitor(name));
}

TokenizedSet TokenizedSetBuilder::finish() {
  const std::unique_ptr<State> state = std::exchange(state_, nullptr);
  if (state->counts.conversations == 0) {
    throw Error(ErrorKind::data, "no conversation is left to train on", describe_rows(state->counts),
                "look at rows with `deltatune data show`; raise max_length if they are too long");
  }
  log_left_out(state->counts, state->options.max_length);
  std::string fingerprint = state->fingerprint();
  std::shared_ptr<const TokenStorage> storage;
  if (state->writer) storage = state->finish_cache(fingerprint);
  if (!storage) {
    state->storage->set_arrays();
    storage = state->storage;
  }
  return TokenizedSet(std::move(storage), std::move(state->files), state->counts, std::move(fingerprint),
                      std::move(state->skipped));
}

TokenizedSet load_dataset(const std::vector<std::string>& entries, const DatasetOptions& options,
                          const EncodeConversation& encode) {
  const std::vector<fs::path> files = dataset_files(entries, options.split);
  const int64_t bytes = total_bytes(files);
  TokenizedSetBuilder builder(options, encode);
  std::optional<DatasetCache> cache;
  if (!options.cache.folder.empty() && bytes >= options.cache.least_bytes) {
    cache.emplace(options.cache, files, options);
    if (std::optional<TokenizedSet> set = cache->read()) return *std::move(set);
    builder.keep_in(*cache);
  }
  builder.expect_bytes(bytes);
  for (const fs::path& path : files) builder.add_file(path);
  return builder.finish();
}

}  // namespace deltatune
