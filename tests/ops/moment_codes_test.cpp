// Adam's moments in 8-bit codes: the codes themselves, and AdamW on them against double arithmetic.
#include "ops/moment_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "ops/optimizer.h"
#include "ops/parity.h"
#include "ops/rounding.h"

namespace deltatune {
namespace {

using parity::Array;

double value_of(uint32_t bits) {
  return static_cast<double>(std::bit_cast<float>(bits));
}

TEST(MomentCodes, AValueOfTheGridIsNeverRounded) {
  for (const uint32_t random : {0u, 1u, 0x8000u, 0xffffu}) {
    for (uint32_t code = 0; code < 256; ++code) {
      EXPECT_EQ(moment1_code(moment1_bits(code), random), code);
      EXPECT_EQ(moment2_code(moment2_bits(code), random), code);
    }
  }
}

TEST(MomentCodes, CodesOrderLikeTheirValues) {
  for (uint32_t code = 1; code < 256; ++code) {
    EXPECT_GT(value_of(moment2_bits(code)), value_of(moment2_bits(code - 1)));
    if (code < 128) {
      EXPECT_GT(value_of(moment1_bits(code)), value_of(moment1_bits(code - 1)));
      EXPECT_EQ(value_of(moment1_bits(code | 128)), -value_of(moment1_bits(code)));
      EXPECT_EQ(moment1_bits_of_word(code << 24), moment1_bits(code));
      EXPECT_EQ(moment1_bits_of_word((code | 128) << 24), moment1_bits(code | 128));
    }
  }
}

TEST(MomentCodes, TheUnitPutsTheLargestIntoTheHighestBinade) {
  Rng rng(7);
  for (const uint32_t top : {moment1_top, moment2_top}) {
    for (int i = 0; i < 2000; ++i) {
      const auto largest = static_cast<float>(std::exp(rng.uniform(-80, 9)));
      const uint32_t exponent = block_exponent(std::bit_cast<uint32_t>(largest), top);
      const double unit = value_of(unit_bits(exponent, top));
      EXPECT_EQ(unit * value_of(inverse_unit_bits(exponent, top)), 1);
      const double scaled = static_cast<double>(largest) / unit;
      // Rounded up to the grid it is in [2^(top - 127), 2^(top - 126)).
      EXPECT_LT(scaled, std::ldexp(1.9375, static_cast<int>(top) - 127));
      EXPECT_GT(scaled, std::ldexp(0.9375, static_cast<int>(top) - 127));
    }
  }
}

TEST(MomentCodes, RoundingGoesToANeighbourAndIsRightOnAverage) {
  Rng rng(8);
  for (int i = 0; i < 200; ++i) {
    // From the highest binade down into gradual underflow.
    const auto x =
        static_cast<float>(std::ldexp(rng.uniform(1, 1.8), -112 - static_cast<int>(rng.below(18))));
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    double sum = 0;
    constexpr int steps = 1 << 12;
    for (int r = 0; r < steps; ++r) {
      const uint32_t code = moment1_code(bits, static_cast<uint32_t>(r) << 4);
      const double got = value_of(moment1_bits(code));
      const double next = value_of(moment1_bits(code + (got > static_cast<double>(x) ? -1u : 1u)));
      ASSERT_TRUE((got - static_cast<double>(x)) * (next - static_cast<double>(x)) <= 0) << x;
      sum += got;
    }
    const uint32_t below = bits >> 20;
    const double gap = value_of((below + 1) << 20) - value_of(below << 20);
    EXPECT_NEAR(sum / steps, static_cast<double>(x), gap / steps) << x;
  }
}

TEST(MomentCodes, ShortCodesAreTheSameWhereNoneSaturates) {
  Rng rng(9);
  for (int i = 0; i < 20000; ++i) {
    // A block's largest magnitude over the whole range of floats, and one that is not above it.
    const uint32_t largest = static_cast<uint32_t>(rng.below(0x7f800000u));
    const uint32_t magnitude = i % 3 == 0 ? largest : static_cast<uint32_t>(rng.below(uint64_t{largest} + 1));
    const auto value = std::bit_cast<float>(magnitude);
    for (const uint32_t random : {0u, static_cast<uint32_t>(rng.below(0x10000)), 0xffffu}) {
      const uint32_t m_exponent = block_exponent(largest, moment1_top);
      if (none_saturates(m_exponent, moment1_top)) {
        const auto inverse = std::bit_cast<float>(inverse_unit_bits(m_exponent, moment1_top));
        for (const float signed_value : {value, -value}) {
          const uint32_t bits = std::bit_cast<uint32_t>(signed_value * inverse);
          ASSERT_EQ(moment1_word_in_range(bits, random << 4 | 8) >> 24, moment1_code(bits, random))
              << bits << " " << random;
        }
      } else {
        EXPECT_GE(largest, 0x46700001u);  // 2^14 less a sixteenth
      }
      const uint32_t v_exponent = block_exponent(largest, moment2_top);
      if (none_saturates(v_exponent, moment2_top)) {
        const auto inverse = std::bit_cast<float>(inverse_unit_bits(v_exponent, moment2_top));
        const uint32_t bits = std::bit_cast<uint32_t>(value * inverse);
        ASSERT_EQ(moment2_word_in_range(bits, random << 4 | 8) >> 24, moment2_code(bits, random))
            << bits << " " << random;
      }
    }
  }
}

TEST(MomentCodes, AboveZeroVIsNeverZero) {
  for (const float v : {0x1p-149f, 0x1p-140f, 0x1p-130f}) {
    for (const uint32_t random : {0u, 0x8000u, 0xffffu})
      EXPECT_GE(moment2_code(std::bit_cast<uint32_t>(v), random), 1);
  }
  EXPECT_EQ(moment2_code(0, 0xffff), 0);
}

TEST(MomentCodes, RandomNumbersOfAnElementAreThreeDifferentOnes) {
  const Philox4 words = rounding_words(1, 2, 3, 4);
  EXPECT_EQ(words.x[0], philox(1, uint64_t{2} << 32 | 3, 4).x[0]);
  for (int j = 0; j < 8; ++j) {
    const RoundingBits bits = rounding_bits(words, j);
    const auto number = [&](int k) { return words.x[k / 2] >> (k % 2 * 16) & 0xffff; };
    EXPECT_EQ(bits.param, number(j));
    EXPECT_EQ(bits.m, number((j + 3) % 8));
    EXPECT_EQ(bits.v, number((j + 5) % 8));
    EXPECT_NE(bits.param, bits.m);
    EXPECT_NE(bits.param, bits.v);
    EXPECT_NE(bits.m, bits.v);
  }
}

/// A parameter range with its moments in codes.
struct Coded {
  int64_t count;
  Array param, master, m, v, m_unit, v_unit, grad;
  AdamwOptions options{.weight_decay = 0.1f, .rounding = Rounding::stochastic, .seed = 21};

  explicit Coded(int64_t n, DType dtype = DType::f32)
      : count(n),
        param(parity::random(dtype, {n}, 1, 0.02)),
        master(DType::f32, {n}, param.values()),
        m(DType::u8, {n}),
        v(DType::u8, {n}),
        m_unit(DType::f32, {moment_blocks(n)}, zeros(moment_blocks(n))),
        v_unit(DType::f32, {moment_blocks(n)}, zeros(moment_blocks(n))),
        grad(DType::f32, {n}) {
    std::fill(m.view().data, m.view().data + n, std::byte{0});
    std::fill(v.view().data, v.view().data + n, std::byte{0});
  }
  static std::vector<double> zeros(int64_t n) { return std::vector<double>(static_cast<size_t>(n), 0.0); }
  std::vector<double> moment1() const { return decode(m, m_unit, moment1_bits); }
  std::vector<double> moment2() const { return decode(v, v_unit, moment2_bits); }

  /// Elements [begin, end), begin a multiple of 128, as a rank would that has only them.
  void step(int n, double rate, bool own_master = true, int64_t begin = 0, int64_t end = -1,
            double nonfinite = 0) {
    if (end < 0) end = count;
    const double b1 = static_cast<double>(options.beta1);
    const double b2 = static_cast<double>(options.beta2);
    const Array scalars(
        DType::f32, {8},
        {rate, 1 - std::pow(b1, n), 1 - std::pow(b2, n), 1, 1, 1, nonfinite, static_cast<double>(n)});
    const auto cut = [&](Array& x) { return x.view().slice(begin, end - begin); };
    const auto units = [&](Array& x) {
      return x.view().slice(begin / moment_block, moment_blocks(end - begin));
    };
    parity::Runner run;
    run([&](Stream& s) {
      AdamwTensors t{cut(param), own_master ? Tensor{} : cut(master), cut(m), cut(v), cut(grad)};
      t.m_unit_b = units(m_unit);
      t.v_unit_b = units(v_unit);
      t.first = begin;
      t.group = 3;
      ops::adamw(s, t, scalars.view(), options);
    });
    for (const Array* x : {&param, &master, &m, &v, &m_unit, &v_unit}) EXPECT_TRUE(x->intact());
  }
  bool operator==(const Coded& o) const {
    return param == o.param && master == o.master && m == o.m && v == o.v && m_unit == o.m_unit &&
           v_unit == o.v_unit;
  }

 private:
  std::vector<double> decode(const Array& codes, const Array& units, uint32_t (*bits)(uint32_t)) const {
    std::vector<double> out;
    const auto* code = codes.view().as<uint8_t>();
    const auto* unit = units.view().as<float>();
    for (int64_t i = 0; i < count; ++i)
      out.push_back(static_cast<double>(std::bit_cast<float>(bits(code[i])) * unit[i / moment_block]));
    return out;
  }
};

TEST(Adamw8Bit, AStepIsTheFormulaRoundedToNeighbours) {
  for (const int64_t count : {1, 7, 127, 128, 129, 1003, 20001}) {
    SCOPED_TRACE(count);
    Coded c(count);
    for (int n = 1; n <= 3; ++n) {
      c.grad = parity::random(DType::f32, {count}, 10 + static_cast<uint64_t>(n));
      const std::vector<double> p = c.param.values(), m = c.moment1(), v = c.moment2(), g = c.grad.values();
      c.step(n, 1e-2);
      const double b1 = static_cast<double>(c.options.beta1), b2 = static_cast<double>(c.options.beta2);
      const std::vector<double> new_p = c.param.values(), new_m = c.moment1(), new_v = c.moment2();
      std::vector<double> moved, expected;
      for (size_t i = 0; i < p.size(); ++i) {
        const double mi = b1 * m[i] + (1 - b1) * g[i];
        const double vi = b2 * v[i] + (1 - b2) * g[i] * g[i];
        expected.push_back(-1e-2 * 0.1 * p[i] - 1e-2 * (mi / (1 - std::pow(b1, n))) /
                                                    (std::sqrt(vi / (1 - std::pow(b2, n))) + 1e-8));
        moved.push_back(new_p[i] - p[i]);
        // A gap is at most an eighth of the value, or what lies below 2^-13 of the block's largest.
        double largest_m = 0, largest_v = 0;
        const size_t block = i / moment_block * moment_block;
        for (size_t k = block; k < std::min(p.size(), block + moment_block); ++k) {
          largest_m = std::max(largest_m, std::abs(b1 * m[k] + (1 - b1) * g[k]));
          largest_v = std::max(largest_v, b2 * v[k] + (1 - b2) * g[k] * g[k]);
        }
        EXPECT_LE(std::abs(new_m[i] - mi), std::max(std::abs(mi) / 8, largest_m * 0x1p-16)) << i;
        EXPECT_LE(std::abs(new_v[i] - vi), std::max(vi / 8, largest_v * 0x1p-32)) << i;
      }
      EXPECT_LE(parity::nmse(moved, expected), 1e-10);
    }
  }
}

// What is rounded to nearest in 8 bits would never see a change of (1 - beta2) of its value.
TEST(Adamw8Bit, VFollowsTheGradientForBeta2CloseToOne) {
  const int64_t count = 1 << 15;
  for (const float beta2 : {0.95f, 0.999f, 0.9999f}) {
    Coded c(count);
    c.options.beta2 = beta2;
    std::vector<double> exact(static_cast<size_t>(count), 0.0);
    for (int n = 1; n <= 200; ++n) {
      // The gradient falls to a tenth half way, so that v has to follow.
      c.grad = parity::random(DType::f32, {count}, 100 + static_cast<uint64_t>(n), n <= 100 ? 1 : 0.1);
      const std::vector<double> g = c.grad.values();
      for (size_t i = 0; i < exact.size(); ++i)
        exact[i] = static_cast<double>(beta2) * exact[i] + (1 - static_cast<double>(beta2)) * g[i] * g[i];
      c.step(n, 0);
      if (n % 100 != 0) continue;
      const std::vector<double> v = c.moment2();
      double mean = 0, wanted = 0, error = 0;
      for (size_t i = 0; i < exact.size(); ++i) {
        mean += v[i];
        wanted += exact[i];
        error += (v[i] / exact[i] - 1) * (v[i] / exact[i] - 1) / static_cast<double>(count);
      }
      // Rounding moves single elements by a quarter and the mean of 32,768 by next to nothing.
      EXPECT_NEAR(mean / wanted, 1, 5e-3) << beta2 << ", step " << n;
      EXPECT_LT(std::sqrt(error), 0.35) << beta2 << ", step " << n;
    }
  }
}

TEST(Adamw8Bit, UpdatesStayBoundedWhereABlockSpansMoreThanTheCodes) {
  Coded c(moment_block);
  Rng rng(3);
  for (int n = 1; n <= 300; ++n) {
    std::vector<double> g;
    for (int64_t i = 0; i < moment_block; ++i)
      g.push_back(rng.normal() * std::exp2(-static_cast<double>(i) / 4));
    c.grad.set(g);
    c.options.weight_decay = 0;
    const std::vector<double> before = c.param.values();
    c.step(n, 1e-3);
    const std::vector<double> after = c.param.values();
    // |m| / sqrt(v) of exact moments is at most (1 - beta1) / sqrt(1 - beta2) / sqrt(1 - beta1^2 / beta2),
    // 1.2; rounding may double m and halve the root of v.
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_LT(std::abs(after[i] - before[i]), 5e-3) << n << " " << i;
  }
}

TEST(Adamw8Bit, ZeroGradientsLeaveZeroMoments) {
  Coded c(300);
  c.options.weight_decay = 0;
  c.grad.set(Coded::zeros(300));
  const std::vector<double> before = c.param.values();
  for (int n = 1; n <= 3; ++n) c.step(n, 1e-2);
  EXPECT_EQ(c.param.values(), before);
  EXPECT_EQ(c.moment1(), Coded::zeros(300));
  EXPECT_EQ(c.moment2(), Coded::zeros(300));
}

TEST(Adamw8Bit, HugeGradientsSaturateAndStayFinite) {
  Coded c(200);
  c.grad.set(std::vector<double>(200, 1e30));
  c.step(1, 1e-3);
  for (const double x : c.moment1()) EXPECT_TRUE(std::isfinite(x) && x > 1e4);
  for (const double x : c.moment2()) EXPECT_TRUE(std::isfinite(x) && x > 1e9);
}

TEST(Adamw8Bit, NonFiniteChangesNothing) {
  Coded c(200);
  c.grad = parity::random(DType::f32, {200}, 5);
  c.step(1, 1e-2);
  const Coded before = c;
  c.grad.set(std::vector<double>(200, static_cast<double>(NAN)));
  c.step(2, 1e-2, true, 0, -1, 1);
  EXPECT_TRUE(c == before);
}

TEST(Adamw8Bit, KnowsElementAndStepButNotTheCut) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool own_master : {true, false}) {
      Coded whole(1003, dtype);
      whole.grad = parity::random(DType::f32, {1003}, 5);
      Coded parts = whole, later = whole;
      whole.step(1, 1e-2, own_master);
      parts.step(1, 1e-2, own_master, 0, 384);
      parts.step(1, 1e-2, own_master, 384, 512);
      parts.step(1, 1e-2, own_master, 512, 1003);
      EXPECT_TRUE(whole == parts) << name_of(dtype) << own_master;
      later.step(2, 1e-2, own_master);
      EXPECT_FALSE(whole.m == later.m);
      if (!own_master) {
        EXPECT_TRUE(whole.param == Array(dtype, {1003}, whole.master.values()));
      }
    }
  }
}

}  // namespace
}  // namespace deltatune
