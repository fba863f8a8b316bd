// Cross-entropy of rows of logits, with the gradient in place if wanted.
//
// Per row: m = max, Z = sum e^(x - m), loss = log Z + m - x[target], d = e^(x - m) / Z - onehot. Exponentials
// in compute type; their sums per 1024 columns are added in double. Row losses are added in row order.
#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "cpu/cpu_ops.h"
#include "cpu/vector.h"
#include "ops/scratch.h"

namespace deltatune::cpu {
namespace {

constexpr int64_t column_block = 1024;

template <class T>
double row_loss(T* dlogits, const T* logits, int64_t width, int32_t target) {
  using C = compute_t<T>;
  const C top = max_of<C>(width, [&](int64_t j) { return widen(logits[j]); });
  double total = 0;
  for (int64_t j0 = 0; j0 < width; j0 += column_block) {
    total += static_cast<double>(sum_of<C>(std::min(column_block, width - j0),
                                           [&](int64_t j) { return exp_of(widen(logits[j0 + j]) - top); }));
  }
  const double loss = std::log(total) + static_cast<double>(top) - static_cast<double>(widen(logits[target]));
  if (dlogits) {
    const C scale = static_cast<C>(1.0 / total);
    const C probability = exp_of(widen(logits[target]) - top) * scale;
    for (int64_t j = 0; j < width; ++j) dlogits[j] = narrow<T>(exp_of(widen(logits[j]) - top) * scale);
    dlogits[target] = narrow<T>(probability - C{1});
  }
  return loss;
}

template <class T>
void cross_entropy_as(Stream& stream, Tensor loss_sum_1, Tensor dlogits_NV, CTensor logits_NV,
                      CTensor targets_N) {
  const int64_t rows = logits_NV.dim(0);
  const int64_t width = logits_NV.dim(1);
  const auto* targets = targets_N.as<int32_t>();
  auto* losses = reinterpret_cast<double*>(stream.scratch(scratch::cross_entropy(Target::cpu, rows)));
  parallel_for(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      T* dlogits = dlogits_NV.empty() ? nullptr : dlogits_NV.as<T>() + n * width;
      DELTATUNE_ASSERT(targets[n] < width);
      if (targets[n] >= 0) {
        losses[n] = row_loss(dlogits, logits_NV.as<T>() + n * width, width, targets[n]);
        continue;
      }
      losses[n] = 0;
      if (dlogits) std::fill(dlogits, dlogits + width, T{});
    }
  });
  double sum = 0;
  for (int64_t n = 0; n < rows; ++n) sum += losses[n];
  loss_sum_1.as<double>()[0] += sum;
}

}  // namespace

void cross_entropy(Stream& stream, Tensor loss_sum_1, Tensor dlogits_NV, CTensor logits_NV,
                   CTensor targets_N) {
  by_float(logits_NV.dtype, [&](auto zero) {
    cross_entropy_as<decltype(zero)>(stream, loss_sum_1, dlogits_NV, logits_NV, targets_N);
  });
}

}  // namespace deltatune::cpu
