// Addresses without memory and streams without work.
#include "ops/null_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "ops/kernel_list.h"

namespace deltatune {
namespace {

class NullStream : public Stream {
 public:
  using Stream::Stream;
  void record(Event& event) override { event.native = nullptr; }
  void wait(const Event&) override {}
  void sync() override {}
  void upload(Tensor, const void*) override {}
  void download(void* host, CTensor from) override { std::memset(host, 0, from.bytes()); }
};

class NullDevice : public Device {
 public:
  explicit NullDevice(const DeviceFacts& facts) : facts_(facts) {}
  const char* name() const override { return "null"; }
  Target target() const override { return facts_.target; }
  DeviceFacts facts() const override { return facts_; }
  size_t available_bytes() const override { return SIZE_MAX; }
  bool is_null() const override { return true; }

 protected:
  std::unique_ptr<Stream> open_stream(std::string name, const KernelChoice& choice) override {
    return std::make_unique<NullStream>(*this, null_kernels(), choice, std::move(name));
  }
  std::byte* allocate_raw(size_t bytes) override {
    std::byte* address = reinterpret_cast<std::byte*>(next_);
    next_ += bytes + 256;
    return address;
  }
  void free_raw(std::byte*, size_t) noexcept override {}
  // The host writes here whatever the device is. Memory that nobody writes to is not taken, and may be more
  // than this machine has.
  std::byte* allocate_staging_raw(size_t bytes) override {
    void* data = ::mmap(nullptr, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
  }
  void free_staging_raw(std::byte* data, size_t bytes) noexcept override {
    ::munmap(data, std::max<size_t>(bytes, 1));
  }

 private:
  DeviceFacts facts_;
  // Above any address of a user program, and apart from a measuring arena's.
  uintptr_t next_ = uintptr_t{1} << 61;
};

}  // namespace

std::unique_ptr<Device> make_null_device(const DeviceFacts& facts) {
  return std::make_unique<NullDevice>(facts);
}

std::unique_ptr<Device> make_null_device(Target target) {
  return make_null_device(target == Target::cuda ? planned_cuda(90) : DeviceFacts{});
}

}  // namespace deltatune
