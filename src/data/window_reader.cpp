// Cutting the rows of files into windows.
#include "data/window_reader.h"

#include <algorithm>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "data/row_source.h"

namespace deltatune {
namespace {

constexpr int shown_problems = 5;                  // skipped rows that are logged one by one
constexpr int64_t most_tokens = int64_t{1} << 26;  // of a window
// Small, as a block keeps the thread pool from whoever else wants it.
constexpr size_t block_rows = 256;

class WindowStorage final : public TokenStorage {
 public:
  std::vector<int32_t> ids;
  std::vector<uint64_t> supervised;
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> source_file;
  std::vector<int64_t> source_line;

  void check_ids(int64_t, int64_t) const override {}
  void append(const MarkedTokens& tokens, const Piece& piece, int32_t file, int64_t line) {
    auto k = ids.size();
    ids.insert(ids.end(), tokens.ids.begin() + static_cast<std::ptrdiff_t>(piece.begin),
               tokens.ids.begin() + static_cast<std::ptrdiff_t>(piece.end));
    supervised.resize((ids.size() + 63) / 64, 0);
    ++k;  // the first token is no target
    for (size_t t = piece.begin + 1; t < piece.end; ++t, ++k) {
      if (tokens.supervised[t] != 0) supervised[k / 64] |= uint64_t{1} << (k % 64);
    }
    offsets.push_back(static_cast<int64_t>(ids.size()));
    source_file.push_back(file);
    source_line.push_back(line);
  }
  int64_t conversations() const { return static_cast<int64_t>(offsets.size()) - 1; }
  void set_arrays() {
    ids.shrink_to_fit();
    arrays = {ids, supervised, offsets, source_file, source_line, {}};
  }
};

// Of the draws of a window: different for every epoch and place.
int64_t draw_of(int64_t epoch, int64_t file, int64_t file_row) {
  const Philox4 mixed =
      philox(static_cast<uint64_t>(epoch), static_cast<uint64_t>(file), static_cast<uint64_t>(file_row));
  return static_cast<int64_t>((static_cast<uint64_t>(mixed.x[0]) << 32 | mixed.x[1]) >> 18);
}

}  // namespace

struct WindowReader::State {
  const StreamingOptions& options;
  const EncodeConversation& encode;
  std::function<bool(StreamWindow)> take;
  const std::atomic<bool>& cancelled;
  std::vector<std::string> names;

  int64_t epoch = 0;
  StreamWindow window;  // under way
  std::shared_ptr<WindowStorage> storage;
  DatasetCounts counts;  // of the epoch
  int64_t windows = 0;   // of the epoch
  int logged = 0;

  // The next row, `file_row` of `file`, opens a window.
  void open_window(int64_t file, int64_t file_row) {
    window = {};
    window.file = file;
    window.file_row = file_row;
    storage = std::make_shared<WindowStorage>();
  }
  bool is_full() const {
    return storage->conversations() >= options.shuffle_buffer_size ||
           static_cast<int64_t>(storage->ids.size()) >= most_tokens;
  }
  bool close_window();
  bool take_rows(std::span<const RawRow> rows, int64_t file, int64_t first_row);
  void take_row(const EncodedRow& row, const RawRow& raw, int64_t file);
  void skip(const RowError& problem, const RawRow& raw, const std::string& file);
  bool read_file(int64_t file, int64_t from_row);
};

bool WindowReader::State::close_window() {
  storage->set_arrays();
  Hasher hasher;
  hasher.update(std::as_bytes(std::span(storage->offsets))).update(std::as_bytes(std::span(storage->ids)));
  hasher.update(std::as_bytes(std::span(storage->supervised)));
  window.hash = hasher.hex();
  std::vector<int32_t> lengths;
  for (int64_t i = 0; i < storage->conversations(); ++i) {
    const auto k = static_cast<size_t>(i);
    lengths.push_back(static_cast<int32_t>(storage->offsets[k + 1] - storage->offsets[k]));
  }
  window.rows = make_epoch_rows(lengths, options.stream, draw_of(epoch, window.file, window.file_row));
  DatasetCounts own;
  own.conversations = storage->conversations();
  own.tokens = static_cast<int64_t>(storage->ids.size());
  window.set = TokenizedSet(storage, names, own, window.hash);
  storage = nullptr;
  ++windows;
  return take(std::move(window));
}

void WindowReader::State::skip(const RowError& problem, const RawRow& raw, const std::string& file) {
  const Error error = problem.within(place_of(file, raw));
  if (options.rows.on_bad_row == OnBadRow::error) {
    throw Error(error.kind(), error.what(), error.where(), error.fix() + "; or on_bad_row: skip");
  }
  ++counts.skipped[static_cast<size_t>(problem.problem())];
  if (options.on_skip) options.on_skip(file, raw.number, problem);
  if (logged < shown_problems) log::warn("skipped {}: {}", error.where(), error.what());
  if (logged == shown_problems) log::warn("further skipped rows are only counted");
  ++logged;
}

void WindowReader::State::take_row(const EncodedRow& row, const RawRow& raw, int64_t file) {
  ++counts.rows;
  if (row.problem) {
    skip(*row.problem, raw, names[static_cast<size_t>(file)]);
    return;
  }
  for (const Piece& piece : pieces_of(row.tokens, options.rows, counts))
    storage->append(row.tokens, piece, static_cast<int32_t>(file), raw.number);
}

// Rows of one file, the first of which is its row `first_row`.
bool WindowReader::State::take_rows(std::span<const RawRow> rows, int64_t file, int64_t first_row) {
  std::vector<EncodedRow> encoded(rows.size());
  const std::string& name = names[static_cast<size_t>(file)];
  parallel_for(static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const auto k = static_cast<size_t>(i);
      encoded[k] = encode_row(rows[k], name, options.rows, encode);
    }
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!storage) open_window(file, first_row + static_cast<int64_t>(i));
    take_row(encoded[i], rows[i], file);
    if (is_full() && !close_window()) return false;
  }
  return true;
}

bool WindowReader::State::read_file(int64_t file, int64_t from_row) {
  int64_t row = 0;
  bool go_on = true;
  BlockSize block;
  block.rows = block_rows;
  const auto visit = [&](const std::vector<RawRow>& rows) {
    const auto count = static_cast<int64_t>(rows.size());
    const int64_t skipped = std::clamp<int64_t>(from_row - row, 0, count);
    if (cancelled) go_on = false;
    if (go_on && skipped < count) {
      go_on = take_rows(std::span(rows).subspan(static_cast<size_t>(skipped)), file, row + skipped);
    }
    row += count;
    return go_on;
  };
  visit_file(options.files[static_cast<size_t>(file)], visit, block);
  return go_on;
}

WindowReader::WindowReader(const StreamingOptions& options, const EncodeConversation& encode,
                           std::function<bool(StreamWindow)> take, const std::atomic<bool>& cancelled)
    : state_(new State{options, encode, std::move(take), cancelled, {}, 0, {}, nullptr, {}, 0, 0}) {
  for (const fs::path& path : options.files) state_->names.push_back(path.string());
}

WindowReader::~WindowReader() = default;

bool WindowReader::read_epoch(int64_t epoch, int64_t file, int64_t file_row) {
  State& state = *state_;
  const bool whole = file == 0 && file_row == 0;
  state.epoch = epoch;
  state.counts = {};
  state.windows = 0;
  state.storage = nullptr;
  const auto files = static_cast<int64_t>(state.names.size());
  for (int64_t f = file; f < files; ++f) {
    if (!state.read_file(f, f == file ? file_row : 0)) return false;
  }
  if (state.storage && state.storage->conversations() > 0 && !state.close_window()) return false;
  state.storage = nullptr;
  const DatasetCounts& counts = state.counts;
  const std::string what = format(
      "{}: {} malformed, {} empty, {} without a supervised token, "
      "{} too long",
      counted(counts.rows, "row"), counts.skipped_rows(), counts.empty, counts.all_masked,
      counts.dropped + counts.masked_by_overflow);
  if (whole && state.windows == 0) {
    throw Error(ErrorKind::data, "no conversation is left to train on", what,
                "look at rows with `deltatune data show`; raise max_length if "
                "they are too long");
  }
  if (whole) {
    log::info("streaming: epoch {} had {}, {}, in {}, from {}", epoch,
              counted(counts.conversations, "conversation"), counted(counts.tokens, "token"),
              counted(state.windows, "window"), what);
  }
  StreamWindow end;
  end.end_of_epoch = true;
  return state.take(std::move(end));
}

}  // namespace deltatune
