// Every verb says something within 200 ms of its start, and none is silent for more than 5 s.
#include <poll.h>

#include <chrono>

#include "cli/verbs.h"
#include "e2e/runs.h"

namespace deltatune {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The program with stdout and stderr in one pipe.
class Piped {
 public:
  explicit Piped(const std::string& arguments) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    start_ = Clock::now();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(ends[1], 1);
      ::dup2(ends[1], 2);
      ::close(ends[0]);
      ::close(ends[1]);
      const std::string command = std::string("exec '") + DELTATUNE_BINARY + "' " + arguments;
      ::execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
      ::_exit(99);
    }
    ::close(ends[1]);
    from_ = ends[0];
  }
  ~Piped() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(from_);
  }
  Piped(const Piped&) = delete;
  Piped& operator=(const Piped&) = delete;

  // Seconds until the next bytes; below 0: there are no more, or none in a minute.
  double next() {
    const Clock::time_point start = Clock::now();
    pollfd wanted{from_, POLLIN, 0};
    char block[4096];
    if (::poll(&wanted, 1, 60000) != 1) return -1;
    const ssize_t n = ::read(from_, block, sizeof block);
    if (n <= 0) return -1;
    said.append(block, static_cast<size_t>(n));
    return seconds_since(start);
  }
  double until_first() {
    const double waited = next();
    return waited < 0 ? waited : seconds_since(start_);
  }
  std::string said;

 private:
  pid_t pid_ = -1;
  int from_ = -1;
  Clock::time_point start_;
};

TEST(FirstLine, OfEveryVerbComesWithin200Milliseconds) {
  const TempFolder folder("first_line");
  const std::string demo = (source_dir / "examples/demo").string();
  const std::string config = "'" + demo + "/demo.yaml'";
  const std::string keys = " --model_name_or_path '" + demo + "/model' --dataset '" + demo + "/train.jsonl'";
  const std::string output = " --output_dir '" + (folder / "run").string() + "'";
  const std::map<std::string, std::string> arguments = {
      {"train", config + keys + output},
      {"profile", config + keys + output},
      {"plan", config + keys},
      {"eval", config + keys},
      {"generate", "'" + demo + "/model' --init random --prompt hello"},
      {"parity", "'" + (source_dir / "tests/golden/tiny_tied").string() + "'"},
      {"data show", "'" + demo + "/train.jsonl' --model_name_or_path '" + demo + "/model'"},
      {"data stats", "'" + demo + "/train.jsonl' --model_name_or_path '" + demo + "/model'"},
      {"data pack", "'" + demo + "/train.jsonl' --model_name_or_path '" + demo + "/model'"},
      {"data check", "'" + demo + "/train.jsonl' --model_name_or_path '" + demo + "/model'"},
      {"data render",
       config + " --model_name_or_path '" + demo + "/model' --dataset '" + demo + "/train.jsonl'"},
      {"data tokenize", config + " --model_name_or_path '" + demo + "/model' --text hello"},
      {"bench op", "--device cpu"},
      {"bench step", "--device cpu --model qwen3.5-0.8b --tokens 64 --layers 4"},
      {"bench ladder", ""},
      {"inspect", "'" + demo + "/model/config.json'"},
      {"doctor", ""},
      {"report", "'" + folder.path().string() + "'"},
      {"advise", "'" + folder.path().string() + "'"},
      {"help", ""}};
  for (const cli::Verb& verb : cli::verbs()) {
    const auto found = arguments.find(verb.name);
    ASSERT_NE(found, arguments.end()) << verb.name << " is new: how is it called?";
    // The fastest of a few starts: what the program needs, not what the machine does beside it.
    double fastest = 1e9;
    std::string said;
    for (int attempt = 0; attempt < 8 && fastest > 0.2; ++attempt) {
      Piped run(std::string(verb.name) + " " + found->second);
      const double waited = run.until_first();
      ASSERT_GE(waited, 0) << verb.name << " says nothing";
      fastest = std::min(fastest, waited);
      said = run.said;
    }
    EXPECT_LE(fastest, 0.2) << verb.name;
    const bool first = std::string(verb.name) == "help" || said.starts_with("deltatune ");
    EXPECT_TRUE(first) << verb.name << ": " << said;
  }
}

// A run whose steps are not logged for a long time.
TEST(FirstLine, ARunIsNeverSilentForLong) {
  const TempFolder folder("silence");
  const std::string demo = (source_dir / "examples/demo").string();
  Piped run("train '" + demo + "/demo.yaml' --model_name_or_path '" + demo + "/model' --dataset '" + demo +
            "/train.jsonl' --eval_dataset '" + demo + "/eval.jsonl' --output_dir '" +
            (folder / "run").string() +
            "' --logging_steps 1000000 --eval_steps 0 --save_steps 0 --max_steps 100000 --progress plain");
  const Clock::time_point start = Clock::now();
  double longest = 0;
  while (seconds_since(start) < 11) {
    const double waited = run.next();
    ASSERT_GE(waited, 0) << run.said;
    longest = std::max(longest, waited);
  }
  EXPECT_LE(longest, 5.5) << run.said;
  EXPECT_NE(run.said.find("step "), std::string::npos) << run.said;
}

}  // namespace
}  // namespace deltatune
