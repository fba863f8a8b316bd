// What op tests share: host arrays with sentinels, packed rows, a runner whose scratch is exactly what the op
// announced, seeded inputs and error measures.
//
// Rules of every test here: inputs are rounded to storage before both sides see them; outputs start as NaN,
// so an element that is not written shows; every array is followed by 1 KiB of sentinel; ops run twice and
// must give the same bits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/rng.h"
#include "cpu/device.h"
#include "ops/null_device.h"
#include "ops/op.h"
#include "ops/ops.h"

namespace deltatune::parity {

/// Host memory of one tensor, filled with bytes 0xff (NaN in every floating dtype, -1 in integers).
class Array {
 public:
  Array() = default;
  Array(DType dtype, Shape shape) : dtype_(dtype), shape_(shape) {
    memory_.assign(bytes() + sentinel_bytes, std::byte{0xff});
    std::fill(memory_.begin() + static_cast<std::ptrdiff_t>(bytes()), memory_.end(), std::byte{0xa5});
  }
  /// Values rounded to dtype.
  Array(DType dtype, Shape shape, const std::vector<double>& values) : Array(dtype, shape) { set(values); }

  Tensor view() { return {memory_.data(), dtype_, shape_}; }
  CTensor view() const { return {memory_.data(), dtype_, shape_}; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t count() const { return shape_.count(); }
  size_t bytes() const { return static_cast<size_t>(count()) * size_of(dtype_); }

  void set(const std::vector<double>& values) {
    DELTATUNE_ASSERT(static_cast<int64_t>(values.size()) == count());
    if (dtype_ == DType::i32) {
      for (size_t i = 0; i < values.size(); ++i) view().as<int32_t>()[i] = static_cast<int32_t>(values[i]);
    } else {
      convert(memory_.data(), dtype_, values.data(), DType::f64, count());
    }
  }
  std::vector<double> values() const {
    std::vector<double> out(static_cast<size_t>(count()));
    if (dtype_ == DType::i32) {
      for (size_t i = 0; i < out.size(); ++i) out[i] = view().as<int32_t>()[i];
    } else if (dtype_ == DType::u8) {
      for (size_t i = 0; i < out.size(); ++i) out[i] = view().as<uint8_t>()[i];
    } else {
      convert(out.data(), DType::f64, memory_.data(), dtype_, count());
    }
    return out;
  }
  /// The values and the sentinel behind them, for copies to another machine.
  std::span<std::byte> memory() { return memory_; }
  std::span<const std::byte> memory() const { return memory_; }
  bool intact() const {
    return std::all_of(memory_.begin() + static_cast<std::ptrdiff_t>(bytes()), memory_.end(),
                       [](std::byte b) { return b == std::byte{0xa5}; });
  }
  bool operator==(const Array& other) const { return memory_ == other.memory_; }

 private:
  static constexpr size_t sentinel_bytes = 1024;
  DType dtype_ = DType::f32;
  Shape shape_{0};
  std::vector<std::byte> memory_;
};

/// `count` normal values around 0.
inline std::vector<double> normal(int64_t count, uint64_t stream, double deviation = 1) {
  Rng rng(20240611, stream);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) value = deviation * rng.normal();
  return values;
}

/// An array of normal values, rounded to dtype.
inline Array random(DType dtype, Shape shape, uint64_t stream, double deviation = 1) {
  return {dtype, shape, normal(shape.count(), stream, deviation)};
}

/// Integers in [0, limit).
inline Array random_ids(Shape shape, int32_t limit, uint64_t stream) {
  Rng rng(20240612, stream);
  Array out(DType::i32, shape);
  for (int64_t i = 0; i < shape.count(); ++i)
    out.view().as<int32_t>()[i] = static_cast<int32_t>(rng.below(static_cast<uint64_t>(limit)));
  return out;
}

/// A packed row of documents with these lengths.
struct Row {
  std::vector<int32_t> starts{0};
  Array cu_seqlens, positions, chunks;
  int64_t tokens = 0;
  int64_t num_chunks = 0;

  explicit Row(const std::vector<int32_t>& lengths) {
    std::vector<double> place, pieces;
    for (size_t d = 0; d < lengths.size(); ++d) {
      for (int32_t p = 0; p < lengths[d]; ++p) place.push_back(p);
      for (int32_t p = 0, n = 0; p < lengths[d]; p += static_cast<int32_t>(gdn_chunk), ++n) {
        const int32_t length = std::min(static_cast<int32_t>(gdn_chunk), lengths[d] - p);
        for (const int32_t x : {static_cast<int32_t>(d), starts.back() + p, length, n}) pieces.push_back(x);
      }
      starts.push_back(starts.back() + lengths[d]);
    }
    tokens = starts.back();
    num_chunks = static_cast<int64_t>(pieces.size()) / 4;
    cu_seqlens = Array(DType::i32, {static_cast<int64_t>(starts.size())}, {starts.begin(), starts.end()});
    positions = Array(DType::i32, {tokens}, place);
    chunks = Array(DType::i32, {num_chunks, 4}, pieces);
  }

  Segments segments() const {
    return {cu_seqlens.view(), positions.view(), chunks.view(), starts, num_chunks};
  }
};

/// Lists of document lengths for tests: one token, one document, block edges, many one-token documents.
inline std::vector<std::vector<int32_t>> document_lists() {
  return {{1}, {2}, {63}, {64}, {65}, {1, 1, 1}, {3, 1, 64, 1, 2}, {65, 129, 1, 63}, {130, 1}};
}

/// Runs an op on the cpu device with a scratch of exactly the announced size, a sentinel behind it.
class Runner {
 public:
  void operator()(const std::function<void(Stream&)>& op) {
    const auto planned = null_->make_stream("plan");
    op(*planned);
    const size_t size = planned->scratch_wish();
    const Buffer scratch = cpu_->allocate(size + sentinel, "scratch", "test", Lifetime::op);
    std::fill(scratch.data(), scratch.data() + size, std::byte{0xff});
    std::fill(scratch.data() + size, scratch.data() + scratch.size(), std::byte{0xa5});
    const auto stream = cpu_->make_stream("test");
    stream->set_scratch(scratch.span().first(size));
    op(*stream);
    stream->sync();
    EXPECT_EQ(stream->scratch_wish(), size);
    EXPECT_TRUE(std::all_of(scratch.data() + size, scratch.data() + scratch.size(), [](std::byte b) {
      return b == std::byte{0xa5};
    })) << "an op wrote behind its scratch";
  }

 private:
  static constexpr size_t sentinel = 1024;
  std::unique_ptr<Device> null_ = make_null_device(Target::cpu);
  std::unique_ptr<Device> cpu_ = make_cpu_device();
};

/// Runs the op twice from the same start of `outputs`; expects equal bits, intact sentinels and no NaN left.
inline void run_twice(const std::vector<Array*>& outputs, const std::function<void(Stream&)>& op) {
  std::vector<Array> start;
  for (const Array* output : outputs) start.push_back(*output);
  Runner run;
  run(op);
  std::vector<Array> first;
  for (size_t i = 0; i < outputs.size(); ++i) {
    first.push_back(*outputs[i]);
    *outputs[i] = start[i];
  }
  run(op);
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_TRUE(*outputs[i] == first[i]) << "output " << i << " differs between two runs";
    EXPECT_TRUE(outputs[i]->intact()) << "output " << i << " was overrun";
    for (const double value : outputs[i]->values()) {
      if (std::isnan(value)) {
        ADD_FAILURE() << "output " << i << " has NaN";
        break;
      }
    }
  }
}

/// Normalised mean square error: sum (x - y)^2 / (sum x^2 + sum y^2), the form of DeepGEMM's calc_diff; 0
/// where both are zero.
inline double nmse(const std::vector<double>& x, const std::vector<double>& y) {
  EXPECT_EQ(x.size(), y.size());
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += (x[i] - y[i]) * (x[i] - y[i]);
    norm += x[i] * x[i] + y[i] * y[i];
  }
  return norm > 0 ? error / norm : error;
}

/// The rounding contract: what an array in `dtype` may differ from its double reference.
inline double bound(DType dtype) {
  return dtype == DType::bf16 ? 1e-5 : dtype == DType::f32 ? 1e-10 : 1e-26;
}

inline void expect_close(const Array& actual, const std::vector<double>& expected, const char* what) {
  EXPECT_LE(nmse(actual.values(), expected), bound(actual.dtype())) << what;
}

inline const std::vector<DType> storage_dtypes = {DType::f64, DType::f32, DType::bf16};

}  // namespace deltatune::parity
