// Files of object stores, read through whatever goes wrong on the way.
//
// A request that fails for a reason that may pass (reset, time-out, 5xx, throttling) is sent again after a
// wait that doubles and is drawn at random below it ("full jitter", halved from below), from the byte behind
// the last good one. A request without an answer is reported while it lasts and given up after read_timeout.
// The file has to stay the same while it is read: its version (entity tag) is compared whenever it is opened
// again. What was done is counted. This file knows no object store: those come from the Arrow plug-in
// (data/arrow_plugin.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "data/ahead.h"
#include "data/byte_source.h"

namespace deltatune {

/// Process-wide, see set_remote_options().
struct RemoteOptions {
  int64_t retries = 10;   ///< of one request without a byte of progress; option read_retries
  double timeout_s = 30;  ///< a request without an answer is reported after a quarter of it, then given up;
                          ///< option read_timeout
  double first_wait_s = 0.5;      ///< before the first retry, doubles; option read_retry_wait
  double longest_wait_s = 20;     ///< at most, unless first_wait_s is longer
  size_t part = size_t{4} << 20;  ///< bytes of one request; halves when one fails
  size_t smallest_part = size_t{64} << 10;
};

/// What reading cost so far in this process.
struct RemoteCounts {
  int64_t requests = 0;  ///< sent, failed ones too
  int64_t bytes = 0;     ///< received by requests that succeeded
  int64_t retries = 0;
  int64_t stalls = 0;    ///< requests that were reported as without an answer
  double waited_s = 0;   ///< between tries
  double stalled_s = 0;  ///< of the requests counted in stalls
};

void set_remote_options(const RemoteOptions& options);
RemoteOptions remote_options();
RemoteCounts remote_counts();
/// One line about what was counted since the last such line, for `name`.
void log_remote_counts(const std::string& name);

/// A failure that may pass. Thrown by RemoteFile; whoever retries turns it into an Error at the end.
class TransientError : public Error {
 public:
  using Error::Error;
  /// One that hardly ever passes (a host that no name server knows): tried again `most_retries` times at
  /// most.
  TransientError(Error error, int64_t most_retries) : Error(std::move(error)), most_retries_(most_retries) {}
  int64_t most_retries() const noexcept { return most_retries_; }

 private:
  int64_t most_retries_ = INT64_MAX;
};

/// One opened object: each call is one try.
class RemoteFile {
 public:
  RemoteFile() = default;
  virtual ~RemoteFile() = default;
  RemoteFile(const RemoteFile&) = delete;
  RemoteFile& operator=(const RemoteFile&) = delete;
  virtual uint64_t size() const = 0;
  /// Entity tag, or modification time where the store has none; empty: unknown.
  virtual std::string version() const = 0;
  /// As RandomAccess::read_at. Throws TransientError or Error{data}.
  virtual size_t read_at(uint64_t offset, std::span<char> out) = 0;
};
using OpenRemote = std::function<std::shared_ptr<RemoteFile>()>;

/// The tries of one request: after each failure that may pass, failed() waits, or throws Error{resource} when
/// RemoteOptions::retries, or those that the failure allows, are used up.
class RetryLoop {
 public:
  explicit RetryLoop(std::string name);
  void failed(const TransientError& failure);

 private:
  std::string name_;
  RemoteOptions options_;
  int64_t tries_ = 0;
  double longest_s_;
};

/// Runs `attempt` on a thread of its own and waits for it as long as RemoteOptions say. Throws what it threw,
/// or TransientError when it gives no answer; the attempt then runs on to its end by itself, so whatever it
/// uses has to belong to it.
void run_try(const std::string& name, std::function<void()> attempt);

/// What `request` returns, tried until it succeeds; T is returned by a function that owns what it uses.
template <class T>
T with_retries(const std::string& name, const std::function<T()>& request) {
  for (RetryLoop loop(name);;) {
    try {
      const auto result = std::make_shared<T>();
      run_try(name, [request, result] { *result = request(); });
      return std::move(*result);
    } catch (const TransientError& e) {
      loop.failed(e);
    }
  }
}

/// A remote file as one that does not fail.
class RetryingFile final : public RandomAccess {
 public:
  /// Opens it. `name` stands for it in messages.
  RetryingFile(OpenRemote open, std::string name);
  uint64_t size() const override { return size_; }
  const std::string& version() const { return version_; }
  size_t read_at(uint64_t offset, std::span<char> out) override;

 private:
  OpenRemote open_;
  std::string name_;
  std::mutex mutex_;
  std::shared_ptr<RemoteFile> file_;  // guarded by mutex_
  uint64_t size_ = 0;
  std::string version_;
};

/// The bytes of a file front to back; a thread keeps `ahead` parts of RemoteOptions::part read.
class ReadAheadStream final : public ByteStream {
 public:
  explicit ReadAheadStream(RandomAccess& file, size_t ahead = 4);
  uint64_t size() const override { return file_.size(); }
  std::string_view next() override;

 private:
  RandomAccess& file_;
  std::vector<char> current_;
  Ahead<std::vector<char>> parts_;
};

}  // namespace deltatune
