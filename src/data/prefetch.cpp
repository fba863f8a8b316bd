// The thread and its queue.
#include "data/prefetch.h"

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/format.h"
#include "base/log.h"

namespace deltatune {
namespace {

constexpr double first_notice_s = 5;

}  // namespace

Prefetcher::Prefetcher(std::unique_ptr<RowStream> source, int64_t depth)
    : source_(std::move(source)), depth_(static_cast<size_t>(depth)), fingerprint_(source_->fingerprint()) {
  DELTATUNE_ASSERT(depth >= 0);
  take_place();
}

Prefetcher::~Prefetcher() {
  stop();
}

void Prefetcher::take_place() {
  cursor_ = source_->cursor();
  progress_ = source_->epoch_progress();
}

Prefetcher::Item Prefetcher::make() {
  Item item;
  item.batch = source_->next();
  item.cursor = source_->cursor();
  item.progress = source_->epoch_progress();
  return item;
}

void Prefetcher::run() {
  try {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || ready_.size() < depth_; });
        if (stop_) return;
      }
      Item item = make();
      const std::lock_guard lock(mutex_);
      ready_.push_back(std::move(item));
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

Batch Prefetcher::next() {
  Item item;
  if (depth_ == 0) {
    item = make();
  } else {
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    const Stopwatch clock;
    double notice = first_notice_s;
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::duration<double>(notice - clock.seconds()),
                              [&] { return !ready_.empty() || failure_; })) {
      log::warn("the step has been waiting for data for {}", format_duration(clock.seconds()));
      notice *= 2;
    }
    if (ready_.empty()) std::rethrow_exception(failure_);
    item = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
  }
  cursor_ = item.cursor;
  progress_ = item.progress;
  return std::move(item.batch);
}

void Prefetcher::seek(const Cursor& cursor) {
  stop();
  source_->seek(cursor);
  take_place();
}

void Prefetcher::cancel() {
  source_->cancel();
}

// Leaves no thread and an empty queue.
void Prefetcher::stop() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    source_->cancel();
    thread_.join();
  }
  ready_.clear();
  failure_ = nullptr;
  stop_ = false;
}

}  // namespace deltatune
