// The ring and the worker of a threaded stream.
#include "cpu/threaded_stream.h"

#include <cstring>

namespace deltatune::cpu {
namespace {

using Flag = std::atomic<bool>;

void raise_flag(Flag& flag) {
  flag.store(true, std::memory_order_release);
  flag.notify_all();
}

}  // namespace

ThreadedStream::ThreadedStream(Device& device, const Kernels& kernels, const KernelChoice& choice,
                               std::string name)
    : Stream(device, kernels, choice, std::move(name)), worker_([this] { loop(); }) {}

ThreadedStream::~ThreadedStream() {
  // A full ring needs room for the end mark: the worker is behind, wait for it.
  if (submitted_ - synced_ >= slots - 1) {
    try {
      sync();
    } catch (...) {  // NOLINT(bugprone-empty-catch): nobody is left to report to
    }
  }
  (*ring_)[submitted_ % slots] = {};
  ready_.release();
  worker_.join();
}

void ThreadedStream::submit(std::function<void()> work, bool always) {
  // The last slot is kept for sync() and the end mark.
  if (submitted_ - synced_ >= slots - (always ? 1 : 2)) {
    throw Error(ErrorKind::internal, "threaded stream \"" + name() + "\": too much work without sync()");
  }
  (*ring_)[submitted_ % slots] = {std::move(work), always};
  ++submitted_;
  ready_.release();
}

void ThreadedStream::record(Event& event) {
  const auto flag = std::make_shared<Flag>(false);
  event.native = flag;
  submit([flag] { raise_flag(*flag); }, true);
}

void ThreadedStream::wait(const Event& event) {
  if (!event.native) return;
  const auto flag = std::static_pointer_cast<Flag>(event.native);
  submit([flag] { flag->wait(false, std::memory_order_acquire); }, true);
}

void ThreadedStream::sync() {
  Event done;
  record(done);
  std::static_pointer_cast<Flag>(done.native)->wait(false, std::memory_order_acquire);
  synced_ = submitted_;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadedStream::upload(Tensor to, const void* host) {
  run([to, host] { std::memcpy(to.data, host, to.bytes()); });
}

void ThreadedStream::download(void* host, CTensor from) {
  run([host, from] { std::memcpy(host, from.data, from.bytes()); });
}

void ThreadedStream::loop() {
  for (size_t i = 0;; ++i) {
    ready_.acquire();
    const Item item = std::move((*ring_)[i % slots]);
    if (!item.work) return;
    if (failure_ && !item.always) continue;
    try {
      item.work();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
}

}  // namespace deltatune::cpu
