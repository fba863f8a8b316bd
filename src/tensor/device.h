// Device, Buffer, Stream and Event: the same four on the CPU, on CUDA and on the null device of `plan`.
//
// Work given to a stream runs in order; between streams only record/wait order it; the host may read nothing
// before sync(). All memory comes from Device::allocate, which keeps the memory plan and counts: after the
// trainer is built the count never changes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tensor/memory_plan.h"
#include "tensor/tensor.h"

namespace deltatune {

struct Kernels;       // ops/kernels.h
struct KernelEntry;   // ops/kernel_list.h
struct MatmulTuning;  // ops/matmul_tuning.h
class Device;

/// Which kernels' requirements and scratch sizes apply. The null device plans for a target.
enum class Target { cpu, cuda };

/// What the choice of kernels depends on besides shapes.
struct DeviceFacts {
  Target target = Target::cpu;
  int sm = 0;     ///< compute capability, 90: 9.0; 0 on the CPU
  int cudnn = 0;  ///< version, 91900: 9.19.0; 0: none
};

/// The kernel of each op, by number (ops/op.h). nullptr: the op's plain kernel.
inline constexpr size_t max_ops = 64;
using KernelChoice = std::array<const KernelEntry*, max_ops>;

/// One allocation; gives its memory back when it is destroyed. Contents are undefined at first.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, std::byte* data, size_t size, bool staging = false)
      : device_(device), data_(data), size_(size), staging_(staging) {}
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::span<std::byte> span() const { return {data_, size_}; }
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(staging_, other.staging_);
  }
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  bool staging_ = false;  ///< from allocate_staging
};

/// A point in a stream's work. Filled by Stream::record; what it holds is the device's business.
struct Event {
  std::shared_ptr<void> native;
};

/// A point in a stream's work whose distance to another can be measured. Filled by Stream::mark.
struct Moment {
  std::shared_ptr<void> native;
  double seconds = 0;
};

/// What one op cost so far on a stream: the counters that plan, meters and profiler read.
struct OpTotals {
  int64_t calls = 0;
  double bytes = 0;    ///< read and written, each tensor once
  double flops = 0;    ///< multiplications and additions
  double seconds = 0;  ///< host time inside the call; 0 unless timing is on
};

/// Work that a stream captured, to be launched as a whole as often as wanted. It works on the memory that it
/// was captured with; what differs from launch to launch has to lie in that memory.
struct Graph {
  std::shared_ptr<void> native;  ///< nullptr: nothing was captured
  int64_t nodes = 0;             ///< kernels, copies and fills in it
};

/// An ordered queue of work with the kernel table to run it on, scratch memory and per-op counters.
class Stream {
 public:
  /// `kernels` is the table of the functions of `choice`.
  Stream(Device& device, const Kernels& kernels, const KernelChoice& choice, std::string name)
      : device_(device), kernels_(&kernels), choice_(choice), name_(std::move(name)) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() const { return device_; }
  const Kernels& kernels() const { return *kernels_; }
  const KernelChoice& choice() const { return choice_; }
  const std::string& name() const { return name_; }
  /// The machine's own handle (a cudaStream_t), or nullptr.
  virtual void* native() const { return nullptr; }

  virtual void record(Event& event) = 0;
  virtual void wait(const Event& event) = 0;
  /// Returns when all work so far is done; rethrows an error of that work.
  virtual void sync() = 0;
  /// Returns when the work before record(event) is done, or later. The event is one of this stream.
  virtual void host_wait(const Event&) { sync(); }
  /// Marks this point of the work; on a GPU without waiting for it.
  virtual void mark(Moment& moment);
  /// Seconds of the machine's own clock from one mark of this stream to a later one; waits for the later one.
  virtual double seconds_between(const Moment& begin, const Moment& end);
  /// Copies host bytes to device memory of this stream's device, or back. `host` stays valid until sync(), or
  /// host_wait() for an event behind the copy. Host memory of Device::allocate_staging never makes the caller
  /// wait.
  virtual void upload(Tensor to, const void* host) = 0;
  virtual void download(void* host, CTensor from) = 0;
  /// Copies between memories of this stream's device; same number of bytes.
  virtual void copy(Tensor to, CTensor from) { upload(to, from.data); }

  /// Whether ops can be captured: between begin_capture() and end_capture() they are noted instead of run.
  /// Neither sync() nor another way of waiting is allowed meanwhile.
  virtual bool can_capture() const { return false; }
  virtual void begin_capture() { DELTATUNE_ASSERT(can_capture()); }
  /// Throws Error{internal} when something could not be captured; nothing was run then.
  virtual Graph end_capture() { return {}; }
  /// Ends a capture that failed; what was noted is dropped.
  virtual void abandon_capture() noexcept {}
  /// Queues the captured work.
  virtual void launch(const Graph&) { DELTATUNE_ASSERT(can_capture()); }

  /// Runs `work` in stream order: at once (the default), or on the stream's own thread.
  virtual void run(std::function<void()> work) { work(); }
  /// True when run() calls its argument before returning: ops then skip the std::function.
  virtual bool runs_inline() const { return true; }

  /// Scratch of the op that is running: at most what the memory plan reserved.
  std::byte* scratch(size_t bytes) const {
    DELTATUNE_ASSERT(bytes <= scratch_.size());
    return scratch_.data();
  }
  void set_scratch(std::span<std::byte> memory) { scratch_ = memory; }
  /// Ops announce what the selected kernel needs; the largest wish of a measured step becomes the
  /// reservation.
  void require_scratch(size_t bytes) {
    if (bytes > scratch_wish_) scratch_wish_ = bytes;
  }
  size_t scratch_wish() const { return scratch_wish_; }

  std::array<OpTotals, max_ops>& totals() { return totals_; }
  const std::array<OpTotals, max_ops>& totals() const { return totals_; }
  bool timing() const { return timing_; }
  void set_timing(bool on) { timing_ = on; }

 private:
  Device& device_;
  const Kernels* kernels_;
  KernelChoice choice_;
  std::string name_;
  std::span<std::byte> scratch_;
  size_t scratch_wish_ = 0;
  std::array<OpTotals, max_ops> totals_{};
  bool timing_ = false;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const char* name() const = 0;  ///< "cpu", "cuda:0", "null"
  virtual Target target() const = 0;
  /// True on the null device: addresses must not be touched and nothing is computed.
  virtual bool is_null() const { return false; }
  virtual DeviceFacts facts() const { return {target(), 0, 0}; }
  /// A stream that runs the kernels of `choice` (select_kernels in ops/kernel_list.h makes one).
  std::unique_ptr<Stream> make_stream(std::string name, const KernelChoice& choice = {}) {
    return open_stream(std::move(name), choice);
  }

  /// What a device decides once about the matrix products of a run (ops/matmul_tuning.h). The CPU: nothing.
  virtual void prepare(Stream&, MatmulTuning&) {}

  /// A thread calls it before it uses streams of this device; the thread that opened the device need not.
  virtual void use_in_this_thread() {}
  /// Bytes that could be allocated now; SIZE_MAX on the null device.
  virtual size_t available_bytes() const = 0;

  /// Throws Error{resource} with the plan's largest regions when the memory is not there.
  Buffer allocate(size_t bytes, std::string name, std::string owner, Lifetime lifetime);
  /// Host memory of a run for copies from and to the device: pinned where there is such a thing, the device's
  /// own memory where the host is the device. Listed in the plan.
  Buffer allocate_staging(size_t bytes, std::string name, std::string owner);
  const MemoryPlan& plan() const { return plan_; }
  uint64_t allocation_count() const { return allocation_count_; }
  /// Bytes held now.
  size_t allocated_bytes() const { return allocated_bytes_; }

 protected:
  virtual std::unique_ptr<Stream> open_stream(std::string name, const KernelChoice& choice) = 0;
  /// nullptr: no memory.
  virtual std::byte* allocate_raw(size_t bytes) = 0;
  virtual void free_raw(std::byte* data, size_t bytes) noexcept = 0;
  virtual std::byte* allocate_staging_raw(size_t bytes) { return allocate_raw(bytes); }
  virtual void free_staging_raw(std::byte* data, size_t bytes) noexcept { free_raw(data, bytes); }

 private:
  friend class Buffer;
  Buffer add(std::byte* data, Region region, bool staging);
  void release(std::byte* data, size_t bytes, bool staging) noexcept;

  MemoryPlan plan_;
  uint64_t allocation_count_ = 0;
  size_t allocated_bytes_ = 0;
};

}  // namespace deltatune
