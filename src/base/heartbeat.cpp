// The thread, and when something was last written.
#include "base/heartbeat.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/format.h"
#include "base/log.h"

namespace deltatune {
namespace {

using Clock = std::chrono::steady_clock;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

std::atomic<int64_t>& last_output() {
  static std::atomic<int64_t> at{now_ns()};
  return at;
}

struct Activity {
  std::mutex mutex;
  std::string what;
  int64_t since_ns = now_ns();
  int64_t verb_since_ns = now_ns();
};
Activity& activity() {
  static Activity one;
  return one;
}

// "plan: still at it, 12s so far". An activity that has just begun has not been silent for long: then the
// time is the verb's.
std::string heartbeat_line() {
  const std::lock_guard guard(activity().mutex);
  const int64_t now = now_ns();
  const auto since = [&](int64_t begin) { return static_cast<double>(now - begin) * 1e-9; };
  const auto text = [](double seconds) {
    return format_duration(seconds < 10 ? seconds : std::floor(seconds));
  };
  const double phase = since(activity().since_ns);
  if (phase >= 1) return format("{}: still at it, {} so far", activity().what, text(phase));
  const double verb = std::max(since(activity().verb_since_ns), 0.01);
  return format("{}: still at it, {} since the start", activity().what, text(verb));
}

}  // namespace

void set_activity(std::string_view what) {
  const std::lock_guard lock(activity().mutex);
  if (activity().what == what) return;
  activity().what = what;
  activity().since_ns = now_ns();
}

void note_output() {
  last_output() = now_ns();
}

double silence_s() {
  return static_cast<double>(now_ns() - last_output()) * 1e-9;
}

struct Heartbeat::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  std::thread thread;
};

Heartbeat::Heartbeat(std::string_view verb, double limit_s) : state_(std::make_unique<State>()) {
  set_activity(verb);
  {
    const std::lock_guard lock(activity().mutex);
    activity().verb_since_ns = now_ns();
  }
  note_output();
  state_->thread = std::thread([state = state_.get(), limit_s] {
    std::unique_lock lock(state->mutex);
    while (!state->stop) {
      const double left = std::max(limit_s - silence_s(), 0.01);
      state->changed.wait_for(lock, std::chrono::duration<double>(left), [&] { return state->stop; });
      if (state->stop || silence_s() < limit_s) continue;
      const std::string line = heartbeat_line();
      lock.unlock();
      log::info("{}", line);
      note_output();  // whether or not the threshold let it pass
      lock.lock();
    }
  });
}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
  set_activity("");
}

}  // namespace deltatune
