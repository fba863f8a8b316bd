// AdamW on moments in 8-bit codes (ops/moment_codes.h): sixteen lanes hold a block of 128 elements, find its
// largest moments by shuffles and write the codes that belong to them.
#include "cuda/kernels/adamw.cuh"
#include "cuda/ptx/mma.cuh"
#include "ops/moment_codes.h"

namespace deltatune::cuda {
namespace {

struct Tile {
  static constexpr int threads = 256;
};

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

/// Eight codes as they lie in memory.
struct Codes {
  uint32_t word[2];

  /// Code j, and a word whose top byte it is, the others 0.
  __device__ uint32_t operator[](int j) const { return word[j / 4] >> (j % 4 * 8) & 0xffu; }
  __device__ uint32_t high(int j) const { return (word[j / 4] << (24 - j % 4 * 8)) & 0xff000000u; }
  /// From words whose top bytes are the codes.
  static __device__ Codes of(const uint32_t (&high)[8]) {
    const auto four = [&](int j) {
      const uint32_t low = __byte_perm(high[j], high[j + 1], 0x0073);
      return __byte_perm(low, __byte_perm(high[j + 2], high[j + 3], 0x0073), 0x5410);
    };
    return {{four(0), four(4)}};
  }

  template <bool whole>
  static __device__ Codes load(const uint8_t* x, int64_t count) {
    if constexpr (whole) {
      const uint2 both = *reinterpret_cast<const uint2*>(x);
      return {{both.x, both.y}};
    } else {
      Codes out{};
#pragma unroll
      for (int j = 0; j < 8; ++j) out.word[j / 4] |= (j < count ? uint32_t{x[j]} : 0u) << (j % 4 * 8);
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

/// AdamW with moments in 8-bit codes: a thread has eight elements, sixteen neighbouring lanes a block. T:
/// dtype of the parameter where it is a copy (param null: it is the master itself), P: of the master. whole:
/// all blocks are full and every address is aligned; else elements are taken one by one, from element
/// `offset` on.
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
  const int lane = ptx::computed_here(static_cast<int>(threadIdx.x % 32));
  const auto half =
      static_cast<uint32_t>(ptx::computed_here(8));  // in a register: spares an instruction a number
  for (int64_t begin = static_cast<int64_t>(blockIdx.x) * Tile::threads + threadIdx.x - lane; begin < packs;
       begin += stride) {
    const bool there = begin + lane < packs;
    const int64_t i = offset + (begin + (there ? lane : lane - 16)) * 8;
    const auto block = static_cast<uint64_t>(i) / moment_block;
    auto p = load_8<whole>(static_cast<const P*>(master + i), count - i);
    Codes codes_m = Codes::load<whole>(m + i, count - i);
    Codes codes_v = Codes::load<whole>(v + i, count - i);
    const auto g = load_8<whole>(gradient + i, count - i);
    const float kept_m = step.beta1 * m_unit[block];
    const float kept_v = step.beta2 * v_unit[block];
    float value[8], moment1[8], moment2[8];
    widen(value, p);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      moment1[j] = __uint_as_float(moment1_bits_of_word(codes_m.high(j))) * kept_m;
      moment2[j] = __uint_as_float(moment2_bits(codes_v[j])) * kept_v;
    }
    UsualRange range;
    const bool usual = update(value, moment1, moment2, g, step, range);
    const Philox4 words =
        rounding_words(options.seed, group, number, static_cast<uint64_t>(first_element + i) / 8);
    const auto round = [&](auto finite) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        p.v[j] = rounded<P, decltype(finite)::value>(value[j], stochastic, rounding_bits(words, j).param);
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
    uint32_t high_m[8], high_v[8];
    const auto encode = [&](auto&& word_m, auto&& word_v) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const RoundingBits random = rounding_bits(words, j);
        high_m[j] = word_m(__float_as_uint(moment1[j] * inverse_m), random.m);
        high_v[j] = word_v(__float_as_uint(moment2[j] * inverse_v), random.v);
      }
    };
    if (none_saturates(exponent_m, moment1_top) && none_saturates(exponent_v, moment2_top)) {
      const auto noise = [&](uint32_t random) { return random << 4 | half; };
      encode([&](uint32_t bits, uint32_t random) { return moment1_word_in_range(bits, noise(random)); },
             [&](uint32_t bits, uint32_t random) { return moment2_word_in_range(bits, noise(random)); });
    } else {
      encode([](uint32_t bits, uint32_t random) { return uint32_t{moment1_code(bits, random)} << 24; },
             [](uint32_t bits, uint32_t random) { return uint32_t{moment2_code(bits, random)} << 24; });
    }
    codes_m = Codes::of(high_m);
    codes_v = Codes::of(high_v);
    store_8<whole>(master + i, p, count - i);
    codes_m.store<whole>(m + i, count - i);
    codes_v.store<whole>(v + i, count - i);
    if (param) {
      Pack<T, 8> out;
#pragma unroll
      for (int j = 0; j < 8; ++j) out.v[j] = store<T>(value[j]);
      store_8<whole>(param + i, out, count - i);
    }
    if (lane % 16 == 0) {
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

void adamw_8bit(Stream& stream, const AdamwTensors& tensors, Tensor param, Tensor master, CTensor scalars_8,
                const AdamwOptions& options) {
  if (master.dtype == DType::bf16)
    return launch_adamw_8bit<device_bf16, device_bf16>(stream, tensors, param, master, scalars_8, options);
  by_storage(param.empty() ? DType::f32 : param.dtype, [&](auto zero) {
    launch_adamw_8bit<decltype(zero), float>(stream, tensors, param, master, scalars_8, options);
  });
}

}  // namespace deltatune::cuda
