// data/streaming: every conversation once an epoch, the same rows on any number of ranks, resumed at any
// cursor, errors and ends of the reading thread.
#include "data/streaming.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "data/helpers.h"
#include "data/prefetch.h"
#include "data/skipped_rows.h"
#include "scratch_folder.h"

namespace deltatune {
namespace {

constexpr int64_t T = 64;

// Rows of made-up conversations, every token of which is another number, from `first` on.
std::string rows_of(const std::vector<int32_t>& lengths, int64_t first) {
  std::string out;
  int64_t id = first;
  for (const int32_t length : lengths) {
    json::Array ids;
    for (int32_t t = 0; t < length; ++t) ids.emplace_back(id++);
    out += json::dump(json::Object{{"input_ids", ids}, {"labels", ids}}) + "\n";
  }
  return out;
}

// Three files of 90, 1 and 59 conversations with a blank line here and there.
struct Files {
  Files() {
    const std::vector<int32_t> lengths = testing_data::lognormal_lengths(150, 17, 0.7, T, 6);
    const auto part = [&](size_t begin, size_t end) {
      int64_t first = 1;
      for (size_t i = 0; i < begin; ++i) first += lengths[i];
      for (size_t i = begin; i < end; ++i) {
        firsts.insert(static_cast<int32_t>(first));
        std::vector<int32_t> one = {lengths[i]};
        text += (i % 40 == 7 ? "\n" : "") + rows_of(one, first);
        first += lengths[i];
      }
      return std::exchange(text, "");
    };
    paths.emplace_back(folder.write("a.jsonl", part(0, 90)));
    paths.emplace_back(folder.write("b.jsonl", part(90, 91)));
    paths.emplace_back(folder.write("c.jsonl", part(91, 150)));
  }
  ScratchFolder folder;
  std::vector<fs::path> paths;
  std::set<int32_t> firsts;  // first token of each conversation

 private:
  std::string text;
};

StreamingOptions options_for(const std::vector<fs::path>& paths, int64_t world = 1, int64_t rank = 0,
                             int64_t accumulation = 1) {
  StreamingOptions options;
  options.files = paths;
  options.rows.max_length = options.rows.max_tokens = T;
  options.rows.vocab_size = INT32_MAX;
  options.stream.max_tokens = T;
  options.stream.world_size = world;
  options.stream.rank = rank;
  options.stream.gradient_accumulation_steps = accumulation;
  options.shuffle_buffer_size = 23;
  options.identity = "made up";
  return options;
}

std::vector<int32_t> firsts_of(const Batch& batch) {
  std::vector<int32_t> out;
  for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
    const int32_t first = batch.tokens[static_cast<size_t>(batch.cu_seqlens[s])];
    if (first != 0) out.push_back(first);
  }
  EXPECT_EQ(static_cast<int64_t>(out.size()), batch.documents);
  EXPECT_EQ(static_cast<int64_t>(batch.tokens.size()), T);
  return out;
}

// All ranks' micro-batches of one epoch from the cursor on, in the order in which they are dealt. The last
// one of an epoch is known when the next one is asked for.
std::vector<Batch> rest_of_epoch(const std::vector<fs::path>& paths, int64_t world, int64_t accumulation,
                                 const Cursor& cursor) {
  std::vector<std::vector<Batch>> ranks;
  for (int64_t rank = 0; rank < world; ++rank) {
    StreamingBatches stream(options_for(paths, world, rank, accumulation), {});
    if (!cursor.window.empty()) stream.seek(cursor);
    std::vector<Batch>& out = ranks.emplace_back();
    for (;;) {
      Batch batch = stream.next();
      if (stream.cursor().epoch > cursor.epoch) break;
      out.push_back(std::move(batch));
    }
    EXPECT_EQ((static_cast<int64_t>(out.size()) + cursor.micro_batch) % accumulation, 0) << "whole steps";
    EXPECT_EQ(out.size(), ranks[0].size()) << "equal steps on all ranks";
  }
  std::vector<Batch> dealt;
  for (size_t i = 0; i < ranks[0].size(); ++i) {
    for (const std::vector<Batch>& rank : ranks) dealt.push_back(rank.at(i));
  }
  return dealt;
}

std::vector<std::vector<int32_t>> real_rows(const std::vector<Batch>& batches) {
  std::vector<std::vector<int32_t>> out;
  bool filler = false;
  for (const Batch& batch : batches) {
    filler = filler || batch.documents == 0;
    EXPECT_EQ(batch.documents == 0, filler) << "a row behind one of filler";
    if (!filler) out.push_back(batch.tokens);
  }
  return out;
}

TEST(Streaming, ShowsEveryConversationOnceOnAnyNumberOfRanks) {
  const Files files;
  std::vector<std::vector<int32_t>> one_rank;
  for (int64_t world = 1; world <= 4; ++world) {
    for (const int64_t accumulation : {1, 3}) {
      const std::vector<Batch> epoch = rest_of_epoch(files.paths, world, accumulation, {});
      std::multiset<int32_t> seen;
      for (const Batch& batch : epoch) {
        for (const int32_t first : firsts_of(batch)) seen.insert(first);
      }
      EXPECT_EQ(seen.size(), files.firsts.size());
      EXPECT_EQ(std::set<int32_t>(seen.begin(), seen.end()), files.firsts);
      if (one_rank.empty()) one_rank = real_rows(epoch);
      EXPECT_EQ(real_rows(epoch), one_rank) << "world " << world;
    }
  }
}

TEST(Streaming, ResumesWithTheSameBitsAtEveryCursor) {
  const Files files;
  StreamingBatches whole(options_for(files.paths, 2, 1, 3), {});
  std::vector<Cursor> cursors;
  std::vector<std::vector<int32_t>> rows;
  while (whole.cursor().epoch < 2) {
    cursors.push_back(whole.cursor());
    rows.push_back(whole.next().tokens);
  }
  for (size_t i = 0; i < cursors.size(); i += 5) {
    const Cursor read = Cursor::from_json(json::parse(json::dump(cursors[i].to_json()), "state"));
    EXPECT_EQ(read, cursors[i]);
    StreamingBatches resumed(options_for(files.paths, 2, 1, 3), {});
    resumed.seek(read);
    EXPECT_EQ(resumed.cursor(), cursors[i]);
    for (size_t k = i; k < rows.size(); ++k) {
      ASSERT_EQ(resumed.next().tokens, rows[k]) << i << " " << k;
      if (k + 1 < rows.size()) {
        ASSERT_EQ(resumed.cursor(), cursors[k + 1]);
      }
    }
  }
}

TEST(Streaming, CursorOfTwoRanksOnOneTwoAndFour) {
  const Files files;
  for (const int64_t accumulation : {1, 2}) {
    const std::vector<std::vector<int32_t>> whole =
        real_rows(rest_of_epoch(files.paths, 2, accumulation, {}));
    StreamingBatches first(options_for(files.paths, 2, 0, accumulation), {});
    StreamingBatches second(options_for(files.paths, 2, 1, accumulation), {});
    std::vector<Batch> used;
    for (int micro_batch = 1;; ++micro_batch) {
      used.push_back(first.next());
      used.push_back(second.next());
      const Cursor cursor = first.cursor();
      ASSERT_EQ(cursor, second.cursor());
      if (cursor.epoch > 0) break;
      if (micro_batch % 7 != 0) continue;
      for (const int64_t world : {1, 2, 4}) {
        for (const int64_t changed : {accumulation, accumulation + 1}) {
          std::vector<Batch> all = used;
          for (Batch& batch : rest_of_epoch(files.paths, world, changed, cursor))
            all.push_back(std::move(batch));
          ASSERT_EQ(real_rows(all), whole) << "world " << world << ", row " << cursor.row;
        }
      }
    }
  }
}

TEST(Streaming, OrdersDifferByEpochAndSeedAndAreKeptWithoutShuffle) {
  const Files files;
  const auto epoch_of = [&](uint64_t seed, bool shuffle, int64_t epoch) {
    StreamingOptions options = options_for(files.paths);
    options.stream.seed = seed;
    options.stream.shuffle = shuffle;
    StreamingBatches stream(options, {});
    std::vector<std::vector<int32_t>> out;
    while (stream.cursor().epoch <= epoch) {
      std::vector<int32_t> firsts = firsts_of(stream.next());
      if (stream.cursor().epoch == epoch) out.push_back(std::move(firsts));
    }
    return out;
  };
  EXPECT_EQ(epoch_of(1, true, 1), epoch_of(1, true, 1));
  EXPECT_NE(epoch_of(1, true, 0), epoch_of(1, true, 1));
  EXPECT_NE(epoch_of(1, true, 0), epoch_of(2, true, 0));
  EXPECT_EQ(epoch_of(1, false, 0), epoch_of(2, false, 1));
}

TEST(Streaming, OneWindowOrManyShowTheSameConversations) {
  const Files files;
  for (const int64_t buffer : {1, 7, 89, 90, 91, 149, 150, 151, 100000}) {
    StreamingOptions options = options_for(files.paths);
    options.shuffle_buffer_size = buffer;
    StreamingBatches stream(options, {});
    std::multiset<int32_t> seen;
    for (;;) {
      const Batch batch = stream.next();
      if (stream.cursor().epoch == 1) break;
      for (const int32_t first : firsts_of(batch)) seen.insert(first);
    }
    EXPECT_EQ(seen.size(), files.firsts.size()) << buffer;
    EXPECT_EQ(std::set<int32_t>(seen.begin(), seen.end()), files.firsts) << buffer;
  }
}

TEST(Streaming, LongRowsStayInOneWindow) {
  ScratchFolder folder;
  const std::vector<fs::path> paths = {folder.write("a.jsonl", rows_of({200, 30, 150}, 1))};
  StreamingOptions options = options_for(paths);
  options.rows.overflow = Overflow::split;
  options.shuffle_buffer_size = 2;
  StreamingBatches stream(options, {});
  std::multiset<int32_t> tokens;
  for (;;) {
    const Batch batch = stream.next();
    if (stream.cursor().epoch == 1) break;
    for (const int32_t token : batch.tokens) {
      if (token != 0) tokens.insert(token);
    }
  }
  EXPECT_EQ(tokens.size(), 380u);
  EXPECT_EQ(std::set<int32_t>(tokens.begin(), tokens.end()).size(), 380u);
}

TEST(Streaming, BadRowsStopOrAreSkipped) {
  ScratchFolder folder;
  const std::vector<fs::path> paths = {
      folder.write("a.jsonl", rows_of({20, 30}, 1) + "{\"input_ids\": [1, }\n" + rows_of({10}, 51))};
  for (const int64_t depth : {0, 2}) {
    Prefetcher stream(std::make_unique<StreamingBatches>(options_for(paths), EncodeConversation{}), depth);
    try {
      stream.next();
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      EXPECT_NE(error.where().find("a.jsonl, line 3"), std::string::npos) << error.where();
      EXPECT_NE(error.fix().find("on_bad_row: skip"), std::string::npos) << error.fix();
    }
  }
  StreamingOptions skipping = options_for(paths);
  skipping.rows.on_bad_row = OnBadRow::skip;
  StreamingBatches stream(skipping, {});
  EXPECT_EQ(stream.next().real_tokens, 60);
  EXPECT_EQ(stream.next().real_tokens, 60) << "the second epoch";
  EXPECT_EQ(stream.cursor().epoch, 1);
}

TEST(Streaming, ASkippedRowIsListedOnceHoweverOftenItIsMet) {
  ScratchFolder folder;
  const std::vector<fs::path> paths = {
      folder.write("a.jsonl", rows_of({20, 30}, 1) + "{\"input_ids\": [1, }\n" + rows_of({10}, 51))};
  const fs::path listed = folder.path() / "skipped_rows.jsonl";
  folder.write("skipped_rows.jsonl", "of another run\n");
  const auto read_three_epochs = [&](bool go_on) {
    SkippedRowsFile file(listed, go_on);
    StreamingOptions options = options_for(paths);
    options.rows.on_bad_row = OnBadRow::skip;
    options.on_skip = [&](const std::string& name, int64_t line, const RowError& problem) {
      file.add(name, line, problem);
    };
    StreamingBatches stream(options, {});
    while (stream.cursor().epoch < 3) stream.next();
    EXPECT_EQ(file.count(), 1);
  };
  read_three_epochs(false);
  const std::string text = read_file(listed);
  ASSERT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  const json::Value row = json::parse(text, "listed");
  EXPECT_EQ(row.at("file").as_string(), paths[0].string());
  EXPECT_EQ(row.at("line").as_integer(), 3);
  EXPECT_FALSE(row.at("what").as_string().empty());
  folder.write("skipped_rows.jsonl", text + "{\"file\": \"cut by a k");
  read_three_epochs(true);
  EXPECT_EQ(read_file(listed), text);
}

TEST(Streaming, RefusesEpochsWithoutAConversation) {
  ScratchFolder folder;
  const std::vector<fs::path> paths = {
      folder.write("a.jsonl", "{\"input_ids\": [1, 2], \"labels\": [-100, -100]}\n")};
  StreamingBatches stream(options_for(paths), {});
  EXPECT_THROW(stream.next(), Error);
  StreamingBatches missing(options_for({folder.path() / "none.jsonl"}), {});
  EXPECT_THROW(missing.next(), Error);
}

TEST(Streaming, RefusesForeignCursorsAndChangedFiles) {
  Files files;
  StreamingBatches stream(options_for(files.paths), {});
  for (int i = 0; i < 30; ++i) stream.next();
  const Cursor cursor = stream.cursor();
  ASSERT_GT(cursor.file_row, 0);
  Cursor other = cursor;
  other.fingerprint = "other";
  EXPECT_THROW(stream.seek(other), Error);
  other = cursor;
  other.file = 3;
  EXPECT_THROW(stream.seek(other), Error);
  other = cursor;
  other.file_row = 1000;
  EXPECT_THROW(stream.seek(other), Error);
  other = cursor;
  other.micro_batch = 5;
  EXPECT_THROW(stream.seek(other), Error);
  other = cursor;
  other.row = int64_t{1} << 39;
  EXPECT_THROW(stream.seek(other), Error);
  StreamingBatches again(options_for(files.paths), {});
  again.seek(cursor);
  EXPECT_EQ(stream.cursor(), cursor);
  EXPECT_EQ(again.next().tokens, stream.next().tokens) << "a refused cursor leaves the stream where it was";
}

TEST(Streaming, RefusesAWindowWhoseTokensHaveChanged) {
  const Files files;
  StreamingBatches stream(options_for(files.paths), {});
  for (int i = 0; i < 30; ++i) stream.next();
  const Cursor cursor = stream.cursor();
  // The row that opens the window gets another first token of the same size.
  const fs::path path = files.paths[static_cast<size_t>(cursor.file)];
  std::string text = read_file(path);
  size_t at = 0;
  for (int64_t row = 0;; at = text.find('\n', at) + 1) {
    if (text[at] != '\n' && row++ == cursor.file_row) break;
  }
  for (int list = 0; list < 2; ++list) {  // input_ids, labels
    at = text.find('[', at) + 1;
    text[at] = text[at] == '1' ? '2' : '1';
  }
  write_file_atomic(path, text);
  StreamingBatches changed(options_for(files.paths), {});
  try {
    changed.seek(cursor);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_NE(std::string(error.what()).find("has changed"), std::string::npos) << error.what();
    EXPECT_NE(error.where().find(path.filename().string()), std::string::npos) << error.where();
  }
}

// However slow the step is: no more conversations are tokenised than three windows and a block of rows hold.
TEST(Streaming, HoldsNoMoreThanThreeWindows) {
  constexpr int count = 4000, window = 100, block = 256, length = 16;
  ScratchFolder folder;
  std::string text;
  for (int i = 0; i < count; ++i)
    text += testing_data::chat(std::string(6, 'q'), std::string(10, 'a')) + "\n";
  StreamingOptions options = options_for({folder.write("a.jsonl", text)});
  options.shuffle_buffer_size = window;
  std::atomic<int64_t> encoded = 0;
  StreamingBatches stream(options, [&encoded](const Conversation& conversation) {
    ++encoded;
    return testing_data::encode_letters(conversation);
  });
  for (int64_t used = 0; used + T / length <= count / 2;) {
    stream.next();
    used += T / length;
    if (used % window == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // time to run ahead
    ASSERT_LE(encoded - used, 3 * window + block) << used;
  }
  EXPECT_GE(encoded, count / 2);
}

TEST(Streaming, EndsInTheMiddleOfAnything) {
  const Files files;
  for (int taken = 0; taken < 12; ++taken) {
    Prefetcher ahead(std::make_unique<StreamingBatches>(options_for(files.paths), EncodeConversation{}), 3);
    for (int i = 0; i < taken; ++i) ahead.next();
  }
  for (int taken = 0; taken < 12; ++taken) {
    StreamingBatches stream(options_for(files.paths), {});
    for (int i = 0; i < taken; ++i) stream.next();
  }
}

}  // namespace
}  // namespace deltatune
