// The process-wide pool behind parallel_for: workers take ranges from a shared counter.
#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace deltatune {
namespace {

struct Job {
  const std::function<void(int64_t, int64_t, int)>* body;
  int64_t count;
  int64_t step;
  std::atomic<int64_t> next{0};
  std::atomic<int> active{0};
  std::mutex failure_mutex;
  std::exception_ptr failure;

  void run(int worker) {
    for (;;) {
      const int64_t begin = next.fetch_add(step);
      if (begin >= count) return;
      try {
        (*body)(begin, std::min(begin + step, count), worker);
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        if (!failure) failure = std::current_exception();
        next = count;
      }
    }
  }
};

// -1: not inside a parallel_for.
thread_local int current_worker = -1;

class Pool {
 public:
  explicit Pool(int size) {
    for (int worker = 1; worker < size; ++worker) threads_.emplace_back([this, worker] { loop(worker); });
  }
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  int size() const { return static_cast<int>(threads_.size()) + 1; }

  void run(Job& job) {
    // One job at a time: a second caller (another thread of ours, e.g. a threaded stream) waits its turn.
    const std::lock_guard turn(turn_);
    {
      const std::lock_guard lock(mutex_);
      job_ = &job;
      ++generation_;
      job.active = static_cast<int>(threads_.size());
    }
    wake_.notify_all();
    current_worker = 0;
    job.run(0);
    current_worker = -1;
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return job.active == 0; });
    job_ = nullptr;
  }

 private:
  void loop(int worker) {
    uint64_t seen = 0;
    for (;;) {
      Job* job = nullptr;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
        if (stop_) return;
        seen = generation_;
        job = job_;
      }
      current_worker = worker;
      job->run(worker);
      current_worker = -1;
      {
        const std::lock_guard lock(mutex_);
        --job->active;
      }
      done_.notify_one();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex turn_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  Job* job_ = nullptr;
  uint64_t generation_ = 0;
  bool stop_ = false;
};

int configured_size() {
  const char* text = std::getenv("DELTATUNE_NUM_THREADS");
  if (text != nullptr && *text != '\0') {
    int wanted = 0;
    const char* end = text + std::strlen(text);
    const auto [rest, error] = std::from_chars(text, end, wanted);
    if (error != std::errc() || rest != end || wanted < 1) {
      throw Error(ErrorKind::usage, std::string("\"") + text + "\" is no number of threads",
                  "environment variable DELTATUNE_NUM_THREADS", "set it to 1 or more, or unset it");
    }
    return std::min(wanted, 1024);
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

Pool& pool() {
  static Pool instance(configured_size());
  return instance;
}

}  // namespace

int thread_count() {
  static const int size = configured_size();
  return size;
}

void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t, int)>& body) {
  if (count <= 0) return;
  const int64_t least = std::max<int64_t>(1, grain);
  if (current_worker >= 0) {
    body(0, count, current_worker);
    return;
  }
  if (count <= least || thread_count() == 1) {
    current_worker = 0;
    try {
      body(0, count, 0);
    } catch (...) {
      current_worker = -1;
      throw;
    }
    current_worker = -1;
    return;
  }
  Job job;
  job.body = &body;
  job.count = count;
  // Four ranges a thread, so that uneven work (causal attention) balances.
  const int64_t parts = static_cast<int64_t>(pool().size()) * 4;
  job.step = std::max(least, (count + parts - 1) / parts);
  pool().run(job);
  if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace deltatune
