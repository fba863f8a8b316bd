// Gradient norm, clipping factor and AdamW. Compiled without contraction to FMA, so that AdamW gives the bits
// of the cpu row.
//
// sum_squares: a partition that depends on the count alone, in double, partial sums in scratch, then one
// block in a fixed order. What changes from step to step is read on the device.
#include "cuda/cuda_ops.h"
#include "cuda/pack.cuh"
#include "cuda/reduce.cuh"
#include "ops/moment_codes.h"
#include "ops/rounding.h"
#include "ops/scratch.h"

namespace deltatune::cuda {
namespace {

struct Tile {
  static constexpr int threads = 256;
};

/// partial[blockIdx.x] = sum of squares of elements [blockIdx.x per_block, ...).
template <class T, int N>
__global__ __launch_bounds__(Tile::threads) void square_partials(double* __restrict__ partial,
                                                                 const T* __restrict__ x, int64_t count,
                                                                 int64_t per_block) {
  const int64_t begin = blockIdx.x * per_block;
  const int64_t end = begin + per_block < count ? begin + per_block : count;
  const int64_t packs = end > begin ? (end - begin) / N : 0;
  double sum = 0;
  for (int64_t p = threadIdx.x; p < packs; p += Tile::threads) {
    const auto in = load_pack<N>(x + begin + p * N);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const auto value = static_cast<double>(load(in.v[j]));
      sum = fma(value, value, sum);
    }
  }
  const int64_t rest = begin + packs * N + threadIdx.x;
  if (rest < end) {
    const auto value = static_cast<double>(load(x[rest]));
    sum = fma(value, value, sum);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/// sum[0] += the partial sums, one block.
__global__ __launch_bounds__(Tile::threads) void add_squares(double* __restrict__ sum,
                                                             const double* __restrict__ partial,
                                                             int64_t blocks) {
  double mine = 0;
  for (int64_t b = threadIdx.x; b < blocks; b += Tile::threads) mine += partial[b];
  mine = block_sum(mine);
  if (threadIdx.x == 0) sum[0] += mine;
}

__global__ __launch_bounds__(32) void grad_scale_kernel(float* __restrict__ scalars,
                                                        const double* __restrict__ sum, float max_norm) {
  if (threadIdx.x != 0) return;
  const auto inverse_count = static_cast<double>(scalars[StepScalar::inverse_count]);
  const double norm = sqrt(sum[0]) * inverse_count;
  scalars[StepScalar::gradient_norm] = static_cast<float>(norm);
  const bool finite = isfinite(static_cast<float>(norm));
  double clip = 1;
  if (max_norm > 0) clip = fmin(1.0, static_cast<double>(max_norm) / (norm + 1e-6));
  scalars[StepScalar::nonfinite] = finite ? 0.0f : 1.0f;
  scalars[StepScalar::gradient_scale] = finite ? static_cast<float>(inverse_count * clip) : 0.0f;
}

struct Step {
  float scale, decay, beta1, beta2, rate, inverse_root, eps;  // rate, inverse_root: bias-corrected
  bool usual;                                                 // what UsualRange wants of these
};

__device__ inline bool between(float low, float x, float high) {
  return low <= x && x <= high;
}

__device__ inline Step step_of(const float* scalars, const AdamwOptions& options) {
  const auto learning_rate = static_cast<double>(scalars[StepScalar::learning_rate]);
  const float rate = scalars[StepScalar::learning_rate] / scalars[StepScalar::bias_correction1];
  const float inverse_root = 1.0f / sqrtf(scalars[StepScalar::bias_correction2]);
  const bool usual = between(0.0f, rate, 0x1p10f) && between(1.0f, inverse_root, 0x1p7f) &&
                     between(0x1p-28f, options.eps, 1.0f);
  return {scalars[StepScalar::gradient_scale],
          static_cast<float>(1.0 - learning_rate * static_cast<double>(options.weight_decay)),
          options.beta1,
          options.beta2,
          rate,
          inverse_root,
          options.eps,
          usual};
}

__device__ inline void update_moments(float& m, float& v, float gradient, const Step& step) {
  const float g = gradient * step.scale;
  m = step.beta1 * m + (1.0f - step.beta1) * g;
  v = step.beta2 * v + (1.0f - step.beta2) * g * g;
}

/// The new value of a parameter whose moments are updated.
__device__ inline float updated(float p, float m, float v, const Step& step) {
  return p * step.decay - step.rate * m / (sqrtf(v) * step.inverse_root + step.eps);
}

/// Roots and quotients as IEEE 754 rounds them, by the hardware's approximations and Newton's steps
/// (Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990): what the
/// compiler makes of sqrtf and `/`, less its branch and call for operands at the ends of the range. Whether
/// some element has such operands is seen once for all. In range are v = 0 and [2^-101, 2^40], rate m = +0
/// (of -0 the quotient would lose its sign) and magnitudes of 2^-100 and more, m up to 2^60, and what
/// Step::usual says: then no intermediate result leaves the normal numbers, and a divisor lies between 2^-28
/// and 2^28. For v = 0 the root is taken of 2^-126: eps, of 2^-28 and more, swallows it.
class UsualRange {
  static constexpr uint32_t lowest_v = 0x0d000000u, lowest_along = 0x0d800000u;  // 2^-101, 2^-100
  uint32_t v_ = ~0u, along_ = ~0u, highest_m_ = 0, highest_v_ = 0;
  float zero_ = 0;

 public:
  /// As updated() where holds() says so at the end.
  __device__ float updated(float p, float m, float v, const Step& step) {
    const float along = step.rate * m;
    // One less, so that zero is above all; of `along` with the sign behind the last bit.
    v_ = min(v_, __float_as_uint(v) - 1);
    along_ = min(along_, __funnelshift_l(__float_as_uint(along), __float_as_uint(along), 1) - 1);
    highest_m_ = max(highest_m_, __float_as_uint(m) & 0x7fffffffu);
    highest_v_ = max(highest_v_, __float_as_uint(v));
    const float divisor = root(fmaxf(v, 0x1p-126f)) * step.inverse_root + step.eps;
    const float value = p * step.decay - quotient(along, divisor);
    zero_ = __fmaf_rn(value, 0.0f, zero_);  // NaN from the first value on that is not finite
    return value;
  }
  __device__ bool holds(const Step& step) const {
    return step.usual && v_ >= lowest_v - 1 && along_ >= 2 * lowest_along - 1 && highest_m_ <= 0x5d800000u &&
           highest_v_ <= 0x53800000u && zero_ == 0;  // 2^60, 2^40
  }
  /// Bits of the largest magnitudes.
  __device__ uint32_t highest_m() const { return highest_m_; }
  __device__ uint32_t highest_v() const { return highest_v_; }

 private:
  static __device__ float root(float x) {
    float inverse;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    const float s = x * inverse;
    return __fmaf_rn(__fmaf_rn(-s, s, x), 0.5f * inverse, s);
  }
  static __device__ float quotient(float x, float y) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(y));
    inverse = __fmaf_rn(inverse, __fmaf_rn(-y, inverse, 1.0f), inverse);
    const float q = x * inverse;
    return __fmaf_rn(inverse, __fmaf_rn(-y, q, x), q);
  }
};

/// A step of N elements: p, m and v become what they are after it. True where all of them are known to be
/// finite.
template <int N>
__device__ inline bool update(float (&p)[N], float (&m)[N], float (&v)[N], const Pack<float, N>& gradient,
                              const Step& step, UsualRange& range) {
  float value[N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    update_moments(m[j], v[j], gradient.v[j], step);
    value[j] = range.updated(p[j], m[j], v[j], step);
  }
  const bool usual = range.holds(step);
  if (!usual) {
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] = updated(p[j], m[j], v[j], step);
  }
#pragma unroll
  for (int j = 0; j < N; ++j) p[j] = value[j];
  return usual;
}

/// finite: x is.
template <class T, bool finite>
__device__ inline T rounded(float x, bool stochastic, uint32_t random) {
  if constexpr (std::is_same_v<T, device_bf16>) {
    const uint32_t bits = __float_as_uint(x);
    if (stochastic)
      return __ushort_as_bfloat16(finite ? static_cast<uint16_t>((bits + random) >> 16)
                                         : round_stochastic(bits, random));
  }
  return store<T>(x);
}

/// The N elements of a pack as floats.
template <class T, int N>
__device__ inline void widen(float (&out)[N], const Pack<T, N>& pack) {
#pragma unroll
  for (int j = 0; j < N; ++j) out[j] = load(pack.v[j]);
}

/// T: dtype of the parameter where it is a copy (param null: it is the master itself), P: of the master, M:
/// of the moments. Element 0 of a pack has an even number in its group, or N is 1.
template <class T, class P, class M, int N>
__global__ __launch_bounds__(Tile::threads) void adamw_kernel(T* __restrict__ param, P* __restrict__ master,
                                                              M* __restrict__ m, M* __restrict__ v,
                                                              const float* __restrict__ gradient,
                                                              const float* __restrict__ scalars,
                                                              AdamwOptions options, int64_t first_element,
                                                              uint32_t group, int64_t packs, int64_t offset) {
  if (scalars[StepScalar::nonfinite] != 0) return;
  const Step step = step_of(scalars, options);
  const auto number = static_cast<uint32_t>(scalars[StepScalar::step]);
  constexpr bool narrow_any = std::is_same_v<P, device_bf16> || std::is_same_v<M, device_bf16>;
  const bool stochastic = narrow_any && options.rounding == Rounding::stochastic;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * Tile::threads;
  for (int64_t pack = static_cast<int64_t>(blockIdx.x) * Tile::threads + threadIdx.x; pack < packs;
       pack += stride) {
    const int64_t i = offset + pack * N;
    auto p = load_pack<N>(static_cast<const P*>(master + i));
    auto first = load_pack<N>(static_cast<const M*>(m + i));
    auto second = load_pack<N>(static_cast<const M*>(v + i));
    const auto g = load_pack<N>(gradient + i);
    float value[N], moment1[N], moment2[N];
    widen(value, p);
    widen(moment1, first);
    widen(moment2, second);
    UsualRange range;
    const bool usual = update(value, moment1, moment2, g, step, range);
    const auto round = [&](auto finite) {
      Philox4 words{};
#pragma unroll
      for (int j = 0; j < N; ++j) {
        RoundingBits random{};
        if (stochastic) {
          const auto element = static_cast<uint64_t>(first_element + i + j);
          if (j % 2 == 0) words = rounding_words(options.seed, group, number, element / 2);
          random = rounding_bits(words, element % 2 != 0);
        }
        p.v[j] = rounded<P, decltype(finite)::value>(value[j], stochastic, random.param);
        first.v[j] = rounded<M, decltype(finite)::value>(moment1[j], stochastic, random.m);
        second.v[j] = rounded<M, decltype(finite)::value>(moment2[j], stochastic, random.v);
      }
    };
    if (!narrow_any || usual) {
      round(std::true_type{});
    } else {
      round(std::false_type{});
    }
    store_pack(master + i, p);
    store_pack(m + i, first);
    store_pack(v + i, second);
    if (!param) continue;
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.v[j] = store<T>(value[j]);
    store_pack(param + i, out);
  }
}

template <class T, class P, class M>
void launch_adamw(Stream& stream, const AdamwTensors& tensors, Tensor param, Tensor master, CTensor scalars_8,
                  const AdamwOptions& options) {
  const int64_t count = tensors.m_n.count();
  const auto part = [&](auto n, int64_t packs, int64_t offset) {
    if (packs == 0) return;
    const unsigned blocks = blocks_for(packs, Tile::threads);
    launch(stream, {"adamw", tensors.m_n}, adamw_kernel<T, P, M, n()>, blocks < 8192u ? blocks : 8192u,
           Tile::threads, 0, pointer<T>(param), pointer<P>(master), pointer<M>(tensors.m_n),
           pointer<M>(tensors.v_n), pointer<float>(tensors.grad_n), pointer<float>(scalars_8), options,
           tensors.first, tensors.group, packs, offset);
  };
  // Two neighbours share random words, so a pack has to begin with an even element.
  const bool aligned =
      aligned16(param.data, master.data, tensors.m_n.data, tensors.v_n.data, tensors.grad_n.data) &&
      tensors.first % 2 == 0;
  constexpr int wide = std::is_same_v<P, device_bf16> && std::is_same_v<M, device_bf16> ? 8 : 4;
  const int64_t whole = aligned ? count / wide : 0;
  part(std::integral_constant<int, wide>{}, whole, 0);
  part(std::integral_constant<int, 1>{}, count - wide * whole, wide * whole);
}

/// N elements, of which the first `count` are there; the others are zero.
template <bool whole, class T>
__device__ inline Pack<T, 8> load_8(const T* x, int64_t count) {
  if constexpr (whole) {
    return load_pack<8>(x);
  } else {
    Pack<T, 8> out;
#pragma unroll
    for (int j = 0; j < 8; ++j) out.v[j] = j < count ? x[j] : T{};
    return out;
  }
}
template <bool whole, class T>
__device__ inline void store_8(T* y, const Pack<T, 8>& pack, int64_t count) {
  if constexpr (whole) {
    store_pack(y, pack);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j < count) y[j] = pack.v[j];
    }
  }
}

/// The largest of two numbers of 16 bits, each for itself, over the sixteen lanes that hold a block. The
/// whole warp calls it.
__device__ inline uint32_t largest_of_block(uint32_t pair) {
#pragma unroll
  for (int distance = 8; distance > 0; distance /= 2)
    pair = __vmaxu2(pair, __shfl_xor_sync(0xffffffffu, pair, distance, 16));
  return pair;
}

/// Eight codes as they lie in memory, and byte j of them.
struct Codes {
  uint32_t word[2];

  __device__ uint32_t operator[](int j) const { return word[j / 4] >> (j % 4 * 8) & 0xffu; }
  __device__ void add(int j, uint32_t code) { word[j / 4] |= code << (j % 4 * 8); }

  template <bool whole>
  static __device__ Codes load(const uint8_t* x, int64_t count) {
    if constexpr (whole) {
      const uint2 both = *reinterpret_cast<const uint2*>(x);
      return {{both.x, both.y}};
    } else {
      Codes out{};
#pragma unroll
      for (int j = 0; j < 8; ++j) out.add(j, j < count ? x[j] : 0);
      return out;
    }
  }
  template <bool whole>
  __device__ void store(uint8_t* y, int64_t count) const {
    if constexpr (whole) {
      *reinterpret_cast<uint2*>(y) = make_uint2(word[0], word[1]);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j < count) y[j] = static_cast<uint8_t>((*this)[j]);
      }
    }
  }
};

/// AdamW with moments in 8-bit codes: a thread has eight elements, sixteen neighbouring lanes a block. T and
/// P as above. whole: all blocks are full and every address is aligned; else elements are taken one by one,
/// from element `offset` on.
template <class T, class P, bool whole>
__global__ __launch_bounds__(Tile::threads) void adamw_8bit_kernel(
    T* __restrict__ param, P* __restrict__ master, uint8_t* __restrict__ m, uint8_t* __restrict__ v,
    float* __restrict__ m_unit, float* __restrict__ v_unit, const float* __restrict__ gradient,
    const float* __restrict__ scalars, AdamwOptions options, int64_t first_element, uint32_t group,
    int64_t offset, int64_t count) {
  if (scalars[StepScalar::nonfinite] != 0) return;
  const Step step = step_of(scalars, options);
  const auto number = static_cast<uint32_t>(scalars[StepScalar::step]);
  const bool stochastic = options.rounding == Rounding::stochastic;
  const int64_t packs = moment_blocks(count - offset) * (moment_block / 8);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * Tile::threads;
  // A warp has two blocks; where only one is left, its other half computes that one too and stores nothing.
  const int64_t lane = threadIdx.x % 32;
  for (int64_t begin = static_cast<int64_t>(blockIdx.x) * Tile::threads + threadIdx.x - lane; begin < packs;
       begin += stride) {
    const bool there = begin + lane < packs;
    const int64_t i = offset + (begin + (there ? lane : lane - 16)) * 8;
    const int64_t block = i / moment_block;
    auto p = load_8<whole>(static_cast<const P*>(master + i), count - i);
    Codes codes_m = Codes::load<whole>(m + i, count - i);
    Codes codes_v = Codes::load<whole>(v + i, count - i);
    const auto g = load_8<whole>(gradient + i, count - i);
    const float old_m_unit = m_unit[block];
    const float old_v_unit = v_unit[block];
    float value[8], moment1[8], moment2[8];
    widen(value, p);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      moment1[j] = __uint_as_float(moment1_bits(codes_m[j])) * old_m_unit;
      moment2[j] = __uint_as_float(moment2_bits(codes_v[j])) * old_v_unit;
    }
    UsualRange range;
    const bool usual = update(value, moment1, moment2, g, step, range);
    const Philox4 words =
        rounding_words_of_8(options.seed, group, number, static_cast<uint64_t>(first_element + i) / 8);
    const auto round = [&](auto finite) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        p.v[j] =
            rounded<P, decltype(finite)::value>(value[j], stochastic, rounding_bits_of_8(words, j).param);
    };
    if (usual) {
      round(std::true_type{});
    } else {
      round(std::false_type{});
    }
    const uint32_t exponents = largest_of_block(block_exponent(range.highest_m(), moment1_top) << 16 |
                                                block_exponent(range.highest_v(), moment2_top));
    if (!there) continue;
    const uint32_t exponent_m = exponents >> 16;
    const uint32_t exponent_v = exponents & 0xffffu;
    const float inverse_m = __uint_as_float(inverse_unit_bits(exponent_m, moment1_top));
    const float inverse_v = __uint_as_float(inverse_unit_bits(exponent_v, moment2_top));
    codes_m = codes_v = {};
    const auto encode = [&](auto&& code_m, auto&& code_v) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const RoundingBits random = rounding_bits_of_8(words, j);
        codes_m.add(j, code_m(__float_as_uint(moment1[j] * inverse_m), random.m));
        codes_v.add(j, code_v(__float_as_uint(moment2[j] * inverse_v), random.v));
      }
    };
    if (none_saturates(exponent_m, moment1_top) && none_saturates(exponent_v, moment2_top)) {
      encode(moment1_code_in_range, moment2_code_in_range);
    } else {
      encode(moment1_code, moment2_code);
    }
    store_8<whole>(master + i, p, count - i);
    codes_m.store<whole>(m + i, count - i);
    codes_v.store<whole>(v + i, count - i);
    if (param) {
      Pack<T, 8> out;
#pragma unroll
      for (int j = 0; j < 8; ++j) out.v[j] = store<T>(value[j]);
      store_8<whole>(param + i, out, count - i);
    }
    if (threadIdx.x % 16 == 0) {
      m_unit[block] = __uint_as_float(unit_bits(exponent_m, moment1_top));
      v_unit[block] = __uint_as_float(unit_bits(exponent_v, moment2_top));
    }
  }
}

template <class T, class P>
void launch_adamw_8bit(Stream& stream, const AdamwTensors& tensors, Tensor param, Tensor master,
                       CTensor scalars_8, const AdamwOptions& options) {
  const int64_t count = tensors.m_n.count();
  const auto part = [&](auto whole, int64_t from, int64_t to) {
    if (from == to) return;
    const unsigned blocks = blocks_for(moment_blocks(to - from) * (moment_block / 8), Tile::threads);
    launch(stream, {"adamw", tensors.m_n}, adamw_8bit_kernel<T, P, whole()>, blocks < 8192u ? blocks : 8192u,
           Tile::threads, 0, pointer<T>(param), pointer<P>(master), pointer<uint8_t>(tensors.m_n),
           pointer<uint8_t>(tensors.v_n), pointer<float>(tensors.m_unit_b), pointer<float>(tensors.v_unit_b),
           pointer<float>(tensors.grad_n), pointer<float>(scalars_8), options, tensors.first, tensors.group,
           from, to);
  };
  const bool aligned =
      aligned16(param.data, master.data, tensors.m_n.data, tensors.v_n.data, tensors.grad_n.data);
  const int64_t full = aligned ? count / moment_block * moment_block : 0;
  part(std::true_type{}, 0, full);
  part(std::false_type{}, full, count);
}

}  // namespace

void sum_squares(Stream& stream, Tensor sum_1, CTensor x_n) {
  const int64_t count = x_n.count();
  if (count == 0) return;
  const int64_t blocks = scratch::cuda_blocks(count, scratch::square_block, scratch::cuda_square_partials);
  // Whole packs for every block, so that only the last one has single elements.
  const int64_t per_block = ((count + blocks - 1) / blocks + 7) / 8 * 8;
  auto* partial = reinterpret_cast<double*>(stream.scratch(scratch::sum_squares(Target::cuda, count)));
  by_storage(x_n.dtype, [&](auto zero) {
    using T = decltype(zero);
    by_pack<full_pack<T>>(aligned16(x_n.data), [&](auto n) {
      launch(stream, {"sum_squares", x_n}, square_partials<T, n()>, static_cast<unsigned>(blocks),
             Tile::threads, 0, partial, pointer<T>(x_n), count, per_block);
    });
  });
  launch(stream, {"sum_squares", x_n}, add_squares, 1, Tile::threads, 0, pointer<double>(sum_1), partial,
         blocks);
}

void grad_scale(Stream& stream, Tensor scalars_8, CTensor sum_1, float max_norm) {
  launch(stream, "grad_scale", grad_scale_kernel, 1, 32, 0, pointer<float>(scalars_8), pointer<double>(sum_1),
         max_norm);
}

void adamw(Stream& stream, AdamwTensors tensors, CTensor scalars_8, AdamwOptions options) {
  if (tensors.m_n.count() == 0) return;
  const bool own_master = tensors.master_n.empty();
  const Tensor master = own_master ? tensors.param_n : tensors.master_n;
  const Tensor param = own_master ? Tensor{} : tensors.param_n;
  if (tensors.m_n.dtype == DType::u8) {
    if (master.dtype == DType::bf16)
      return launch_adamw_8bit<device_bf16, device_bf16>(stream, tensors, param, master, scalars_8, options);
    return by_storage(own_master ? DType::f32 : param.dtype, [&](auto zero) {
      launch_adamw_8bit<decltype(zero), float>(stream, tensors, param, master, scalars_8, options);
    });
  }
  by_storage(tensors.m_n.dtype, [&](auto moment) {
    using M = decltype(moment);
    if (master.dtype == DType::bf16) {
      launch_adamw<device_bf16, device_bf16, M>(stream, tensors, param, master, scalars_8, options);
    } else {
      by_storage(own_master ? DType::f32 : param.dtype, [&](auto zero) {
        launch_adamw<decltype(zero), float, M>(stream, tensors, param, master, scalars_8, options);
      });
    }
  });
}

}  // namespace deltatune::cuda
