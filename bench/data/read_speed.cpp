// Times reading alone: every row of the files becomes a json::Value in a thread of the pool and is dropped.
//
//   bench_read FILE...
// Answers one JSON line: rows, bytes of text in them, seconds of the wall clock and of CPU time of all
// threads, peak resident memory. DELTATUNE_NUM_THREADS says how many threads make values.
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <iostream>

#include "base/error.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "data/files.h"
#include "data/row_source.h"

namespace {

using namespace deltatune;

int64_t text_bytes(const json::Value& value) {
  int64_t sum = 0;
  if (value.is_string()) sum += static_cast<int64_t>(value.as_string().size());
  if (value.is_array()) {
    for (const json::Value& element : value.as_array()) sum += text_bytes(element);
  }
  if (value.is_object()) {
    for (const auto& [key, member] : value.as_object()) sum += text_bytes(member);
  }
  return sum;
}

json::Value measure(const std::vector<std::string>& entries) {
  const auto start = std::chrono::steady_clock::now();
  const std::clock_t cpu_start = std::clock();
  std::atomic<int64_t> bytes = 0;
  int64_t count = 0;
  for (const fs::path& file : dataset_files(entries)) {
    visit_file(file, [&](const std::vector<RawRow>& rows) {
      count += static_cast<int64_t>(rows.size());
      parallel_for(static_cast<int64_t>(rows.size()), 16, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) bytes += text_bytes(rows[static_cast<size_t>(i)].parse());
      });
      return true;
    });
  }
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return json::Object{
      {"rows", count},
      {"text_bytes", bytes.load()},
      {"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()},
      {"cpu_seconds", static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC},
      {"threads", int64_t{thread_count()}},
      {"peak_mib", static_cast<double>(usage.ru_maxrss) / 1024}};
}

}  // namespace

int main(int count, char** arguments) {
  try {
    std::cout << json::dump(measure({arguments + 1, arguments + count})) << "\n";
    return 0;
  } catch (const Error& error) {
    std::cerr << error.text() << "\n";
    return exit_code(error.kind());
  }
}
