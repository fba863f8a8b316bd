// Host memory that is really there, and the direct stream.
//
// Linux hands out more memory than it has and kills the process that touches it. So a large request is first
// compared with what the machine (MemAvailable) and the control group (memory.max, less what is in use) still
// have, and its pages are touched at once: the next request sees them as taken.
#include "cpu/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <new>
#include <string>
#include <string_view>

#include "cpu/threaded_stream.h"
#include "ops/kernels.h"

namespace deltatune {
namespace {

constexpr size_t alignment = 256;
constexpr size_t page = 4096;
constexpr size_t large = size_t{64} << 20;

/// The number in a one-line file; `missing` if it is not there or not a number ("max").
size_t read_number(const char* path, size_t missing) {
  std::ifstream file(path);
  size_t value = 0;
  return file >> value ? value : missing;
}

/// The sum of the values of these keys in a file of "key value ..." lines.
size_t sum_of_keys(const char* path, std::initializer_list<std::string_view> keys) {
  std::ifstream file(path);
  std::string key;
  std::string rest;
  size_t value = 0;
  size_t sum = 0;
  while (file >> key >> value && std::getline(file, rest)) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) sum += value;
  }
  return sum;
}

/// Bytes that can still be had; the largest size_t when the machine does not say. File pages that a control
/// group has cached count as free: they are given up on demand.
size_t available_memory() {
  constexpr size_t unknown = std::numeric_limits<size_t>::max();
  const size_t machine = sum_of_keys("/proc/meminfo", {"MemAvailable:"}) * 1024;
  const size_t available = machine ? machine : unknown;
  const size_t limit = read_number("/sys/fs/cgroup/memory.max", unknown);
  if (limit == unknown) return available;
  const size_t cached = sum_of_keys("/sys/fs/cgroup/memory.stat", {"active_file", "inactive_file"});
  const size_t current = read_number("/sys/fs/cgroup/memory.current", 0);
  const size_t used = current > cached ? current - cached : 0;
  return std::min(available, limit > used ? limit - used : 0);
}

class DirectStream : public Stream {
 public:
  using Stream::Stream;
  void record(Event& event) override { event.native = nullptr; }
  void wait(const Event&) override {}
  void sync() override {}
  void upload(Tensor to, const void* host) override { std::memcpy(to.data, host, to.bytes()); }
  void download(void* host, CTensor from) override { std::memcpy(host, from.data, from.bytes()); }
};

class CpuDevice : public Device {
 public:
  explicit CpuDevice(StreamMode mode) : mode_(mode) {}
  const char* name() const override { return "cpu"; }
  Target target() const override { return Target::cpu; }
  size_t available_bytes() const override { return available_memory(); }

 protected:
  std::unique_ptr<Stream> open_stream(std::string name, const KernelChoice& choice) override {
    if (mode_ == StreamMode::threaded)
      return std::make_unique<cpu::ThreadedStream>(*this, cpu_kernels(), choice, std::move(name));
    return std::make_unique<DirectStream>(*this, cpu_kernels(), choice, std::move(name));
  }
  std::byte* allocate_raw(size_t bytes) override {
    if (bytes >= large && bytes > available_memory()) return nullptr;
    void* memory = ::operator new (std::max(bytes, alignment), std::align_val_t{alignment}, std::nothrow);
    if (memory && bytes >= large) touch(memory, bytes);
    return static_cast<std::byte*>(memory);
  }
  void free_raw(std::byte* data, size_t) noexcept override {
    ::operator delete (data, std::align_val_t{alignment});
  }

 private:
  static void touch(void* memory, size_t bytes) {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t first = (address + page - 1) / page * page;
    const uintptr_t end = (address + bytes) / page * page;
#ifdef MADV_HUGEPAGE
    madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);  // a wish; failing is fine
#endif
    for (uintptr_t p = first; p < end; p += page) *reinterpret_cast<volatile char*>(p) = 0;
  }

  StreamMode mode_;
};

void check_instruction_set() {
#if defined(__x86_64__)
  [[maybe_unused]] const auto require = [](bool present, const char* name) {
    if (present) return;
    throw Error(ErrorKind::resource, std::string("this CPU has no ") + name + " instructions",
                "the CPU kernels of this build use them",
                "configure with -DDELTATUNE_CPU_FLAGS=-march=x86-64 and build again");
  };
#ifdef __AVX2__
  require(__builtin_cpu_supports("avx2"), "AVX2");
#endif
#ifdef __FMA__
  require(__builtin_cpu_supports("fma"), "FMA");
#endif
#ifdef __AVX512F__
  require(__builtin_cpu_supports("avx512f"), "AVX-512");
#endif
#endif
}

}  // namespace

std::unique_ptr<Device> make_cpu_device(StreamMode mode) {
  check_instruction_set();
  return std::make_unique<CpuDevice>(mode);
}

}  // namespace deltatune
