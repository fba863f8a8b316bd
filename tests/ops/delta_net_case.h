// What the tests of the Gated DeltaNet ops share: arrays with sentinels, packed rows, a stream whose scratch
// is exactly what the op announced, central differences and error measures.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "cpu/cpu_ops.h"
#include "ops/op.h"
#include "ops/ops.h"
#include "ops/segments.h"

namespace deltatune::delta_net_case {

/// An array in a dtype, filled with NaN at first and followed by a sentinel of 1 KiB.
class Array {
 public:
  Array() = default;
  Array(DType dtype, Shape shape) : dtype_(dtype), shape_(shape) {
    memory_.assign(bytes() + sentinel_bytes, std::byte{0xff});
    std::fill(memory_.begin() + static_cast<std::ptrdiff_t>(bytes()), memory_.end(), std::byte{0xa5});
  }
  Array(DType dtype, Shape shape, const std::vector<double>& values) : Array(dtype, shape) {
    DELTATUNE_ASSERT(static_cast<int64_t>(values.size()) == shape.count());
    convert(memory_.data(), dtype, values.data(), DType::f64, shape.count());
  }

  Tensor view() { return {memory_.data(), dtype_, shape_}; }
  int64_t count() const { return shape_.count(); }
  size_t bytes() const { return static_cast<size_t>(count()) * size_of(dtype_); }
  std::vector<double> values() const {
    std::vector<double> out(static_cast<size_t>(count()));
    convert(out.data(), DType::f64, memory_.data(), dtype_, count());
    return out;
  }
  bool intact() const {
    return std::all_of(memory_.begin() + static_cast<std::ptrdiff_t>(bytes()), memory_.end(),
                       [](std::byte b) { return b == std::byte{0xa5}; });
  }
  bool untouched() const {
    return std::all_of(memory_.begin(), memory_.begin() + static_cast<std::ptrdiff_t>(bytes()),
                       [](std::byte b) { return b == std::byte{0xff}; });
  }
  bool same_bits(const Array& other) const { return memory_ == other.memory_; }
  /// Bit equality of rows [begin, end) of the first dimension.
  bool same_rows(const Array& other, int64_t begin, int64_t end) const {
    const size_t row = bytes() / static_cast<size_t>(shape_[0]);
    return std::memcmp(memory_.data() + static_cast<size_t>(begin) * row,
                       other.memory_.data() + static_cast<size_t>(begin) * row,
                       static_cast<size_t>(end - begin) * row) == 0;
  }

 private:
  static constexpr size_t sentinel_bytes = 1024;
  DType dtype_ = DType::f32;
  Shape shape_{0};
  std::vector<std::byte> memory_;
};

/// One packed row: documents of the given lengths, with room for more documents and chunks than it has.
struct Row {
  std::vector<int32_t> starts, cu_seqlens, positions, chunks;
  int64_t tokens = 0;
  int64_t num_chunks = 0;

  explicit Row(const std::vector<int32_t>& lengths) {
    starts.push_back(0);
    for (size_t d = 0; d < lengths.size(); ++d) {
      for (int32_t p = 0; p < lengths[d]; ++p) positions.push_back(p);
      for (int32_t p = 0, n = 0; p < lengths[d]; p += static_cast<int32_t>(gdn_chunk), ++n) {
        const int32_t length = std::min(static_cast<int32_t>(gdn_chunk), lengths[d] - p);
        chunks.insert(chunks.end(), {static_cast<int32_t>(d), starts.back() + p, length, n});
        ++num_chunks;
      }
      starts.push_back(starts.back() + lengths[d]);
    }
    tokens = starts.back();
    cu_seqlens = starts;
    cu_seqlens.resize(starts.size() + 3, starts.back());
    chunks.resize(static_cast<size_t>(4 * capacity()), 0);
  }
  int64_t capacity() const { return num_chunks + 3; }
  int64_t begin(size_t document) const { return starts[document]; }
  int64_t end(size_t document) const { return starts[document + 1]; }
  Segments segments() const {
    const auto view = [](const std::vector<int32_t>& x, Shape shape) {
      return CTensor{reinterpret_cast<const std::byte*>(x.data()), DType::i32, shape};
    };
    return {view(cu_seqlens, {static_cast<int64_t>(cu_seqlens.size())}), view(positions, {tokens}),
            view(chunks, {capacity(), 4}), starts, num_chunks};
  }
};

/// The lengths around which chunks, taps and document starts go wrong.
inline std::vector<int32_t> edge_lengths() {
  return {1, 64, 2, 65, 3, 128, 4, 63, 5, 1};
}

/// A device without memory: its streams run inline, all arrays are the test's own.
class HostDevice : public Device {
 public:
  const char* name() const override { return "host"; }
  Target target() const override { return Target::cpu; }
  std::unique_ptr<Stream> make_stream(std::string) override { return nullptr; }

 protected:
  std::byte* allocate_raw(size_t) override { return nullptr; }
  void free_raw(std::byte*, size_t) noexcept override {}
};
class HostStream : public Stream {
 public:
  HostStream(Device& device, const Kernels& kernels) : Stream(device, kernels, "test") {}
  void record(Event&) override {}
  void wait(const Event&) override {}
  void sync() override {}
  void upload(Tensor, const void*) override {}
  void download(void*, CTensor) override {}
};

/// The cpu table as far as these ops go.
inline const Kernels& kernels() {
  static const Kernels table = [] {
    Kernels t = null_kernels();
    t.gdn_prologue_forward = cpu::gdn_prologue_forward;
    t.gdn_prologue_backward = cpu::gdn_prologue_backward;
    t.gated_delta_forward = cpu::gated_delta_forward;
    t.gated_delta_backward = cpu::gated_delta_backward;
    t.gated_rmsnorm_forward = cpu::gated_rmsnorm_forward;
    t.gated_rmsnorm_backward = cpu::gated_rmsnorm_backward;
    return t;
  }();
  return table;
}

/// Runs `op` twice: on the null table, which tells the scratch it wants, then on the cpu table with exactly
/// that much scratch, filled with NaN and followed by a sentinel. Returns what the stream counted.
inline OpTotals run(Op which, const std::function<void(Stream&)>& op) {
  HostDevice device;
  HostStream plan(device, null_kernels());
  op(plan);
  HostStream stream(device, kernels());
  Array scratch(DType::u8, {static_cast<int64_t>(plan.scratch_wish())});
  stream.set_scratch({scratch.view().data, plan.scratch_wish()});
  op(stream);
  EXPECT_TRUE(scratch.intact()) << "scratch overrun of " << name_of(which);
  EXPECT_EQ(stream.scratch_wish(), plan.scratch_wish());
  EXPECT_EQ(stream.totals()[static_cast<size_t>(which)].flops,
            plan.totals()[static_cast<size_t>(which)].flops);
  return stream.totals()[static_cast<size_t>(which)];
}

inline std::vector<double> normals(Rng& rng, int64_t count, double scale = 1) {
  std::vector<double> out(static_cast<size_t>(count));
  for (double& x : out) x = scale * rng.normal();
  return out;
}

/// As the dtype stores it.
inline std::vector<double> rounded(const std::vector<double>& x, DType dtype) {
  return Array(dtype, {static_cast<int64_t>(x.size())}, x).values();
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// |x - y|^2 / |y|^2; 0 when both are 0, NaN when a value is missing.
inline double nmse(const std::vector<double>& x, const std::vector<double>& reference) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += (x[i] - reference[i]) * (x[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  return error == 0 ? 0 : error / norm;
}

inline double largest_difference(const std::vector<double>& x, const std::vector<double>& y) {
  double largest = x.size() == y.size() ? 0 : INFINITY;
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = std::fabs(x[i] - y[i]);
    if (!(d <= largest)) largest = d;  // NaN sticks
  }
  return largest;
}

/// Compares `gradient` of `loss` with respect to x with central differences: along three random directions,
/// which between them see every element, and for up to 24 single elements, the first and last among them.
/// `tolerance` is relative to 1 + |derivative|.
inline void check_gradient(const char* name, std::vector<double>& x, const std::vector<double>& gradient,
                           const std::function<double()>& loss, double step = 1e-5, double tolerance = 1e-6) {
  ASSERT_EQ(x.size(), gradient.size()) << name;
  Rng rng(77, x.size());
  const std::vector<double> start = x;
  const auto compare = [&](const std::vector<double>& direction, const std::string& where) {
    double loss_at[2];
    for (int side = 0; side < 2; ++side) {
      for (size_t i = 0; i < x.size(); ++i) x[i] = start[i] + (side ? step : -step) * direction[i];
      loss_at[side] = loss();
    }
    x = start;
    const double numeric = (loss_at[1] - loss_at[0]) / (2 * step);
    const double analytic = dot(gradient, direction);
    EXPECT_LE(std::fabs(numeric - analytic), tolerance * (1 + std::fabs(numeric)))
        << name << " " << where << ": " << analytic << " but differences give " << numeric;
  };
  for (int trial = 0; trial < 3; ++trial) {
    compare(normals(rng, static_cast<int64_t>(x.size()), 1 / std::sqrt(static_cast<double>(x.size()))),
            "direction " + std::to_string(trial));
  }
  for (size_t trial = 0; trial < std::min<size_t>(24, x.size()); ++trial) {
    const size_t i = trial == 0 ? 0 : trial == 1 ? x.size() - 1 : static_cast<size_t>(rng.below(x.size()));
    std::vector<double> unit(x.size(), 0);
    unit[i] = 1;
    compare(unit, "element " + std::to_string(i));
  }
}

}  // namespace deltatune::delta_net_case
