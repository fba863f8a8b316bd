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
#include "cpu/device.h"
#include "ops/null_device.h"
#include "ops/op.h"
#include "ops/ops.h"
#include "ops/parity.h"
#include "ops/segments.h"

namespace deltatune::delta_net_case {

/// Array and its fill of NaN and sentinel are those of all op tests.
using parity::Array;

/// Bit equality of rows [begin, end) of the first dimension.
inline bool same_rows(const Array& a, const Array& b, int64_t begin, int64_t end) {
  const CTensor x = a.view().slice(begin, end - begin), y = b.view().slice(begin, end - begin);
  return x.bytes() == y.bytes() && std::memcmp(x.data, y.data, x.bytes()) == 0;
}

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

/// Runs `op` twice: on the null device, which tells the scratch it wants, then on the cpu device with exactly
/// that much scratch, filled with NaN and followed by a sentinel. Returns what the stream counted.
inline OpTotals run(Op which, const std::function<void(Stream&)>& op) {
  const std::unique_ptr<Device> null_device = make_null_device(Target::cpu);
  const std::unique_ptr<Stream> plan = null_device->make_stream("plan");
  op(*plan);
  const std::unique_ptr<Device> device = make_cpu_device();
  const std::unique_ptr<Stream> stream = device->make_stream("test");
  Array scratch(DType::u8, {static_cast<int64_t>(plan->scratch_wish())});
  stream->set_scratch({scratch.view().data, plan->scratch_wish()});
  op(*stream);
  EXPECT_TRUE(scratch.intact()) << "scratch overrun of " << deltatune::name_of(which);
  EXPECT_EQ(stream->scratch_wish(), plan->scratch_wish());
  const OpTotals& totals = stream->totals()[static_cast<size_t>(which)];
  EXPECT_EQ(totals.flops, plan->totals()[static_cast<size_t>(which)].flops);
  EXPECT_EQ(totals.bytes, plan->totals()[static_cast<size_t>(which)].bytes);
  return totals;
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

using parity::nmse;

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
