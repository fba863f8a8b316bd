// The dense rows of the cuda table against the cpu row: embedding, norms, matmul, elementwise, loss,
// optimizer.
#include "cuda/cuda_case.h"

namespace deltatune {
namespace {

using cuda_case::compare;
using cuda_case::On;
using cuda_case::within_ulp;
using parity::Array;

TEST(CudaPlugin, LoadsWhereItWasBuilt) {
  std::string why;
  if (cuda_plugin(why)) return;
  if (why.rfind("there is no", 0) == 0) GTEST_SKIP() << why;
  FAIL() << why;
}

class CudaDense : public cuda_case::CudaStorage {};
INSTANTIATE_TEST_SUITE_P(Storage, CudaDense, testing::ValuesIn(cuda_case::cuda_dtypes),
                         [](const auto& test) { return std::string(name_of(test.param)); });

const std::vector<int64_t> token_counts = {1, 2, 3, 63, 64, 65, 127, 300};
const std::vector<int64_t> widths = {2, 64, 257, 1000, 5120};
constexpr float eps = 1e-6f;

TEST_P(CudaDense, Norms) {
  const DType dtype = GetParam();
  for (const int64_t tokens : token_counts) {
    for (const int64_t width : widths) {
      SCOPED_TRACE(testing::Message() << tokens << " x " << width);
      const Array x = parity::random(dtype, {tokens, width}, 1);
      const Array w = parity::random(dtype, {width}, 2, 0.3);
      const Array dy = parity::random(dtype, {tokens, width}, 3);
      Array y(dtype, x.shape());
      Array rstd(DType::f32, {tokens});
      compare({&y, &rstd}, [&](Stream& stream, const On& on) {
        ops::rmsnorm_forward(stream, on(y), on(rstd), on(x), on(w), eps);
      });
      Array dx(dtype, x.shape());
      Array dw = parity::random(DType::f32, {width}, 4);
      compare({&dx, &dw}, [&](Stream& stream, const On& on) {
        ops::rmsnorm_backward(stream, on(dx), on(dw), on(dy), on(x), on(w), on(rstd));
      });
    }
  }
}

}  // namespace
}  // namespace deltatune
