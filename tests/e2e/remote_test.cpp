// Data from an S3 server on loopback that resets, cuts, stalls and refuses requests where a seed says
// (tests/data/s3_store.py; needs PyPI moto): every row comes once, in order, and what it took is counted.
#include "data/remote.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>

#include "base/error.h"
#include "base/format.h"
#include "cli/run_binary.h"
#include "data/arrow_plugin.h"
#include "data/files.h"
#include "data/remote_files.h"
#include "data/row_source.h"
#include "e2e/runs.h"

namespace deltatune {
namespace {

// The server as a child process; it ends with its standard input.
class S3Store {
 public:
  S3Store(const fs::path& folder, int seed) {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0) return;
    const std::string script = (source_dir / "tests/data/s3_store.py").string();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::execlp(python().c_str(), "python3", script.c_str(), folder.c_str(), std::to_string(seed).c_str(),
               static_cast<char*>(nullptr));
      ::_exit(99);
    }
    ::close(in[0]);
    ::close(out[1]);
    to_ = in[1];
    from_ = ::fdopen(out[0], "r");
    port_ = answer().at("port").as_integer();
  }
  ~S3Store() {
    ::close(to_);
    if (from_) std::fclose(from_);
    int status = 0;
    ::waitpid(pid_, &status, 0);
  }
  S3Store(const S3Store&) = delete;
  S3Store& operator=(const S3Store&) = delete;

  static std::string python() {
    const char* named = std::getenv("DELTATUNE_PYTHON");
    return named ? named : "python3";
  }
  static bool available() {
    return std::system((python() + " -c 'import moto.server' >/dev/null 2>&1").c_str()) == 0;
  }
  int64_t port() const { return port_; }
  json::Value say(const std::string& line) {
    const std::string text = line + "\n";
    EXPECT_EQ(::write(to_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    return answer();
  }
  // What an S3 client looks for in the environment.
  std::vector<std::pair<std::string, std::string>> environment() const {
    return {{"AWS_ENDPOINT_URL", format("http://127.0.0.1:{}", port_)},
            {"AWS_ACCESS_KEY_ID", "test"},
            {"AWS_SECRET_ACCESS_KEY", "test"},
            {"AWS_REGION", "us-east-1"},
            {"AWS_EC2_METADATA_DISABLED", "true"},
            {"no_proxy", "127.0.0.1"}};
  }

 private:
  json::Value answer() {
    std::array<char, 4096> line{};
    if (!from_ || !std::fgets(line.data(), line.size(), from_)) {
      throw Error(ErrorKind::internal, "the S3 server of the test does not answer");
    }
    return json::parse(line.data(), "s3_store.py");
  }
  pid_t pid_ = -1;
  int to_ = -1;
  FILE* from_ = nullptr;
  int64_t port_ = 0;
};

class RemoteRun : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!arrow_plugin(why)) GTEST_SKIP() << why;
    if (!S3Store::available()) {
      GTEST_SKIP() << "needs the Python package moto[server] (DELTATUNE_PYTHON names the interpreter)";
    }
  }
  void TearDown() override { set_remote_options({}); }
  static void TearDownTestSuite() { close_object_stores(); }
  void enter(const S3Store& store) {
    for (const auto& [key, value] : store.environment()) ::setenv(key.c_str(), value.c_str(), 1);
    RemoteOptions options;
    options.first_wait_s = 0.01;
    options.longest_wait_s = 0.05;
    options.timeout_s = 1;
    options.part = size_t{32} << 10;
    options.smallest_part = size_t{8} << 10;
    set_remote_options(options);
  }
  TempFolder folder_{"remote"};
};

std::vector<int64_t> ids_of(const std::vector<fs::path>& files) {
  std::vector<int64_t> out;
  for (const fs::path& file : files) {
    visit_file(file, [&](const std::vector<RawRow>& rows) {
      for (const RawRow& row : rows) out.push_back(row.parse().at("id").as_integer());
      return true;
    });
  }
  return out;
}

TEST_F(RemoteRun, EveryRowOnceFromParquetLinesAndGzip) {
  const fs::path up = folder_ / "up";
  const fs::path parquet = source_dir / "tests/data/parquet";
  fs::create_directories(up / "data");
  std::vector<int64_t> expected;
  for (const auto& [name, codec] : std::map<std::string, std::string>{{"train-00000-of-00002", "zstd"},
                                                                      {"train-00001-of-00002", "none"},
                                                                      {"test-00000-of-00001", "zstd"}}) {
    fs::copy_file(parquet / format("chat-{}.parquet", codec), up / "data" / (name + ".parquet"));
  }
  for (int copy = 0; copy < 2; ++copy) {
    for (int64_t id = 0; id < 41; ++id) expected.push_back(id);
  }
  std::string lines;
  std::vector<int64_t> line_ids;
  for (int64_t id = 0; id < 1200; ++id) {
    lines +=
        format("{{\"id\": {}, \"text\": \"{}\"}}\n", id, std::string(static_cast<size_t>(id % 331), 'x'));
    line_ids.push_back(id);
  }
  write_text(up / "lines.jsonl", lines);
  S3Store store(up, 5);
  enter(store);
  const RemoteCounts before = remote_counts();

  const std::vector<fs::path> files = dataset_files({"s3://bucket"}, "");
  EXPECT_EQ(files, std::vector<fs::path>{"s3://bucket/lines.jsonl"}) << "files directly in the folder win";
  EXPECT_EQ(ids_of(files), line_ids);
  EXPECT_EQ(ids_of(dataset_files({"s3://bucket/gz/*.jsonl.gz"})), line_ids);
  EXPECT_EQ(ids_of(dataset_files({"s3://bucket/**/train-*"})), expected);
  EXPECT_EQ(
      ids_of(dataset_files(
          {format("s3://bucket/data?endpoint_override=127.0.0.1:{}&scheme=http", store.port())}, "train")),
      expected);

  const json::Value faults = store.say("faults");
  const RemoteCounts counts = remote_counts();
  int64_t injected = 0;
  for (const char* kind : {"reset", "cut", "busy", "stall"}) injected += faults.at(kind).as_integer();
  EXPECT_GT(injected, 20) << json::dump(faults);
  EXPECT_GT(faults.at("stall").as_integer(), 0) << json::dump(faults);
  // A connection that the server reset before it was used again may be tried twice by the HTTP client itself.
  EXPECT_GE(counts.retries - before.retries, injected / 2);
  EXPECT_LE(counts.retries - before.retries, injected);
  EXPECT_GE(counts.stalls - before.stalls, 1);
  EXPECT_GT(counts.bytes - before.bytes, static_cast<int64_t>(lines.size()));
}

TEST_F(RemoteRun, ARunOverTheNetworkIsTheRunOnTheSameFilesHere) {
  const fs::path up = folder_ / "up";
  fs::create_directories(up);
  const std::string rows = read_file(source_dir / "examples/demo/train.jsonl");
  int part = 0;
  for (size_t at = 0; at < rows.size(); ++part) {  // eight files of whole lines
    const size_t end = std::min(rows.find('\n', at + rows.size() / 8), rows.size() - 1) + 1;
    write_text(up / format("part-{}.jsonl", part), rows.substr(at, end - at));
    at = end;
  }
  S3Store store(up, 2);
  std::string environment;
  for (const auto& [key, value] : store.environment()) environment += key + "='" + value + "' ";
  write_small_model(folder_ / "model");
  const auto run = [&](const std::string& dataset, const std::string& output) {
    const ProgramResult result = run_verb(
        "train",
        with(
            small_keys(folder_ / "model", folder_ / output),
            {{"dataset", dataset}, {"max_steps", "3"}, {"read_timeout", "1.5"}, {"read_retry_wait", "0.02"}}),
        "", environment);
    EXPECT_EQ(result.code, 0) << result.err;
    return result;
  };
  run((up / "part-*.jsonl").string(), "here");
  const ProgramResult there = run("s3://bucket/part-*.jsonl", "there");
  EXPECT_NE(there.err.find("retries"), std::string::npos) << there.err;
  const json::Value* reads = nullptr;
  std::string losses[2];
  std::vector<json::Value> events[2];
  for (const int which : {0, 1}) {
    std::istringstream lines(slurp(folder_ / (which == 0 ? "here" : "there") / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) events[which].push_back(json::parse(line, "metrics"));
    for (const json::Value& event : events[which]) {
      if (event.at("event").as_string() == "step") losses[which] += json::dump(event.at("loss")) + " ";
      if (event.at("event").as_string() == "start") reads = event.find("remote_reads");
    }
  }
  EXPECT_FALSE(losses[0].empty());
  EXPECT_EQ(losses[0], losses[1]);
  ASSERT_NE(reads, nullptr) << "the start event of the second run says what reading cost";
  const json::Value faults = store.say("faults");
  EXPECT_GT(faults.at("reset").as_integer() + faults.at("cut").as_integer(), 0) << json::dump(faults);
  EXPECT_GT(reads->at("retries").as_integer(), 0);
  EXPECT_GE(reads->at("bytes").as_integer(), static_cast<int64_t>(rows.size()));
}

TEST_F(RemoteRun, IdentityIsTheStoresVersionAndMissingFilesAreSaid) {
  const fs::path up = folder_ / "up";
  fs::create_directories(up);
  write_text(up / "a.jsonl", "{\"id\": 1}\n");
  S3Store store(up, 9);
  enter(store);
  const std::string first = file_identity("s3://bucket/a.jsonl");
  EXPECT_EQ(file_identity("s3://bucket/a.jsonl"), first);
  write_text(up / "a.jsonl", "{\"id\": 2}\n");
  store.say("put a.jsonl");
  EXPECT_NE(file_identity("s3://bucket/a.jsonl"), first);
  try {
    dataset_files({"s3://bucket/none.jsonl"});
    ADD_FAILURE() << "there is none";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::data);
    EXPECT_NE(e.text().find("s3://bucket/none.jsonl"), std::string::npos) << e.text();
  }
}

// .invalid is a name that never resolves (RFC 2606). In processes of their own: S3 starts once in a process.
TEST(RemoteErrors, AHostThatNobodyKnowsIsTriedTwice) {
  std::string why;
  if (!arrow_plugin(why)) GTEST_SKIP() << why;
  const ProgramResult result = run_deltatune(
      "data check --read-retry-wait 0.01 --dataset "
      "'s3://bucket/a.jsonl?endpoint_override=no-such-host.invalid&scheme=http'",
      "AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=y");
  EXPECT_EQ(result.code, exit_code(ErrorKind::resource)) << result.err;
  EXPECT_NE(result.err.find("retry 1 of 1"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("retry 2"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("fix:   check the host"), std::string::npos) << result.err;
}

TEST(RemoteErrors, HdfsDoesNotSendOneToAws) {
  std::string why;
  if (!arrow_plugin(why)) GTEST_SKIP() << why;
  const ProgramResult result = run_deltatune(
      "data check --read-retries 0 --read-timeout 5 --dataset hdfs://no-such-host.invalid:8020/a.jsonl");
  EXPECT_NE(result.code, 0);
  EXPECT_EQ(result.err.find("AWS"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("fix: "), std::string::npos) << result.err;
}

}  // namespace
}  // namespace deltatune
