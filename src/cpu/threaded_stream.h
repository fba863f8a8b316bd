// A CPU stream that is a thread: what makes a forgotten wait visible to ThreadSanitizer.
//
// The hand-off is one-way: the producer writes a slot of a ring and releases a semaphore, and never takes a
// lock, or acquires a value, that the worker releases - that would order the two threads by accident and hide
// races. Only sync() waits for the worker. A slot may be written again only after a sync(), so more work than
// slots without a sync() is an error, not a wait.
// One producer thread. An exception of a piece of work makes the worker skip all later work; sync() rethrows.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>

#include "tensor/device.h"

namespace deltatune::cpu {

class ThreadedStream : public Stream {
 public:
  static constexpr size_t slots = 16384;

  ThreadedStream(Device& device, const Kernels& kernels, const KernelChoice& choice, std::string name);
  ~ThreadedStream() override;

  void record(Event& event) override;
  void wait(const Event& event) override;
  void sync() override;
  void upload(Tensor to, const void* host) override;
  void download(void* host, CTensor from) override;
  void run(std::function<void()> work) override { submit(std::move(work), false); }
  bool runs_inline() const override { return false; }

 private:
  struct Item {
    std::function<void()> work;  ///< empty: the end
    bool always = false;         ///< runs even after an error (events, so that nobody hangs)
  };
  void submit(std::function<void()> work, bool always);
  void loop();

  std::unique_ptr<std::array<Item, slots>> ring_ = std::make_unique<std::array<Item, slots>>();
  size_t submitted_ = 0;
  size_t synced_ = 0;
  std::counting_semaphore<> ready_{0};
  std::exception_ptr failure_;  ///< the worker's until sync() has seen its event
  std::thread worker_;
};

}  // namespace deltatune::cpu
