// Timing of one piece of work on a stream, the same for ops and whole steps: device time between two marks
// (CUDA events on a GPU, the clock on the CPU), caches cold or warm, the median of many.
#pragma once

#include <functional>

#include "tensor/device.h"

namespace deltatune {

/// What the machine reaches at best, measured in the same process: the denominators of every share.
struct MachineRates {
  double copy_gb_s = 0;     ///< device copy, bytes read plus written, 1e9 per second
  double gemm_tflop_s = 0;  ///< one large matrix product in the storage dtype, random values
  int64_t gemm_size = 0;    ///< of its three sides
};

class BenchTimer {
 public:
  /// Allocates a block larger than any cache (512 MiB on a GPU, 64 MiB on the CPU) and fills it with random
  /// values by way of the stream.
  BenchTimer(Device&, Stream&);

  /// Seconds of run(stream), median of as many repetitions as fit `budget` seconds (at least 3), after one
  /// that warms up. cold: before each repetition a block larger than the caches is read, outside of the
  /// measured time (the stream needs scratch for its sum_squares kernel).
  double median_seconds(Stream& stream, const std::function<void(Stream&)>& run, bool cold,
                        double budget = 0.06);

  /// Copy and matrix product (the stream needs scratch for its matmul kernel).
  MachineRates rates(Stream& stream, DType storage);

 private:
  void read_block(Stream& stream);
  Device& device_;
  Buffer block_, sum_;
};

}  // namespace deltatune
