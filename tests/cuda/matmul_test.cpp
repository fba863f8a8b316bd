// The kernels of matmul (cuBLASLt, plain) against the cpu row: layouts, dtypes, accumulation, shapes that no
// tile divides, addresses that only the element aligns.
#include "cuda/cuda_case.h"

namespace deltatune {
namespace {

using cuda_case::compare;
using cuda_case::On;
using parity::Array;

struct Types {
  DType in, out;
};
class CudaMatmul : public cuda_case::CudaFixture<testing::TestWithParam<Types>> {};
INSTANTIATE_TEST_SUITE_P(Types, CudaMatmul,
                         testing::Values(Types{DType::f32, DType::f32}, Types{DType::bf16, DType::bf16},
                                         Types{DType::bf16, DType::f32}),
                         [](const auto& test) {
                           return std::string(name_of(test.param.in)) + "_to_" + name_of(test.param.out);
                         });

struct Sizes {
  int64_t m, n, k;
};
const std::vector<Sizes> all_sizes = {{1, 1, 1},     {3, 5, 7},      {1, 64, 64},     {64, 64, 0},
                                      {65, 63, 127}, {127, 257, 64}, {128, 256, 512}, {300, 1000, 257},
                                      {96, 1, 1000}, {2, 1000, 96},  {0, 16, 16},     {64, 136, 2048}};

/// a and b of one product.
struct Operands {
  Array a, b;
  Operands(MatmulLayout layout, DType dtype, Sizes s)
      : a(parity::random(dtype, layout == MatmulLayout::tn ? Shape{s.k, s.m} : Shape{s.m, s.k}, 1)),
        b(parity::random(dtype, layout == MatmulLayout::nt ? Shape{s.n, s.k} : Shape{s.k, s.n}, 2)) {}
};

TEST_P(CudaMatmul, EqualsTheCpuRow) {
  const Types types = GetParam();
  for (const Sizes s : all_sizes) {
    for (const MatmulLayout layout : {MatmulLayout::nt, MatmulLayout::nn, MatmulLayout::tn}) {
      const Operands in(layout, types.in, s);
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(testing::Message() << "m " << s.m << ", n " << s.n << ", k " << s.k << ", layout "
                                        << static_cast<int>(layout) << (accumulate ? ", accumulate" : ""));
        Array c(types.out, {s.m, s.n});
        if (accumulate) c = parity::random(types.out, c.shape(), 3);
        compare({&c}, [&](Stream& stream, const On& on) {
          ops::matmul(stream, on(c), on(in.a), on(in.b), {layout, accumulate});
        });
      }
    }
  }
}

TEST_P(CudaMatmul, SlicesOfOddRows) {
  const Types types = GetParam();
  const Array a = parity::random(types.in, {67, 129}, 1);
  const Array b = parity::random(types.in, {34, 129}, 2);
  Array c(types.out, {67, 33});
  compare({&c}, [&](Stream& stream, const On& on) {
    ops::matmul(stream, on(c).slice(1, 65), on(a).slice(1, 65), on(b).slice(1, 33), {});
  });
}

class CudaMatmulF32 : public cuda_case::Cuda {};

/// TF32 keeps 10 bits of each factor: an error of 1e-7 in this measure instead of 1e-14.
TEST_F(CudaMatmulF32, IsNotRoundedToTf32) {
  const Operands in(MatmulLayout::nt, DType::f32, {256, 256, 1024});
  Array c(DType::f32, {256, 256});
  compare({{&c, 1e-12}},
          [&](Stream& stream, const On& on) { ops::matmul(stream, on(c), on(in.a), on(in.b), {}); });
}

}  // namespace
}  // namespace deltatune
