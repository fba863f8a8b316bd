// data/token_cache, data/dataset_cache: what is read back is what was written, and nothing else is.
#include "data/token_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/rng.h"
#include "data/dataset.h"
#include "data/helpers.h"
#include "scratch_folder.h"

namespace deltatune {
namespace {

using testing_data::chat;
using testing_data::encode_letters;

DatasetOptions options_in(const fs::path& folder) {
  DatasetOptions options;
  options.max_length = 40;
  options.max_tokens = 64;
  options.vocab_size = 256;
  options.on_bad_row = OnBadRow::skip;
  options.cache.folder = folder;
  options.cache.recipe = "letters";
  return options;
}

// Chats of several lengths, a bad row and an equal pair among them.
std::string rows(int count, uint64_t seed = 1) {
  Rng rng(seed, 3);
  std::string text =
      "{\"messages\": [], \"id\": 7}\n" + chat("same", "same") + "\n" + chat("same", "same") + "\n";
  for (int i = 0; i < count; ++i) {
    std::string question, answer;
    for (uint64_t k = rng.below(30) + 1; k > 0; --k) question += static_cast<char>('a' + rng.below(26));
    for (uint64_t k = rng.below(30) + 1; k > 0; --k) answer += static_cast<char>('a' + rng.below(26));
    text += chat(question, answer) + "\n";
  }
  return text;
}

void expect_equal(const TokenizedSet& a, const TokenizedSet& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(a.fingerprint(), b.fingerprint());
  for (int64_t i = 0; i < a.size(); ++i) {
    const auto left = a.ids(i);
    const auto right = b.ids(i);
    ASSERT_TRUE(std::equal(left.begin(), left.end(), right.begin(), right.end())) << i;
    for (int64_t t = 0; t < a.length(i); ++t) ASSERT_EQ(a.supervised(i, t), b.supervised(i, t)) << i;
    EXPECT_EQ(a.targets(i), b.targets(i));
    EXPECT_EQ(a.file(i), b.file(i));
    EXPECT_EQ(a.line(i), b.line(i));
  }
  EXPECT_TRUE(std::equal(a.raw_lengths().begin(), a.raw_lengths().end(), b.raw_lengths().begin(),
                         b.raw_lengths().end()));
  EXPECT_EQ(dump_meta({a.counts(), {a.skipped().begin(), a.skipped().end()}, {}}),
            dump_meta({b.counts(), {b.skipped().begin(), b.skipped().end()}, {}}));
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(folder)) out.push_back(entry.path());
  return out;
}

class Counted {
 public:
  EncodeConversation encoder() {
    return [this](const Conversation& conversation) {
      ++calls;
      return encode_letters(conversation);
    };
  }
  std::atomic<int> calls{0};
};

TEST(TokenCache, ASecondStartReadsWhatTheFirstMade) {
  const ScratchFolder scratch;
  const std::string file = scratch.write("a.jsonl", rows(300));
  DatasetOptions plain = options_in({});
  const TokenizedSet memory = load_dataset({file}, plain, encode_letters);
  Counted counted;
  const DatasetOptions options = options_in(scratch.path() / "cache");
  const TokenizedSet first = load_dataset({file}, options, counted.encoder());
  EXPECT_EQ(counted.calls, 302);
  const TokenizedSet second = load_dataset({file}, options, counted.encoder());
  EXPECT_EQ(counted.calls, 302);
  expect_equal(memory, first);
  expect_equal(memory, second);
  ASSERT_EQ(second.skipped().size(), 1u);
  EXPECT_EQ(second.skipped()[0].line, 1);
  EXPECT_EQ(second.counts().duplicates, 1);
  EXPECT_EQ(files_in(scratch.path() / "cache").size(), 1u);
}

TEST(TokenCache, EveryInputIsPartOfTheKey) {
  const ScratchFolder scratch;
  const std::string text = rows(20);
  const std::string file = scratch.write("a.jsonl", text);
  const fs::path folder = scratch.path() / "cache";
  const auto calls = [&](const std::vector<std::string>& files, const DatasetOptions& options) {
    Counted counted;
    load_dataset(files, options, counted.encoder());
    return counted.calls.load();
  };
  const DatasetOptions base = options_in(folder);
  EXPECT_GT(calls({file}, base), 0);
  EXPECT_EQ(calls({file}, base), 0);
  for (int change = 0; change < 7; ++change) {
    DatasetOptions other = base;
    if (change == 0) other.cache.recipe = "other letters";
    if (change == 1) other.max_length = 39;
    if (change == 2) other.overflow = Overflow::drop;
    if (change == 3) other.vocab_size = 257;
    if (change == 4) other.keep_all_masked = true;
    if (change == 5) other.schema.messages_field = "messages";
    if (change == 6) other.schema.schema = Schema::messages;
    EXPECT_GT(calls({file}, other), 0) << change;
  }
  const std::string copy = scratch.write("b.jsonl", text);
  EXPECT_EQ(calls({copy}, base), 0);  // equal bytes under another name
  EXPECT_GT(calls({file, copy}, base), 0);
  // One byte of the same file at the same size and time.
  struct stat info {};
  ASSERT_EQ(::stat(file.c_str(), &info), 0);
  std::string changed = text;
  changed[changed.rfind("content") + 11] ^= 1;
  scratch.write("a.jsonl", changed);
  const timespec times[2] = {info.st_atim, info.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  EXPECT_GT(calls({file}, base), 0);
}

// Any byte that changes, and any length, is noticed: when opened, or when the ids are read.
TEST(TokenCache, DamageIsNoticedAndMendedByTheNextStart) {
  const ScratchFolder scratch;
  const std::string file = scratch.write("a.jsonl", rows(40));
  const DatasetOptions options = options_in(scratch.path() / "cache");
  const TokenizedSet whole = load_dataset({file}, options, encode_letters);
  const fs::path path = files_in(scratch.path() / "cache").at(0);
  const std::string bytes = read_file(path);
  const std::string key = path.stem().string();
  const auto readable = [&](const std::string& text) {
    const fs::path damaged = scratch.write("damaged", text);
    try {
      const TokenCacheContent content = open_token_cache(damaged, key, 256, 40, 1);
      content.storage->check_ids(0, content.storage->arrays.offsets.back());
      parse_meta(content.meta, 1);
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data) << error.text();
      return false;
    }
  };
  ASSERT_TRUE(readable(bytes));
  Rng rng(5, 5);
  for (size_t i = 0; i < 464; ++i) {
    std::string text = bytes;
    const size_t at = i < 64 ? i : static_cast<size_t>(rng.below(bytes.size()));  // every byte of the header
    text[at] = static_cast<char>(text[at] ^ static_cast<char>(1 + rng.below(255)));
    EXPECT_FALSE(readable(text)) << at;
    EXPECT_FALSE(readable(bytes.substr(0, static_cast<size_t>(rng.below(bytes.size())))));
  }
  EXPECT_FALSE(readable(bytes + "x"));
  EXPECT_FALSE(readable(""));
  std::string version = bytes;
  version[8] = 9;
  EXPECT_FALSE(readable(version));
  // The right file of other data.
  EXPECT_THROW(open_token_cache(path, std::string(32, '0'), 256, 40, 1), Error);
  EXPECT_THROW(open_token_cache(path, key, 255, 40, 1), Error);

  Counted counted;
  std::string broken = bytes;
  broken[bytes.size() / 2] = static_cast<char>(broken[bytes.size() / 2] ^ 64);
  write_file_atomic(path, broken);  // another inode: `whole` is mapped from the old one
  expect_equal(whole, load_dataset({file}, options, counted.encoder()));
  EXPECT_GT(counted.calls, 0);
  EXPECT_EQ(read_file(path), bytes);
}

// Several blocks of ids: the last one is checked at once, one in the middle of a large file when it is read.
TEST(TokenCache, BlocksAreVerifiedWhenRead) {
  const ScratchFolder scratch;
  const fs::path path = scratch.path() / "big.tokens";
  constexpr size_t block = size_t{256} << 10;
  constexpr size_t count = 70 * block + 5;
  std::vector<int32_t> ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(i % 1000);
  std::vector<int64_t> offsets = {0};
  std::vector<int64_t> lines;
  for (size_t at = 0; at < count;) {
    at = std::min(count, at + 50000);
    offsets.push_back(static_cast<int64_t>(at));
    lines.push_back(1);
  }
  const std::vector<uint64_t> supervised((count + 63) / 64, 0);
  const std::vector<int32_t> sources(lines.size(), 0);
  const std::vector<int32_t> raw = {1};
  const TokenArrays arrays = {{}, supervised, offsets, sources, lines, raw};
  const TokenCacheLabel label = {std::string(32, 'a'), std::string(32, 'b'), 1000, "{}"};
  {
    TokenCacheWriter writer(path);
    for (size_t at = 0; at < count; at += 7777)
      writer.append(std::span(ids).subspan(at, std::min<size_t>(7777, count - at)));
    EXPECT_EQ(writer.appended(), ids);
    writer.finish(arrays, label);
    writer.publish();
  }
  const TokenCacheContent good = open_token_cache(path, label.key, 1000, 50000, 1);
  good.storage->check_ids(0, count);
  EXPECT_TRUE(std::equal(ids.begin(), ids.end(), good.storage->arrays.ids.begin()));
  EXPECT_EQ(good.fingerprint, label.fingerprint);

  std::string bytes = read_file(path);
  bytes[64 + 4 * (12 * block + 100)] = 77;  // no block of the sample
  write_file_atomic(path, bytes);
  const TokenCacheContent bad = open_token_cache(path, label.key, 1000, 50000, 1);
  bad.storage->check_ids(11 * block, 12 * block);
  EXPECT_THROW(bad.storage->check_ids(12 * block - 1, 12 * block + 1), Error);
  bad.storage->check_ids(13 * block, 14 * block);
}

// Offsets and ids with right checksums but wrong values: the writer of a hostile file can hash too.
TEST(TokenCache, NumbersAreCheckedBehindRightHashes) {
  const ScratchFolder scratch;
  struct Case {
    const char* what;
    std::vector<int32_t> ids;
    std::vector<int64_t> offsets;
    std::vector<int32_t> files;
    std::vector<int32_t> raw;
    uint64_t supervised;
  };
  const std::vector<Case> cases = {
      {"good", {1, 2, 3}, {0, 1, 3}, {0, 0}, {3}, 4},
      {"an id beyond the vocabulary", {1, 2, 10}, {0, 1, 3}, {0, 0}, {3}, 4},
      {"a negative id", {1, -2, 3}, {0, 1, 3}, {0, 0}, {3}, 4},
      {"offsets that fall", {1, 2, 3}, {0, 2, 1, 3}, {0, 0, 0}, {3}, 0},
      {"an empty conversation", {1, 2, 3}, {0, 0, 3}, {0, 0}, {3}, 4},
      {"a conversation above max_length", {1, 2, 3, 4, 5, 6}, {0, 1, 6}, {0, 0}, {3}, 4},
      {"offsets beyond the ids", {1, 2, 3}, {0, 1, 4}, {0, 0}, {3}, 4},
      {"a negative offset", {1, 2, 3}, {0, -1, 3}, {0, 0}, {3}, 4},
      {"offsets that do not begin at 0", {1, 2, 3}, {1, 2, 3}, {0, 0}, {3}, 0},
      {"an unknown file", {1, 2, 3}, {0, 1, 3}, {0, 1}, {3}, 4},
      {"a negative length", {1, 2, 3}, {0, 1, 3}, {0, 0}, {-3}, 4},
      {"a first token that is a target", {1, 2, 3}, {0, 1, 3}, {0, 0}, {3}, 2},
  };
  for (const Case& c : cases) {
    const fs::path path = scratch.path() / "case.tokens";
    const std::vector<int64_t> lines(c.files.size(), 1);
    const std::vector<uint64_t> supervised = {c.supervised};
    const TokenCacheLabel label = {std::string(32, 'a'), std::string(32, 'b'), 10, "{}"};
    TokenCacheWriter writer(path);
    writer.append(c.ids);
    writer.finish({{}, supervised, c.offsets, c.files, lines, c.raw}, label);
    writer.publish();
    const auto open = [&] { open_token_cache(path, label.key, 10, 4, 1); };
    if (std::string_view(c.what) == "good") {
      EXPECT_NO_THROW(open());
    } else {
      EXPECT_THROW(open(), Error) << c.what;
    }
  }
}

// The next writer removes what a killed one left at once, and leaves alone what is being written.
TEST(TokenCache, WhatAKilledWriterLeftGoesWithTheNext) {
  const ScratchFolder scratch;
  const fs::path folder = scratch.path() / "cache";
  const pid_t child = ::fork();
  if (child == 0) {
    TokenCacheWriter writer(folder / "killed.tokens");
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_EQ(files_in(folder).size(), 1u);
  {
    const TokenCacheWriter first(folder / "first.tokens");
    EXPECT_EQ(files_in(folder), std::vector<fs::path>{first.temporary()});
    const TokenCacheWriter second(folder / "second.tokens");
    EXPECT_TRUE(fs::exists(first.temporary()));
    // Another machine's: its lock may not be seen here.
    const std::string foreign = scratch.write("cache/x.tokens.elsewhere!-1-1.tmp", "");
    const TokenCacheWriter third(folder / "third.tokens");
    EXPECT_TRUE(fs::exists(foreign));
    fs::last_write_time(foreign, fs::file_time_type::clock::now() - std::chrono::hours(25));
    const TokenCacheWriter fourth(folder / "fourth.tokens");
    EXPECT_FALSE(fs::exists(foreign));
  }
  EXPECT_TRUE(files_in(folder).empty());
}

TEST(TokenCache, WhatWasNotUsedForLongestGoesFirstButNothingThatIsOpen) {
  const ScratchFolder scratch;
  const fs::path folder = scratch.path() / "cache";
  DatasetOptions options = options_in(folder);
  const auto made = [&](int i) {
    const std::string file = scratch.write(format("{}.jsonl", i), rows(100, static_cast<uint64_t>(i)));
    const TokenizedSet set = load_dataset({file}, options, encode_letters);
    std::vector<fs::path> files = files_in(folder);
    std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) {
      return fs::last_write_time(a) < fs::last_write_time(b);
    });
    return std::pair(set, files.back());
  };
  const auto old = [](const fs::path& path, int hours) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  const auto [open, open_path] = made(1);
  const fs::path oldest = made(2).second;
  old(open_path, 9);
  old(oldest, 8);
  const fs::path used = made(3).second;
  old(used, 7);
  const fs::path idle = made(4).second;
  old(idle, 6);
  made(3);  // read again: it is the one used last
  ASSERT_EQ(files_in(folder).size(), 4u);
  options.cache.most_bytes = static_cast<int64_t>(fs::file_size(open_path) * 7 / 2);  // three files
  const fs::path last = made(5).second;
  EXPECT_TRUE(fs::exists(open_path)) << "in use, though oldest";
  EXPECT_FALSE(fs::exists(oldest));
  EXPECT_FALSE(fs::exists(idle));
  EXPECT_TRUE(fs::exists(used));
  EXPECT_TRUE(fs::exists(last));
  options.cache.most_bytes = 1;  // what was just written stays
  const fs::path alone = made(6).second;
  std::vector<fs::path> left = files_in(folder), wanted = {open_path, alone};
  std::sort(left.begin(), left.end());
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(left, wanted);
  EXPECT_GT(open.size(), 0);
}

TEST(TokenCache, AFolderThatCannotBeWrittenLeavesTheSetInMemory) {
  const ScratchFolder scratch;
  const std::string file = scratch.write("a.jsonl", rows(30));
  const TokenizedSet memory = load_dataset({file}, options_in({}), encode_letters);
  scratch.write("no_folder", "a file where the folder would be");
  expect_equal(memory, load_dataset({file}, options_in(scratch.path() / "no_folder"), encode_letters));
}

// The limit on a file's size stands for a full disk: writes fail in the same place, with EFBIG.
TEST(TokenCache, ADiskThatFillsUpLeavesTheSetInMemory) {
  const ScratchFolder scratch;
  std::string text;
  for (int i = 0; i < 60; ++i)
    text += chat("question", std::string(12000, static_cast<char>('a' + i % 26))) + "\n";
  const std::string file = scratch.write("a.jsonl", text);
  DatasetOptions options = options_in({});
  options.max_length = options.max_tokens = 20000;
  const TokenizedSet memory = load_dataset({file}, options, encode_letters);
  options.cache.folder = scratch.path() / "cache";
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t size : {rlim_t{1000}, rlim_t{3} << 19, rlim_t{2885000}}) {  // of 2.9 MB
    const rlimit small = {size, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const TokenizedSet set = load_dataset({file}, options, encode_letters);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    expect_equal(memory, set);
    EXPECT_TRUE(files_in(options.cache.folder).empty()) << size;
  }
  std::signal(SIGXFSZ, old_handler);
}

TEST(TokenCache, AFileWrittenToMeanwhileIsNotKept) {
  const ScratchFolder scratch;
  const fs::path file = scratch.write("a.jsonl", rows(30));
  const fs::path folder = scratch.path() / "cache";
  std::atomic<bool> done = false;
  const TokenizedSet set = load_dataset({file.string()}, options_in(folder), [&](const Conversation& c) {
    if (!done.exchange(true))
      fs::last_write_time(file, fs::file_time_type::clock::now() + std::chrono::hours(1));
    return encode_letters(c);
  });
  EXPECT_GT(set.size(), 0);
  EXPECT_TRUE(files_in(folder).empty());
}

TEST(TokenCache, SubsetsShareTheArrays) {
  const ScratchFolder scratch;
  const std::string file = scratch.write("a.jsonl", rows(30));
  const TokenizedSet set = load_dataset({file}, options_in(scratch.path() / "cache"), encode_letters);
  const std::vector<int32_t> picked = {7, 3, 20};
  const TokenizedSet part = set.subset(picked);
  const std::vector<int32_t> again = {2, 0};
  const TokenizedSet inner = part.subset(again);
  ASSERT_EQ(part.size(), 3);
  ASSERT_EQ(inner.size(), 2);
  EXPECT_EQ(part.ids(1).data(), set.ids(3).data());
  EXPECT_EQ(inner.ids(0).data(), set.ids(20).data());
  EXPECT_EQ(inner.line(1), set.line(7));
  EXPECT_EQ(part.counts().tokens, set.length(7) + set.length(3) + set.length(20));
  EXPECT_EQ(part.counts().targets, set.targets(7) + set.targets(3) + set.targets(20));
  EXPECT_EQ(part.raw_lengths()[2], set.length(20));
  EXPECT_NE(part.fingerprint(), set.fingerprint());
  EXPECT_NE(part.fingerprint(), inner.fingerprint());
}

}  // namespace
}  // namespace deltatune
