// Reading through failures, against a made-up store that fails where a seed says.
#include "data/remote.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/format.h"
#include "base/rng.h"
#include "data/remote_files.h"
#include "data/row_source.h"

namespace deltatune {
namespace {

// One object and what goes wrong with it.
struct Store {
  std::string bytes;
  std::string version = "1";
  double fail_share = 0;             // of reads and opens
  std::vector<int64_t> stall_reads;  // numbers of reads that give no answer for stall_s
  double stall_s = 0;
  bool refuses = false;
  std::atomic<int64_t> opens = 0;
  std::atomic<int64_t> reads = 0;
  std::mutex mutex;
  Rng rng{11, 3};

  void maybe_fail() {
    const std::lock_guard lock(mutex);
    if (refuses) throw Error(ErrorKind::data, "ACCESS_DENIED", "store", "ask");
    if (rng.uniform() < fail_share) throw TransientError(ErrorKind::resource, "connection reset");
  }
};

class StoreFile final : public RemoteFile {
 public:
  explicit StoreFile(std::shared_ptr<Store> store) : store_(std::move(store)) {
    ++store_->opens;
    store_->maybe_fail();
  }
  uint64_t size() const override { return store_->bytes.size(); }
  std::string version() const override { return store_->version; }
  size_t read_at(uint64_t offset, std::span<char> out) override {
    const int64_t number = store_->reads++;
    for (const int64_t stalled : store_->stall_reads) {
      if (number == stalled) std::this_thread::sleep_for(std::chrono::duration<double>(store_->stall_s));
    }
    store_->maybe_fail();
    MemoryBytes bytes(store_->bytes);
    return bytes.read_at(offset, out);
  }

 private:
  std::shared_ptr<Store> store_;
};

class Remote : public testing::Test {
 protected:
  void SetUp() override {
    options_.first_wait_s = 0.0005;
    options_.longest_wait_s = 0.002;
    options_.timeout_s = 10;
    options_.part = 1000;
    options_.smallest_part = 100;
    set_remote_options(options_);
    before_ = remote_counts();
  }
  void TearDown() override { set_remote_options({}); }
  OpenRemote opener() const {
    return [store = store_] { return std::make_shared<StoreFile>(store); };
  }
  RemoteOptions options_;
  RemoteCounts before_;
  std::shared_ptr<Store> store_ = std::make_shared<Store>();
};

std::string lines(int count) {
  std::string out;
  for (int i = 0; i < count; ++i)
    out += format("{{\"id\": {}, \"pad\": \"{}\"}}\n", i, std::string(static_cast<size_t>(i % 90), 'x'));
  return out;
}

TEST_F(Remote, EveryByteOnceThoughAThirdOfTheRequestsFails) {
  store_->bytes = lines(2000);
  store_->fail_share = 0.33;
  RetryingFile file(opener(), "store");
  ReadAheadStream stream(file);
  int64_t next = 0;
  visit_stream(stream, "a.jsonl", [&](const std::vector<RawRow>& rows) {
    for (const RawRow& row : rows) EXPECT_EQ(row.parse().at("id").as_integer(), next++);
    return true;
  });
  EXPECT_EQ(next, 2000);
  const RemoteCounts counts = remote_counts();
  EXPECT_EQ(counts.bytes - before_.bytes, static_cast<int64_t>(store_->bytes.size()));
  EXPECT_GT(counts.retries - before_.retries, 20);
  // Every request beyond the first open and the parts that came is a retry.
  EXPECT_GT(counts.requests - before_.requests, counts.retries - before_.retries);
  EXPECT_GT(counts.waited_s, before_.waited_s);
}

TEST_F(Remote, AStalledReadIsReportedThenSentAgain) {
  store_->bytes = lines(100);
  store_->stall_reads = {1};
  store_->stall_s = 1.5;
  options_.timeout_s = 0.4;
  set_remote_options(options_);
  RetryingFile file(opener(), "store");
  std::string out(store_->bytes.size(), '\0');
  testing::internal::CaptureStderr();
  const size_t count = file.read_at(0, out);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count, out.size());
  EXPECT_EQ(out, store_->bytes);
  const RemoteCounts counts = remote_counts();
  EXPECT_EQ(counts.stalls - before_.stalls, 1);
  EXPECT_EQ(counts.retries - before_.retries, 1);
  EXPECT_GE(counts.stalled_s - before_.stalled_s, 0.39);
  const size_t reported = log.find("no answer for");
  const size_t retried = log.find("retry 1 of 10");
  EXPECT_NE(reported, std::string::npos) << log;
  EXPECT_NE(retried, std::string::npos) << log;
  EXPECT_LT(reported, retried);
}

TEST_F(Remote, RetriesEnd) {
  store_->bytes = "x";
  store_->fail_share = 1;
  options_.retries = 3;
  set_remote_options(options_);
  try {
    RetryingFile file(opener(), "s3://b/x");
    FAIL() << "it opened";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::resource);
    EXPECT_STREQ(e.what(), "connection reset, after 3 retries");
    EXPECT_EQ(e.where(), "s3://b/x");
  }
  EXPECT_EQ(store_->opens, 4);
}

TEST_F(Remote, AFailureThatHardlyPassesIsTriedOnceMore) {
  int tries = 0;
  try {
    with_retries<int>("s3://b/x", [&tries]() -> int {
      ++tries;
      throw TransientError(Error(ErrorKind::resource, "no such host", "s3://b/x", "check the host"), 1);
    });
    FAIL() << "it returned";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::resource);
    EXPECT_STREQ(e.what(), "no such host, after 1 retry");
    EXPECT_EQ(e.fix(), "check the host");
  }
  EXPECT_EQ(tries, 2);
}

TEST_F(Remote, ARefusalIsNotRetried) {
  store_->refuses = true;
  EXPECT_THROW(RetryingFile(opener(), "s3://b/x"), Error);
  EXPECT_EQ(store_->opens, 1);
  EXPECT_EQ(remote_counts().retries, before_.retries);
}

TEST_F(Remote, AFileThatChangesWhileItIsReadIsAnError) {
  store_->bytes = lines(1000);
  RetryingFile file(opener(), "s3://b/x");
  std::string out(5000, '\0');
  EXPECT_EQ(file.read_at(0, out), 5000u);
  store_->version = "2";
  store_->fail_share = 0.5;
  try {
    for (int i = 0; i < 100; ++i) file.read_at(0, out);
    FAIL() << "no request failed, or nobody looked";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::data);
    EXPECT_NE(std::string(e.what()).find("changed"), std::string::npos) << e.text();
  }
}

TEST_F(Remote, PlacesAtAndBeyondTheEnd) {
  store_->bytes = "0123456789";
  RetryingFile file(opener(), "s3://b/x");
  char out[8];
  EXPECT_EQ(file.read_at(7, out), 3u);
  EXPECT_EQ(std::string(out, 3), "789");
  EXPECT_EQ(file.read_at(10, out), 0u);
  EXPECT_EQ(file.read_at(uint64_t{1} << 60, out), 0u);
}

TEST(Uri, WhatIsRemoteAndWhatIsNot) {
  for (const char* uri : {"s3://b/x", "gs://b/x", "hdfs://host:8020/x"}) EXPECT_TRUE(is_remote(uri)) << uri;
  for (const char* path : {"s3:/b", "/a/s3://b", "data/x.jsonl", "file:///x", "C://x"})
    EXPECT_FALSE(is_remote(path)) << path;
  EXPECT_EQ(remote_name("s3://b/x.parquet?region=eu-west-1"), "s3://b/x.parquet");
  EXPECT_EQ(local_path("file:///a%20b/c%2"), "/a b/c%2");
  EXPECT_EQ(local_path("file://localhost/a"), "/a");
  EXPECT_EQ(local_path("a/b"), "a/b");
  EXPECT_THROW(local_path("file://elsewhere/a"), Error);
}

TEST(Uri, WhatCannotBeReadIsRefusedWithoutItsSecrets) {
  for (const char* uri : {"s3://key:secret@b/x", "s3:///x", "ftp://b/x", "https://b/x.jsonl"}) {
    try {
      check_uri(uri);
      ADD_FAILURE() << uri;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::usage);
      EXPECT_EQ(e.where().find(":secret"), std::string::npos) << e.text();
    }
  }
  check_uri("s3://b/x@1/a:b");
  check_uri("gs://anonymous@b/x");
  check_uri("dir/a.jsonl");
}

}  // namespace
}  // namespace deltatune
