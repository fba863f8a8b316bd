// How a CUDA kernel is tested against the cpu row: the same op, the same inputs, both machines.
//
// A case is a list of outputs and a function that calls the op. Arrays (ops/parity.h) are given to the op as
// on(array): the array's own memory on the CPU, a copy of it on the GPU. An array that is not an output is an
// input and must not be changed. Outputs start from what they hold (NaN, unless the test sets them). Every
// buffer on the GPU is followed by 1 KiB of sentinel; every second case shifts all of them by 16 bytes (the
// alignment of a slice of rows). The op runs on every kernel of the list that takes the case's shapes (fast
// and plain: cuda/kernel_cases.h), twice each, over differently filled scratch, and must give the same bits.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/kernel_cases.h"
#include "ops/cuda_plugin.h"
#include "ops/parity.h"

namespace deltatune::cuda_case {

using parity::Array;

/// The first GPU, opened once; nullptr with the reason where there is none.
inline Device* cuda_device(std::string& why) {
  struct Opened {
    std::unique_ptr<Device> device;
    std::string why;
    Opened() {
      try {
        device = make_cuda_device(0);
      } catch (const Error& error) {
        why = error.what();
      }
    }
  };
  static const Opened opened;
  why = opened.why;
  return opened.device.get();
}

/// Base of every test that needs a GPU: skipped with the reason where there is none.
template <class Base = testing::Test>
class CudaFixture : public Base {
 protected:
  void SetUp() override {
    std::string why;
    if (!cuda_device(why)) GTEST_SKIP() << why;
  }
};
/// TEST_F(Cuda, ...), and TEST_P(CudaStorage, ...) over f32 and bf16 (INSTANTIATE it in each program file
/// under a derived class of its own name).
class Cuda : public CudaFixture<> {};
class CudaStorage : public CudaFixture<testing::TestWithParam<DType>> {};

inline const std::vector<DType> cuda_dtypes = {DType::f32, DType::bf16};

/// Where the arrays of a case lie on the machine that the op runs on.
class On {
 public:
  explicit On(std::function<Tensor(const Array&)> place) : place_(std::move(place)) {}
  /// The array on this machine. What is not listed as an output must not be written.
  Tensor operator()(const Array& array) const { return place_(array); }
  Segments segments(const parity::Row& row) const {
    return {(*this)(row.cu_seqlens), (*this)(row.positions), (*this)(row.chunks), row.starts, row.num_chunks};
  }

 private:
  std::function<Tensor(const Array&)> place_;
};
using Op = std::function<void(Stream&, const On&)>;

/// What an output may differ by from the cpu row.
struct Output {
  Array* array;
  double nmse = -1;       ///< negative: the rounding contract of its dtype (parity::bound)
  int64_t ulp = -1;       ///< largest distance in units of the last place; negative: not checked
  double fast_nmse = -1;  ///< bound of kernels that are not plain; negative: nmse
  Output(Array* a, double error = -1, int64_t places = -1)  // NOLINT(google-explicit-constructor)
      : array(a), nmse(error), ulp(places) {}
};
/// Fast kernels round operands of matrix products to bf16: `error` (1e-4 in the contract) bounds them.
inline Output rounds_inside(Array* array, double error = 1e-4, double plain_error = -1) {
  Output output(array, plain_error);
  output.fast_nmse = error;
  return output;
}
/// Checked to `places` units of the last place, element by element.
inline Output within_ulp(Array* array, int64_t places) {
  return {array, -1, places};
}

/// Copies of a case's arrays on the GPU, made as the op asks for them.
class CudaMemory {
 public:
  /// `shift`: bytes behind the 256-byte alignment at which every array starts.
  CudaMemory(Device& device, Stream& stream, size_t shift)
      : device_(device), stream_(stream), shift_(shift) {}

  /// The array's place; uploaded from `source` when it is first asked for.
  Tensor place(const Array& array, const Array& source) {
    Buffer& copy = copies_[&array];
    if (!copy.data()) {
      copy = device_.allocate(array.memory().size() + shift_, "array", "test", Lifetime::op);
      stream_.upload(bytes_of(copy, array), source.memory().data());
    }
    return {copy.data() + shift_, array.dtype(), array.shape()};
  }
  /// Calls f(array, its memory now) for every array.
  void each(const std::function<void(const Array&, const Array&)>& f) {
    for (auto& [array, copy] : copies_) {
      Array now = *array;
      stream_.download(now.memory().data(), bytes_of(copy, *array));
      stream_.sync();
      f(*array, now);
    }
  }

 private:
  Tensor bytes_of(const Buffer& copy, const Array& array) const {
    return {copy.data() + shift_, DType::u8, {static_cast<int64_t>(array.memory().size())}};
  }
  Device& device_;
  Stream& stream_;
  size_t shift_;
  std::unordered_map<const Array*, Buffer> copies_;
};

/// Runs the op on the GPU, served by `kernel`, from `start` of the outputs; the outputs' memory afterwards.
/// `scratch_fill` is what the scratch holds before.
inline std::vector<Array> run_on_cuda(const KernelEntry& kernel, const std::vector<Output>& outputs,
                                      const std::vector<Array>& start, const Op& op, size_t shift,
                                      int scratch_fill) {
  std::string why;
  Device& device = *cuda_device(why);
  const KernelChoice choice = choice_with(kernel);
  const auto stream = device.make_stream("test", choice);
  CudaMemory memory(device, *stream, shift);
  const On on([&](const Array& array) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].array == &array) return memory.place(array, start[i]);
    }
    return memory.place(array, array);
  });
  // Scratch of exactly what the op announces for this target, a sentinel behind it.
  const auto null = make_null_device(device.facts());
  const auto planned = null->make_stream("plan", choice);
  op(*planned, on);
  constexpr size_t sentinel = 1024;
  const size_t size = planned->scratch_wish();
  std::vector<std::byte> filling(size + sentinel, static_cast<std::byte>(scratch_fill));
  std::fill(filling.begin() + static_cast<std::ptrdiff_t>(size), filling.end(), std::byte{0xa5});
  const Buffer scratch = device.allocate(filling.size(), "scratch", "test", Lifetime::op);
  const Tensor whole{scratch.data(), DType::u8, {static_cast<int64_t>(filling.size())}};
  stream->upload(whole, filling.data());
  stream->sync();
  stream->set_scratch(scratch.span().first(size));
  op(*stream, on);
  stream->sync();
  EXPECT_EQ(stream->scratch_wish(), size) << "the plan and the run disagree about scratch";
  stream->download(filling.data(), whole);
  stream->sync();
  EXPECT_TRUE(std::all_of(filling.begin() + static_cast<std::ptrdiff_t>(size), filling.end(),
                          [](std::byte b) { return b == std::byte{0xa5}; }))
      << "the op wrote behind its scratch";
  std::vector<Array> results = start;
  memory.each([&](const Array& array, const Array& now) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].array != &array) continue;
      EXPECT_TRUE(now.intact()) << "output " << i << " was overrun";
      results[i] = now;
      return;
    }
    EXPECT_TRUE(now == array) << "an input of shape " << to_string(array.shape()) << " was changed";
  });
  return results;
}

/// Bits of element i of an f32 or bf16 array as an integer that orders like the value.
inline int64_t ordered_bits(const Array& array, int64_t i) {
  const std::byte* data = array.memory().data();
  if (array.dtype() == DType::bf16) {
    int16_t bits;
    std::memcpy(&bits, data + 2 * i, 2);
    return bits < 0 ? -int64_t{bits & 0x7fff} : int64_t{bits};
  }
  int32_t bits;
  std::memcpy(&bits, data + 4 * i, 4);
  return bits < 0 ? -int64_t{bits & 0x7fffffff} : int64_t{bits};
}

/// Compares one output with the cpu row. An element that both leave unwritten (NaN) is equal.
inline void expect_same(const Array& cuda, const Array& cpu, const Output& allowed, size_t number,
                        const KernelEntry& kernel) {
  std::vector<double> x = cuda.values();
  std::vector<double> y = cpu.values();
  int64_t worst = 0;
  size_t worst_at = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if ((std::isnan(x[i]) && std::isnan(y[i])) || (std::isinf(x[i]) && x[i] == y[i])) {
      x[i] = y[i] = 0;
      continue;
    }
    if (std::isnan(x[i]) || std::isnan(y[i])) {
      ADD_FAILURE() << "output " << number << " of shape " << to_string(cpu.shape()) << ": element " << i
                    << " is " << x[i] << ", the cpu row has " << y[i];
      return;
    }
    if (allowed.ulp < 0) continue;
    const auto at = static_cast<int64_t>(i);
    const int64_t places = std::abs(ordered_bits(cuda, at) - ordered_bits(cpu, at));
    if (places <= worst) continue;
    worst = places;
    worst_at = i;
  }
  if (allowed.ulp >= 0) {
    EXPECT_LE(worst, allowed.ulp) << "output " << number << " of shape " << to_string(cpu.shape())
                                  << ": element " << worst_at << " is " << x[worst_at] << ", the cpu row has "
                                  << y[worst_at];
  }
  double bound = allowed.nmse < 0 ? parity::bound(cpu.dtype()) : allowed.nmse;
  if (kernel.speed == KernelSpeed::fast && allowed.fast_nmse >= 0) bound = allowed.fast_nmse;
  EXPECT_LE(parity::nmse(x, y), bound) << "output " << number << " of shape " << to_string(cpu.shape());
}

/// What a kernel gave.
struct Result {
  const KernelEntry* kernel;
  std::vector<Array> outputs;
};

/// Runs the op on the CPU, and twice on the GPU with each kernel that takes the case, and compares. The
/// outputs then hold the CPU's results; those of the GPU are returned.
inline std::vector<Result> compare(const std::vector<Output>& outputs, const Op& op) {
  static size_t cases = 0;
  const size_t shift = ++cases % 2 == 0 ? 16 : 0;
  SCOPED_TRACE(testing::Message() << "buffers shifted by " << shift << " bytes");
  std::vector<Array> start;
  for (const Output& output : outputs) start.push_back(*output.array);
  const On host([](const Array& array) { return const_cast<Array&>(array).view(); });
  parity::Runner run;
  run([&](Stream& stream) { op(stream, host); });
  std::string why;
  const DeviceFacts facts = cuda_device(why)->facts();
  const auto null = make_null_device(facts);
  const auto kernels = fitting_kernels(*null, facts, [&](Stream& stream) { op(stream, host); });
  EXPECT_FALSE(kernels.empty());
  std::vector<Result> results;
  for (const KernelEntry* kernel : kernels) {
    SCOPED_TRACE(kernel->name);
    std::vector<Array> first = run_on_cuda(*kernel, outputs, start, op, shift, 0xff);
    const std::vector<Array> second = run_on_cuda(*kernel, outputs, start, op, shift, 0x3c);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (kernel->deterministic) {
        EXPECT_TRUE(first[i] == second[i]) << "output " << i << " differs between two runs";
      }
      expect_same(first[i], *outputs[i].array, outputs[i], i, *kernel);
    }
    results.push_back({kernel, std::move(first)});
  }
  return results;
}

/// compare(), and the same bits as the cpu row.
inline void compare_bits(const std::vector<Output>& outputs, const Op& op) {
  for (const Result& result : compare(outputs, op)) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_TRUE(result.outputs[i] == *outputs[i].array)
          << result.kernel->name << ": output " << i << " differs from the cpu row";
    }
  }
}

}  // namespace deltatune::cuda_case
