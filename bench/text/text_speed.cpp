// Times the text half of the data plane on this machine; driven by text_speed.py, which runs the rival beside
// it.
//
//   bench_text encode TOKENIZER_DIR TEXTS THREADS
//     TEXTS: a JSON array of strings. For every line on standard input one pass over all of them, control
//     tokens parsed; answers {"seconds", "cpu_seconds", "tokens"}. The line "ids" answers the ids instead.
//   bench_text chats TOKENIZER_DIR TEMPLATE THREADS PASSES FILE...
//     Rows of JSON Lines files, read and parsed before the clock starts: each pass renders, tokenises and
//     masks all of them; answers {"seconds", "cpu_seconds", "conversations", "tokens", "targets"} per
//     pass.
// Threads take the next text or row from one counter, as the dataset's workers do.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "data/encode.h"
#include "data/schema.h"

namespace {

using namespace deltatune;

// Seconds of the wall clock, and of CPU time of all threads: the latter hardly depends on who else uses the
// machine.
struct Seconds {
  double wall = 0;
  double cpu = 0;
};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// What `threads` threads need for work(0 .. count - 1).
Seconds timed(size_t threads, size_t count, const std::function<void(size_t)>& work) {
  constexpr size_t grain = 8;
  std::atomic<size_t> next{0};
  const auto worker = [&] {
    for (size_t begin = next.fetch_add(grain); begin < count; begin = next.fetch_add(grain)) {
      for (size_t i = begin; i < std::min(begin + grain, count); ++i) work(i);
    }
  };
  const auto start = std::chrono::steady_clock::now();
  const double cpu_start = cpu_seconds();
  std::vector<std::thread> more;
  for (size_t i = 1; i < threads; ++i) more.emplace_back(worker);
  worker();
  for (std::thread& thread : more) thread.join();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
          cpu_seconds() - cpu_start};
}

void say(const json::Value& answer) {
  std::cout << json::dump(answer) << std::endl;
}

int encode(int argc, char** argv) {
  if (argc != 5) return 2;
  const Tokenizer tokenizer = Tokenizer::load(argv[2]);
  std::vector<std::string> texts;
  const json::Value list = json::parse_file(argv[3]);
  for (const json::Value& text : list.as_array()) texts.push_back(text.as_string());
  const auto threads = static_cast<size_t>(std::atoi(argv[4]));
  std::vector<std::vector<int32_t>> ids(texts.size());
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "ids") {
      const char* before = "[";
      for (const auto& row : ids) {
        std::cout << std::exchange(before, ",") << "[";
        for (size_t i = 0; i < row.size(); ++i) std::cout << (i ? "," : "") << row[i];
        std::cout << "]";
      }
      std::cout << "]" << std::endl;
      continue;
    }
    const Seconds seconds =
        timed(threads, texts.size(), [&](size_t i) { ids[i] = tokenizer.encode(texts[i], true); });
    int64_t tokens = 0;
    for (const auto& row : ids) tokens += static_cast<int64_t>(row.size());
    say(json::Object{{"seconds", seconds.wall}, {"cpu_seconds", seconds.cpu}, {"tokens", tokens}});
  }
  return 0;
}

int chats(int argc, char** argv) {
  if (argc < 7) return 2;
  const Tokenizer tokenizer = Tokenizer::load(argv[2]);
  const ChatTemplate chat_template = ChatTemplate::compile(read_file(argv[3]), argv[3]);
  const auto threads = static_cast<size_t>(std::atoi(argv[4]));
  const int passes = std::atoi(argv[5]);
  std::vector<Conversation> rows;
  SchemaNote note;
  for (int i = 6; i < argc; ++i) {
    std::istringstream lines(read_file(argv[i]));
    for (std::string line; std::getline(lines, line);)
      rows.push_back(read_conversation(json::parse(line, argv[i]), {}, &note));
  }
  const EncodeConversation encoder = make_encoder(tokenizer, chat_template, {});
  for (int pass = 0; pass < passes; ++pass) {
    std::atomic<int64_t> tokens{0};
    std::atomic<int64_t> targets{0};
    const Seconds seconds = timed(threads, rows.size(), [&](size_t i) {
      const MarkedTokens made = encoder(rows[i]);
      tokens += static_cast<int64_t>(made.ids.size());
      int64_t sum = 0;
      for (const uint8_t flag : made.supervised) sum += flag;
      targets += sum;
    });
    say(json::Object{{"seconds", seconds.wall},
                     {"cpu_seconds", seconds.cpu},
                     {"conversations", static_cast<int64_t>(rows.size())},
                     {"tokens", tokens.load()},
                     {"targets", targets.load()}});
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string verb = argc > 1 ? argv[1] : "";
    const int code = verb == "encode" ? encode(argc, argv) : verb == "chats" ? chats(argc, argv) : 2;
    if (code == 2) std::cerr << "usage: see the head of bench/text/text_speed.cpp\n";
    return code;
  } catch (const Error& error) {
    std::cerr << error.text() << "\n";
    return 3;
  }
}
