// A CPU device whose memory starts as 0xff bytes (NaN), so that code that takes fresh memory for zero fails.
#pragma once

#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "ops/kernels.h"
#include "tensor/device.h"

namespace deltatune {

class GarbageDevice final : public Device {
 public:
  const char* name() const override { return "garbage"; }
  Target target() const override { return Target::cpu; }
  size_t available_bytes() const override { return size_t{1} << 30; }

 protected:
  std::unique_ptr<Stream> open_stream(std::string name, const KernelChoice& choice) override {
    return std::make_unique<Inline>(*this, cpu_kernels(), choice, std::move(name));
  }
  std::byte* allocate_raw(size_t bytes) override {
    void* memory = ::operator new (bytes + 1, std::align_val_t{256});
    std::memset(memory, 0xff, bytes);
    return static_cast<std::byte*>(memory);
  }
  void free_raw(std::byte* data, size_t) noexcept override {
    ::operator delete (data, std::align_val_t{256});
  }

 private:
  class Inline final : public Stream {
   public:
    using Stream::Stream;
    void record(Event&) override {}
    void wait(const Event&) override {}
    void sync() override {}
    void upload(Tensor to, const void* host) override {
      if (to.bytes() > 0) std::memcpy(to.data, host, to.bytes());
    }
    void download(void* host, CTensor from) override {
      if (from.bytes() > 0) std::memcpy(host, from.data, from.bytes());
    }
  };
};

}  // namespace deltatune
