// The null table with one row that takes notes.
#include "ops/matmul_tuning.h"

namespace deltatune {

MatmulRecorder::MatmulRecorder(Device& device, std::vector<MatmulCall>& calls)
    : Stream(device, table(), {}, "recorder"), calls_(calls) {}

const Kernels& MatmulRecorder::table() {
  static const Kernels kernels = [] {
    Kernels out = null_kernels();
    out.name = "recorder";
    out.matmul = +[](Stream& stream, Tensor c, CTensor a, CTensor b, MatmulSpec spec) {
      static_cast<MatmulRecorder&>(stream).calls_.push_back({c, a, b, spec});
    };
    return out;
  }();
  return kernels;
}

}  // namespace deltatune
