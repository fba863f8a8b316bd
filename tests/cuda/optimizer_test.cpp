// sum_squares, grad_scale and AdamW of the cuda table against the cpu row. AdamW gives the same bits.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cuda/cuda_case.h"
#include "ops/moment_codes.h"

namespace deltatune {
namespace {

using cuda_case::compare;
using cuda_case::compare_bits;
using cuda_case::On;
using parity::Array;

class CudaOptimizer : public cuda_case::Cuda {};

TEST_F(CudaOptimizer, SumSquares) {
  for (const DType dtype : cuda_case::cuda_dtypes) {
    for (const int64_t count : {0, 1, 3, 15, 4095, 4096, 4097, 50001, 5000003}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << count);
      const Array x = parity::random(dtype, {count}, 1);
      Array sum(DType::f64, {1}, {3});
      // Sums in double, in another order.
      compare({{&sum, 1e-24}},
              [&](Stream& stream, const On& on) { ops::sum_squares(stream, on(sum), on(x)); });
    }
  }
}

TEST_F(CudaOptimizer, SumSquaresOfASlice) {
  const Array x = parity::random(DType::bf16, {3, 9001}, 1);
  Array sum(DType::f64, {1}, {0});
  compare({{&sum, 1e-24}},
          [&](Stream& stream, const On& on) { ops::sum_squares(stream, on(sum), on(x).slice(1, 2)); });
}

TEST_F(CudaOptimizer, GradScale) {
  for (const double squares : {0.0, 64.0, 6400.0, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    for (const float max_norm : {0.0f, -1.0f, 2.0f}) {
      SCOPED_TRACE(testing::Message() << squares << ", at most " << max_norm);
      const Array sum(DType::f64, {1}, {squares});
      Array scalars(DType::f32, {8}, {0.5, 0.25, 0.125, 0.125, -1, -1, -1, 9});
      compare({cuda_case::within_ulp(&scalars, 0)},
              [&](Stream& stream, const On& on) { ops::grad_scale(stream, on(scalars), on(sum), max_norm); });
    }
  }
}

/// One step on `count` parameters; master: a separate one beside a parameter of this dtype.
void step(int64_t count, bool own_master, DType param_dtype, double nonfinite, DType moments = DType::f32,
          Rounding rounding = Rounding::nearest, int64_t first = 0) {
  SCOPED_TRACE(testing::Message() << count << " " << name_of(param_dtype) << (own_master ? "" : ", master"));
  Array param = parity::random(param_dtype, {count}, 1, 0.02);
  Array master = parity::random(DType::f32, {count}, 2, 0.02);
  Array m = parity::random(moments, {count}, 3, 1e-3);
  std::vector<double> positive = parity::normal(count, 4, 1e-4);
  for (double& x : positive) x = std::abs(x);
  Array v(moments, {count}, positive);
  const Array grad = parity::random(DType::f32, {count}, 5);
  const Array scalars(DType::f32, {8}, {1e-3, 0.19, 0.0975, 0.125, 0.11, 3, nonfinite, 7});
  AdamwOptions options;
  options.weight_decay = 0.1f;
  options.rounding = rounding;
  options.seed = 5;
  const auto op = [&](Stream& stream, const On& on) {
    const Tensor separate = own_master ? Tensor{} : on(master);
    AdamwTensors tensors{on(param), separate, on(m), on(v), on(grad)};
    tensors.first = first;
    tensors.group = 2;
    ops::adamw(stream, tensors, on(scalars), options);
  };
  const Array before = param;
  if (own_master) {
    compare_bits({cuda_case::within_ulp(&param, 0), &m, &v}, op);
  } else {
    compare_bits({cuda_case::within_ulp(&param, 0), cuda_case::within_ulp(&master, 0), &m, &v}, op);
  }
  EXPECT_EQ(param == before, nonfinite != 0 || count == 0);
}

TEST_F(CudaOptimizer, AdamwGivesTheBitsOfTheCpu) {
  for (const int64_t count : {0, 1, 3, 4, 1027, 100001}) {
    step(count, true, DType::f32, 0);
    step(count, false, DType::bf16, 0);
    step(count, false, DType::f32, 0);
  }
}

TEST_F(CudaOptimizer, AdamwInBf16GivesTheBitsOfTheCpu) {
  for (const Rounding rounding : {Rounding::nearest, Rounding::stochastic}) {
    for (const int64_t count : {1, 3, 4, 5, 1027, 100001}) {
      for (const int64_t first : {0, 1, 4, 12, 256}) {
        step(count, true, DType::bf16, 0, DType::f32, rounding, first);
        step(count, true, DType::bf16, 0, DType::bf16, rounding, first);
        step(count, true, DType::f32, 0, DType::bf16, rounding, first);
        step(count, false, DType::bf16, 0, DType::bf16, rounding, first);
      }
    }
  }
}

/// Two steps with moments in 8-bit codes, the second from what the first has left.
void coded_steps(int64_t count, bool own_master, DType param_dtype, double nonfinite, Rounding rounding,
                 double size, double learning_rate = 1e-3, float eps = 1e-8f) {
  SCOPED_TRACE(testing::Message() << count << " " << name_of(param_dtype) << (own_master ? "" : ", master")
                                  << ", gradients of " << size << ", learning rate " << learning_rate
                                  << ", eps " << eps);
  Array param = parity::random(param_dtype, {count}, 1, 0.02);
  Array master = parity::random(DType::f32, {count}, 2, 0.02);
  Array m(DType::u8, {count}), v(DType::u8, {count});
  Array m_unit(DType::f32, {moment_blocks(count)},
               std::vector<double>(static_cast<size_t>(moment_blocks(count)), 0.0));
  Array v_unit = m_unit;
  for (Array* codes : {&m, &v}) std::fill(codes->view().data, codes->view().data + count, std::byte{0});
  AdamwOptions options;
  options.weight_decay = 0.1f;
  options.rounding = rounding;
  options.seed = 5;
  options.eps = eps;
  for (int n = 1; n <= 2; ++n) {
    // Some elements far below the others of their block, some zero.
    std::vector<double> values = parity::normal(count, 5 + static_cast<uint64_t>(n), size);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] *= i % 7 == 3 ? 0 : std::exp2(-static_cast<double>(i % 31));
    const Array grad(DType::f32, {count}, values);
    const Array scalars(DType::f32, {8},
                        {learning_rate, 0.1 * n, 0.05 * n, 0.125, 0.11, 3, nonfinite, 6.0 + n});
    const auto op = [&](Stream& stream, const On& on) {
      AdamwTensors tensors{on(param), own_master ? Tensor{} : on(master), on(m), on(v), on(grad)};
      tensors.m_unit_b = on(m_unit);
      tensors.v_unit_b = on(v_unit);
      tensors.first = 512;
      tensors.group = 2;
      ops::adamw(stream, tensors, on(scalars), options);
    };
    const Array before = param;
    std::vector<cuda_case::Output> outputs = {{&param, 0}, {&m, 0}, {&v, 0}, {&m_unit, 0}, {&v_unit, 0}};
    if (!own_master) outputs.emplace_back(&master, 0);
    compare_bits(outputs, op);
    if (learning_rate > 1e-6 && size > 1e-8) {  // else a step may be less than bf16 can show
      EXPECT_EQ(param == before, nonfinite != 0 || count == 0);
    }
  }
}

TEST_F(CudaOptimizer, AdamwIn8BitsGivesTheBitsOfTheCpu) {
  for (const Rounding rounding : {Rounding::nearest, Rounding::stochastic}) {
    for (const int64_t count : {1, 8, 127, 128, 129, 255, 1027, 300001}) {
      for (const double size : {1.0, 1e-7, 1e7}) {
        coded_steps(count, true, DType::bf16, 0, rounding, size);
        coded_steps(count, true, DType::f32, 0, rounding, size);
        coded_steps(count, false, DType::bf16, 0, rounding, size);
      }
    }
  }
  coded_steps(1027, false, DType::f32, 0, Rounding::nearest, 1);
  coded_steps(1027, true, DType::bf16, 1, Rounding::stochastic, 1);
}

TEST_F(CudaOptimizer, AdamwIn8BitsGivesTheBitsOfTheCpuAtTheEndsOfTheRange) {
  for (const Rounding rounding : {Rounding::nearest, Rounding::stochastic}) {
    // Gradients whose squares are subnormal, zero or infinite; at 2^20 and 2^-50 some elements of a pack are
    // in the range of the short root and quotient, others are not.
    for (const double size : {1e-38, 1e-25, 1e-15, 1e6, 1e12, 1e25, 1e30})
      coded_steps(20003, true, DType::bf16, 0, rounding, size);
    for (const double learning_rate : {0.0, 1e-38, 1e-29, 1e4})
      coded_steps(20003, false, DType::bf16, 0, rounding, 1, learning_rate);
    for (const float eps : {1e-30f, 1e-12f, 2.0f})
      coded_steps(20003, true, DType::f32, 0, rounding, 1, 1e-3, eps);
  }
}

/// Every weight with every m, v and gradient of these, on both sides of where the short root and quotient
/// end.
TEST_F(CudaOptimizer, AdamwGivesTheBitsOfTheCpuAtTheEndsOfTheRange) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> weights = {0, -0.0, 1, -0x1.fep-3, 0x1p-130, 0x1.fep127, inf, -inf};
  const std::vector<double> firsts = {0,         -0.0,     1e-3,   -0x1p-88,   0x1.02p-89, 0x1.fep-90,
                                      -0x1p-126, 0x1p-133, 0x1p60, -0x1.02p60, 0x1p100};
  const std::vector<double> seconds = {0,      0x1p-133,  0x1.fep-102, 0x1p-101, 1e-4,
                                       0x1p40, 0x1.02p40, 0x1p120,     inf};
  const std::vector<double> gradients = {0, -0.0, 1, 0x1p-60};
  std::vector<double> p, m, v, g;
  for (const double weight : weights) {
    for (const double first : firsts) {
      for (const double second : seconds) {
        for (const double gradient : gradients) {
          if (std::isinf(weight) && std::abs(first) > 1) continue;  // inf - inf: a NaN, and CPUs have others
          p.push_back(weight), m.push_back(first), v.push_back(second), g.push_back(gradient);
        }
      }
    }
  }
  const auto count = static_cast<int64_t>(p.size());
  const Array grad(DType::f32, {count}, g);
  // 0x1.fffffep-28: a reciprocal next to it may not be refined to the right one.
  for (const float eps : {1e-8f, 0x1.fffffep-28f, 0x1.fffffep-3f, 1e-30f}) {
    for (const double learning_rate : {1e-3, 0x1p-10, 0x1p-120}) {
      for (const DType moments : {DType::f32, DType::bf16}) {
        for (const DType weight : {DType::f32, DType::bf16}) {
          for (const Rounding rounding : {Rounding::nearest, Rounding::stochastic}) {
            SCOPED_TRACE(testing::Message() << name_of(weight) << ", moments " << name_of(moments) << ", eps "
                                            << eps << ", learning rate " << learning_rate);
            Array param(weight, {count}, p), first(moments, {count}, m), second(moments, {count}, v);
            const Array scalars(DType::f32, {8}, {learning_rate, 0.19, 0.0975, 0.125, 0.5, 3, 0, 7});
            AdamwOptions options;
            options.eps = eps;
            options.rounding = rounding;
            compare_bits({{&param, 0}, {&first, 0}, {&second, 0}}, [&](Stream& stream, const On& on) {
              AdamwTensors tensors{on(param), {}, on(first), on(second), on(grad)};
              tensors.group = 2;
              ops::adamw(stream, tensors, on(scalars), options);
            });
          }
        }
      }
    }
  }
}

TEST_F(CudaOptimizer, AdamwDoesNothingAfterANonFiniteNorm) {
  step(1027, true, DType::f32, 1);
  step(1027, false, DType::bf16, 1);
}

}  // namespace
}  // namespace deltatune
