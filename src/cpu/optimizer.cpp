// Gradient norm, clipping factor and AdamW.
//
// sum_squares adds blocks of 4096 elements in double and the blocks in order, so the norm does not depend on
// threads. AdamW is element by element in fp32: decay, moments, update, in this order; what is kept in bf16
// or in codes of 8 bits is rounded at the end. With a non-finite norm it changes nothing.
#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "base/thread_pool.h"
#include "cpu/cpu_ops.h"
#include "cpu/vector.h"
#include "ops/moment_codes.h"
#include "ops/rounding.h"
#include "ops/scratch.h"

namespace deltatune::cpu {
namespace {

constexpr int64_t grain = 16384;

struct Step {
  float scale, decay, beta1, beta2, rate, inverse_root, eps;  // rate, inverse_root: bias-corrected
};

Step step_of(const float* scalars, const AdamwOptions& options) {
  const double rate = static_cast<double>(scalars[StepScalar::learning_rate]);
  return {
      .scale = scalars[StepScalar::gradient_scale],
      .decay = static_cast<float>(1.0 - rate * static_cast<double>(options.weight_decay)),
      .beta1 = options.beta1,
      .beta2 = options.beta2,
      .rate = scalars[StepScalar::learning_rate] / scalars[StepScalar::bias_correction1],
      .inverse_root = 1.0f / std::sqrt(scalars[StepScalar::bias_correction2]),
      .eps = options.eps,
  };
}

/// The new value of one parameter. m and v: what is kept of its moments, beta1 m and beta2 v; the new ones
/// afterwards.
inline float updated(float p, float& m, float& v, float gradient, const Step& step) {
  const float g = gradient * step.scale;
  m += (1.0f - step.beta1) * g;
  v += (1.0f - step.beta2) * g * g;
  return p * step.decay - step.rate * m / (std::sqrt(v) * step.inverse_root + step.eps);
}

/// Rounds x to T; `random` counts where T is bf16 and rounding is stochastic.
template <class T>
inline T rounded(float x, Rounding rounding, uint32_t random) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (rounding == Rounding::stochastic) return {round_stochastic(std::bit_cast<uint32_t>(x), random)};
  }
  return narrow<T>(x);
}

/// The parameters of a master that lies apart.
template <class P>
void copy_master(const AdamwTensors& tensors, const P* master, int64_t begin, int64_t end) {
  if constexpr (std::is_same_v<P, float>) {
    if (tensors.master_n.empty()) return;
    if (tensors.param_n.dtype == DType::f32) {
      std::copy(master + begin, master + end, tensors.param_n.as<float>() + begin);
    } else {
      store_row(tensors.param_n.as<bf16>() + begin, master + begin, end - begin);
    }
  }
}

/// P: dtype of the master, which may be the parameter itself; M: of the moments.
template <class P, class M>
void update_all(const AdamwTensors& tensors, Tensor master_n, const float* scalars, const Step& step,
                const AdamwOptions& options) {
  P* master = master_n.as<P>();
  M* m = tensors.m_n.as<M>();
  M* v = tensors.v_n.as<M>();
  const float* gradient = tensors.grad_n.as<float>();
  const auto number = static_cast<uint32_t>(scalars[StepScalar::step]);
  constexpr bool narrow_any = std::is_same_v<P, bf16> || std::is_same_v<M, bf16>;
  const bool stochastic = narrow_any && options.rounding == Rounding::stochastic;
  parallel_for(tensors.m_n.count(), grain, [&](int64_t begin, int64_t end, int) {
    Philox4 words{};
    for (int64_t i = begin; i < end; ++i) {
      RoundingBits random{};
      if (stochastic) {
        const auto element = static_cast<uint64_t>(tensors.first + i);
        if (element % 8 == 0 || i == begin)
          words = rounding_words(options.seed, tensors.group, number, element / 8);
        random = rounding_bits(words, static_cast<int>(element % 8));
      }
      float first = step.beta1 * widen(m[i]);
      float second = step.beta2 * widen(v[i]);
      master[i] = rounded<P>(updated(widen(master[i]), first, second, gradient[i], step), options.rounding,
                             random.param);
      m[i] = rounded<M>(first, options.rounding, random.m);
      v[i] = rounded<M>(second, options.rounding, random.v);
    }
    copy_master(tensors, master, begin, end);
  });
}

/// Elements [begin, end) of one block of 8-bit moments: all new values first, the codes when the block's
/// largest are known.
template <class P>
void update_block(const AdamwTensors& tensors, P* master, int64_t block, uint32_t number, const Step& step,
                  const AdamwOptions& options) {
  const int64_t begin = block * moment_block;
  const int64_t count = std::min(moment_block, tensors.m_n.count() - begin);
  uint8_t* m = tensors.m_n.as<uint8_t>() + begin;
  uint8_t* v = tensors.v_n.as<uint8_t>() + begin;
  float& m_unit = tensors.m_unit_b.as<float>()[block];
  float& v_unit = tensors.v_unit_b.as<float>()[block];
  const float* gradient = tensors.grad_n.as<float>() + begin;
  float first[moment_block], second[moment_block];
  RoundingBits random[moment_block];
  Philox4 words{};
  const float kept_m = step.beta1 * m_unit;
  const float kept_v = step.beta2 * v_unit;
  uint32_t largest_m = 0;
  uint32_t largest_v = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto element = static_cast<uint64_t>(tensors.first + begin + i);
    if (i % 8 == 0) words = rounding_words(options.seed, tensors.group, number, element / 8);
    random[i] = rounding_bits(words, static_cast<int>(i % 8));
    first[i] = std::bit_cast<float>(moment1_bits(m[i])) * kept_m;
    second[i] = std::bit_cast<float>(moment2_bits(v[i])) * kept_v;
    const float value = updated(widen(master[begin + i]), first[i], second[i], gradient[i], step);
    master[begin + i] = rounded<P>(value, options.rounding, random[i].param);
    largest_m = std::max(largest_m, std::bit_cast<uint32_t>(first[i]) & 0x7fffffffu);
    largest_v = std::max(largest_v, std::bit_cast<uint32_t>(second[i]) & 0x7fffffffu);
  }
  const uint32_t exponent_m = block_exponent(largest_m, moment1_top);
  const uint32_t exponent_v = block_exponent(largest_v, moment2_top);
  m_unit = std::bit_cast<float>(unit_bits(exponent_m, moment1_top));
  v_unit = std::bit_cast<float>(unit_bits(exponent_v, moment2_top));
  const auto inverse_m = std::bit_cast<float>(inverse_unit_bits(exponent_m, moment1_top));
  const auto inverse_v = std::bit_cast<float>(inverse_unit_bits(exponent_v, moment2_top));
  for (int64_t i = 0; i < count; ++i) {
    m[i] = moment1_code(std::bit_cast<uint32_t>(first[i] * inverse_m), random[i].m);
    v[i] = moment2_code(std::bit_cast<uint32_t>(second[i] * inverse_v), random[i].v);
  }
}

template <class P>
void update_blocks(const AdamwTensors& tensors, Tensor master_n, const float* scalars, const Step& step,
                   const AdamwOptions& options) {
  P* master = master_n.as<P>();
  const auto number = static_cast<uint32_t>(scalars[StepScalar::step]);
  const int64_t count = tensors.m_n.count();
  parallel_for(moment_blocks(count), grain / moment_block, [&](int64_t from, int64_t to, int) {
    for (int64_t block = from; block < to; ++block)
      update_block(tensors, master, block, number, step, options);
    copy_master(tensors, master, from * moment_block, std::min(to * moment_block, count));
  });
}

}  // namespace

void sum_squares(Stream& stream, Tensor sum_1, CTensor x_n) {
  const int64_t count = x_n.count();
  const int64_t blocks = (count + scratch::square_block - 1) / scratch::square_block;
  auto* sums = reinterpret_cast<double*>(stream.scratch(scratch::sum_squares(Target::cpu, count)));
  by_float(x_n.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* x = x_n.as<T>();
    parallel_for(blocks, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * scratch::square_block;
        sums[block] = sum_of<double>(std::min(scratch::square_block, count - first), [&](int64_t i) {
          const auto value = static_cast<double>(widen(x[first + i]));
          return value * value;
        });
      }
    });
  });
  double sum = 0;
  for (int64_t block = 0; block < blocks; ++block) sum += sums[block];
  sum_1.as<double>()[0] += sum;
}

void grad_scale(Stream&, Tensor scalars_8, CTensor sum_1, float max_norm) {
  auto* scalars = scalars_8.as<float>();
  const auto inverse_count = static_cast<double>(scalars[StepScalar::inverse_count]);
  const double norm = std::sqrt(sum_1.as<double>()[0]) * inverse_count;
  scalars[StepScalar::gradient_norm] = static_cast<float>(norm);
  if (!std::isfinite(scalars[StepScalar::gradient_norm])) {
    scalars[StepScalar::nonfinite] = 1;
    scalars[StepScalar::gradient_scale] = 0;
    return;
  }
  const double clip = max_norm > 0 ? std::min(1.0, static_cast<double>(max_norm) / (norm + 1e-6)) : 1.0;
  scalars[StepScalar::nonfinite] = 0;
  scalars[StepScalar::gradient_scale] = static_cast<float>(inverse_count * clip);
}

void adamw(Stream&, AdamwTensors tensors, CTensor scalars_8, AdamwOptions options) {
  const auto* scalars = scalars_8.as<float>();
  if (scalars[StepScalar::nonfinite] != 0) return;
  const Step step = step_of(scalars, options);
  const Tensor master = tensors.master_n.empty() ? tensors.param_n : tensors.master_n;
  const auto by_moments = [&](auto zero) {
    using P = decltype(zero);
    if (tensors.m_n.dtype == DType::u8) {
      update_blocks<P>(tensors, master, scalars, step, options);
    } else if (tensors.m_n.dtype == DType::f32) {
      update_all<P, float>(tensors, master, scalars, step, options);
    } else {
      update_all<P, bf16>(tensors, master, scalars, step, options);
    }
  };
  if (master.dtype == DType::f32) {
    by_moments(float{});
  } else {
    by_moments(bf16{});
  }
}

}  // namespace deltatune::cpu
