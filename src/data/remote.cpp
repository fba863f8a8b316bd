// Retries, deadlines and read-ahead.
#include "data/remote.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "base/counted.h"
#include "base/format.h"
#include "base/log.h"
#include "base/rng.h"

namespace deltatune {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Options and counts of the process: object stores are opened deep below the code that reads options.
struct Shared {
  std::mutex mutex;
  RemoteOptions options;
  RemoteCounts counts;
  RemoteCounts logged;
  uint64_t draws = 0;
};

Shared& shared() {
  static Shared instance;
  return instance;
}

template <class F>
void count(F&& change) {
  const std::lock_guard lock(shared().mutex);
  change(shared().counts);
}

// Between half of `longest` and all of it; differs between processes that fail together.
double jittered(double longest) {
  uint64_t draw = 0;
  {
    const std::lock_guard lock(shared().mutex);
    draw = ++shared().draws;
  }
  Rng rng(static_cast<uint64_t>(Clock::now().time_since_epoch().count()), draw);
  return longest * (0.5 + 0.5 * rng.uniform());
}

// What a try and whoever waits for it share; a try that was given up keeps it alive.
struct Try {
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  std::exception_ptr failure;
};

}  // namespace

void run_try(const std::string& name, std::function<void()> attempt) {
  const RemoteOptions options = remote_options();
  count([](RemoteCounts& c) { ++c.requests; });
  const auto state = std::make_shared<Try>();
  const Clock::time_point start = Clock::now();
  std::thread([state, attempt = std::move(attempt)]() mutable {
    std::exception_ptr failure;
    try {
      attempt();
    } catch (...) {
      failure = std::current_exception();
    }
    attempt = nullptr;  // what it holds ends before anyone is told
    const std::lock_guard lock(state->mutex);
    state->failure = std::move(failure);  // whoever waits may be the last who has it
    state->done = true;
    state->ended.notify_all();
  }).detach();
  std::unique_lock lock(state->mutex);
  const auto until = [&](double s) {
    return state->ended.wait_until(
        lock, start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s)),
        [&] { return state->done; });
  };
  if (!until(options.timeout_s / 4)) {
    log::warn("{}: no answer for {:.3g} s, given up after {:.3g} s", name, seconds_since(start),
              options.timeout_s);
    count([](RemoteCounts& c) { ++c.stalls; });
    until(options.timeout_s);
    count([&](RemoteCounts& c) { c.stalled_s += seconds_since(start); });
  }
  if (!state->done)
    throw TransientError(ErrorKind::resource, format("no answer for {} s", options.timeout_s));
  if (state->failure) std::rethrow_exception(std::exchange(state->failure, nullptr));
}

void set_remote_options(const RemoteOptions& options) {
  const std::lock_guard lock(shared().mutex);
  shared().options = options;
}

RemoteOptions remote_options() {
  const std::lock_guard lock(shared().mutex);
  return shared().options;
}

RemoteCounts remote_counts() {
  const std::lock_guard lock(shared().mutex);
  return shared().counts;
}

void log_remote_counts(const std::string& name) {
  RemoteCounts now;
  RemoteCounts before;
  {
    const std::lock_guard lock(shared().mutex);
    now = shared().counts;
    before = std::exchange(shared().logged, now);
  }
  if (now.requests == before.requests) return;
  log::info("{}: {:.1f} MiB in {}; {}, {:.1f} s waited before; {}, {:.1f} s", name,
            static_cast<double>(now.bytes - before.bytes) / (1 << 20),
            counted(now.requests - before.requests, "request"),
            counted(now.retries - before.retries, "retry", "retries"), now.waited_s - before.waited_s,
            counted(now.stalls - before.stalls, "stall"), now.stalled_s - before.stalled_s);
}

RetryLoop::RetryLoop(std::string name)
    : name_(std::move(name)), options_(remote_options()), longest_s_(options_.first_wait_s) {}

void RetryLoop::failed(const TransientError& failure) {
  const int64_t most = std::min(options_.retries, failure.most_retries());
  if (tries_ >= most) {
    throw Error(ErrorKind::resource,
                format("{}, after {}", failure.what(), counted(tries_, "retry", "retries")), name_,
                failure.fix().empty() ? "check the network and the store; raise read_retries or read_timeout"
                                      : failure.fix());
  }
  ++tries_;
  const double longest = std::max(options_.longest_wait_s, options_.first_wait_s);
  const double wait = jittered(std::min(longest_s_, longest));
  longest_s_ = std::min(2 * longest_s_, longest);
  log::warn("{}: {}; retry {} of {} in {:.2g} s", name_, failure.what(), tries_, most, wait);
  count([&](RemoteCounts& c) {
    ++c.retries;
    c.waited_s += wait;
  });
  std::this_thread::sleep_for(std::chrono::duration<double>(wait));
}

RetryingFile::RetryingFile(OpenRemote open, std::string name)
    : open_(std::move(open)),
      name_(std::move(name)),
      file_(with_retries<std::shared_ptr<RemoteFile>>(name_, open_)),
      size_(file_->size()),
      version_(file_->version()) {}

size_t RetryingFile::read_at(uint64_t offset, std::span<char> out) {
  if (offset >= size_) return 0;
  struct Part {
    std::shared_ptr<RemoteFile> file;
    std::vector<char> bytes;
  };
  const RemoteOptions options = remote_options();
  const uint64_t end = offset + std::min<uint64_t>(size_ - offset, out.size());
  size_t step = options.part;
  bool failed = false;
  uint64_t at = offset;
  for (RetryLoop loop(name_); at < end;) {
    const auto part = std::make_shared<Part>();
    {
      const std::lock_guard lock(mutex_);
      part->file = file_;
    }
    const auto wanted = static_cast<size_t>(std::min<uint64_t>(step, end - at));
    const auto request = [part, wanted, at, failed, open = open_, name = name_, size = size_,
                          version = version_] {
      if (failed) {  // a new connection, and the proof that it is the same file
        part->file = open();
        if (part->file->size() != size || part->file->version() != version) {
          throw Error(ErrorKind::data, "the file changed while it was read", name,
                      "start again when nothing writes to it any more");
        }
      }
      part->bytes.resize(wanted);
      part->bytes.resize(part->file->read_at(at, part->bytes));
      if (part->bytes.empty()) throw TransientError(ErrorKind::resource, "an answer without bytes");
    };
    try {
      run_try(format("{}, byte {}", name_, at), request);
    } catch (const TransientError& e) {
      failed = true;
      step = std::max(step / 2, std::min(options.smallest_part, options.part));
      loop.failed(e);
      continue;
    }
    std::copy(part->bytes.begin(), part->bytes.end(), out.begin() + static_cast<ptrdiff_t>(at - offset));
    at += part->bytes.size();
    count([&](RemoteCounts& c) { c.bytes += static_cast<int64_t>(part->bytes.size()); });
    if (failed) {
      const std::lock_guard lock(mutex_);
      file_ = part->file;
      loop = RetryLoop(name_);
      failed = false;
    }
    step = std::min(2 * step, options.part);
  }
  return static_cast<size_t>(end - offset);
}

ReadAheadStream::ReadAheadStream(RandomAccess& file, size_t ahead)
    : file_(file),
      parts_(
          [&file, at = uint64_t{0},
           step = remote_options().part]() mutable -> std::optional<std::vector<char>> {
            std::vector<char> part(step);
            part.resize(file.read_at(at, part));
            at += part.size();
            if (part.empty()) return std::nullopt;
            return part;
          },
          ahead) {}

std::string_view ReadAheadStream::next() {
  std::optional<std::vector<char>> part = parts_.next();
  if (!part) return {};
  current_ = *std::move(part);
  return {current_.data(), current_.size()};
}

}  // namespace deltatune
