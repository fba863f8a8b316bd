// Marks around repetitions. The queue is filled without waiting, so that the host's time hides behind the
// device's; reading leaves clean lines in the cache, which writing would not.
#include "train/bench_timer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/median.h"
#include "ops/matmul_tuning.h"
#include "ops/ops.h"
#include "train/random_fill.h"

namespace deltatune {
namespace {

constexpr int most_repetitions = 60;

size_t block_bytes(const Device& device) {
  return device.target() == Target::cuda ? size_t{512} << 20 : size_t{64} << 20;
}

}  // namespace

BenchTimer::BenchTimer(Device& device, Stream& stream)
    : device_(device),
      block_(device.allocate(block_bytes(device), "cache flush", "bench", Lifetime::run)),
      sum_(device.allocate(sizeof(double), "sum", "bench", Lifetime::run)) {
  RandomFill random;
  random.normal(stream, {block_.data(), DType::bf16, {static_cast<int64_t>(block_.size() / 2)}});
}

void BenchTimer::read_block(Stream& stream) {
  // Half of it: twice to five times the caches of today.
  const Tensor x{block_.data(), DType::bf16, {static_cast<int64_t>(block_.size() / 4)}};
  ops::sum_squares(stream, {sum_.data(), DType::f64, {1}}, x);
}

double BenchTimer::median_seconds(Stream& stream, const std::function<void(Stream&)>& run, bool cold,
                                  double budget) {
  const auto timed = [&](Moment& begin, Moment& end) {
    if (cold) read_block(stream);
    stream.mark(begin);
    run(stream);
    stream.mark(end);
  };
  Moment begin, end;
  run(stream);
  timed(begin, end);
  const double once = std::max(stream.seconds_between(begin, end), 1e-7);
  const auto repetitions =
      static_cast<size_t>(std::clamp(std::floor(budget / once), 3.0, double{most_repetitions}));
  std::vector<Moment> begins(repetitions), ends(repetitions);
  for (size_t i = 0; i < repetitions; ++i) timed(begins[i], ends[i]);
  std::vector<double> seconds;
  for (size_t i = 0; i < repetitions; ++i) seconds.push_back(stream.seconds_between(begins[i], ends[i]));
  return median(seconds);
}

MachineRates BenchTimer::rates(Stream& stream, DType storage) {
  MachineRates out;
  const auto half = static_cast<int64_t>(block_.size() / 2);
  const Tensor low{block_.data(), DType::u8, {half}};
  const Tensor high{block_.data() + half, DType::u8, {half}};
  const double copy = median_seconds(
      stream, [&](Stream& on) { on.copy(high, low); }, false);
  out.copy_gb_s = 2 * static_cast<double>(half) / copy * 1e-9;
  // Three squares of it fit the block: 8192 on a GPU in bf16.
  const double most =
      std::sqrt(static_cast<double>(block_.size()) / 3 / static_cast<double>(size_of(storage)));
  const int64_t limit = device_.target() == Target::cuda ? 8192 : 1024;
  while (out.gemm_size == 0 || static_cast<double>(out.gemm_size) > most)
    out.gemm_size = out.gemm_size == 0 ? limit : out.gemm_size / 2;
  const int64_t n = out.gemm_size;
  const size_t bytes = static_cast<size_t>(n * n) * size_of(storage);
  const auto square = [&](size_t i) { return Tensor{block_.data() + i * bytes, storage, {n, n}}; };
  RandomFill random;
  for (size_t i = 0; i < 2; ++i) random.normal(stream, square(i));
  const MatmulCall call{square(2), square(0), square(1), {}};
  MatmulTuning tuning;
  tuning.calls = {call};
  tuning.fill = [&](Stream& on, Tensor x) { random.normal(on, x); };
  device_.prepare(stream, tuning);
  const double gemm = median_seconds(
      stream, [&](Stream& on) { ops::matmul(on, call.c, call.a, call.b, call.spec); }, false);
  const auto side = static_cast<double>(n);
  out.gemm_tflop_s = 2 * side * side * side / gemm * 1e-12;
  random.normal(stream, {block_.data(), DType::bf16, {static_cast<int64_t>(block_.size() / 2)}});
  return out;
}

}  // namespace deltatune
