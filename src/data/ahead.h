// Ahead: a thread that makes things before they are asked for, in order and never more than a few.
//
// For the way from a file to rows: fetching, decompressing and decoding go on while rows are rendered and
// tokenised. The thread ends with this object, after the thing that it is making.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace deltatune {

template <class T>
class Ahead {
 public:
  /// `make` is called on the thread, until it gives nullopt or throws; what it refers to must outlive this
  /// object. Up to `depth` (1 or more) things wait to be taken.
  Ahead(std::function<std::optional<T>()> make, size_t depth) : make_(std::move(make)), depth_(depth) {
    thread_ = std::thread([this] { run(); });
  }
  ~Ahead() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;

  /// The next thing; nullopt behind the last one. What `make` threw comes behind what it made before.
  std::optional<T> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || !ready_.empty(); });
    if (ready_.empty()) {
      if (failure_) std::rethrow_exception(failure_);
      return std::nullopt;
    }
    std::optional<T> out = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
    return out;
  }

 private:
  void run() {
    std::exception_ptr failure;
    try {
      for (;;) {
        {
          std::unique_lock lock(mutex_);
          changed_.wait(lock, [&] { return stop_ || ready_.size() < depth_; });
          if (stop_) break;
        }
        std::optional<T> made = make_();
        if (!made) break;
        const std::lock_guard lock(mutex_);
        ready_.push_back(*std::move(made));
        changed_.notify_all();
      }
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
    ended_ = true;
    changed_.notify_all();
  }

  std::function<std::optional<T>()> make_;
  size_t depth_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<T> ready_;
  std::exception_ptr failure_;
  bool ended_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace deltatune
