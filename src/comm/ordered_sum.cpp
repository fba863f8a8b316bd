// Blocks of the sum in a buffer that stays in the cache.
#include "comm/ordered_sum.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace deltatune {
namespace {

constexpr int64_t block = 1024;

template <class T>
void sum(Tensor out, std::span<const CTensor> parts, bool add) {
  T* to = out.as<T>();
  std::array<T, block> total, next;
  for (int64_t begin = 0; begin < out.count(); begin += block) {
    const int64_t n = std::min(block, out.count() - begin);
    bool first = true;
    for (const CTensor& part : parts) {
      const std::byte* from = part.data + static_cast<size_t>(begin) * size_of(part.dtype);
      convert(first ? total.data() : next.data(), dtype_of<T>, from, part.dtype, n);
      for (size_t i = 0; !first && i < static_cast<size_t>(n); ++i) total[i] += next[i];
      first = false;
    }
    for (int64_t i = 0; i < n; ++i) {
      const T value = total[static_cast<size_t>(i)];
      to[begin + i] = add ? to[begin + i] + value : value;
    }
  }
}

void sum_as(Tensor out, std::span<const CTensor> parts, bool add) {
  DELTATUNE_ASSERT(!parts.empty() && (out.dtype == DType::f32 || out.dtype == DType::f64));
  for (const CTensor& part : parts) DELTATUNE_ASSERT(part.count() == out.count());
  if (out.count() == 0) return;
  if (out.dtype == DType::f32) {
    sum<float>(out, parts, add);
  } else {
    sum<double>(out, parts, add);
  }
}

}  // namespace

void add_ordered(Tensor chunk, std::span<const CTensor> parts) {
  sum_as(chunk, parts, true);
}

void sum_ordered(Tensor x, std::span<const CTensor> parts) {
  sum_as(x, parts, false);
}

}  // namespace deltatune
