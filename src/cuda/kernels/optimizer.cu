// Gradient norm, clipping factor and AdamW with moments in f32 or bf16. Compiled without contraction to FMA,
// so that AdamW gives the bits of the cpu row.
//
// sum_squares: a partition that depends on the count alone, in double, partial sums in scratch, then one
// block in a fixed order. What changes from step to step is read on the device.
#include "cuda/kernels/adamw.cuh"
#include "cuda/reduce.cuh"
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

/// T: dtype of the parameter where it is a copy (param null: it is the master itself), P: of the master, M:
/// of the moments. A pack begins at a multiple of N in its group.
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
#pragma unroll
    for (int j = 0; j < N; ++j) {
      moment1[j] *= step.beta1;
      moment2[j] *= step.beta2;
    }
    UsualRange range;
    const bool usual = update(value, moment1, moment2, g, step, range);
    const auto element = static_cast<uint64_t>(first_element + i);
    Philox4 words{};
    if (stochastic) words = rounding_words(options.seed, group, number, element / 8);
    // Half a group's numbers are found at their places in front; one element's anywhere.
    if (N == 4 && element % 8 != 0) words = {{words.x[2], words.x[3], words.x[0], words.x[1]}};
    const int place = N == 1 ? static_cast<int>(element % 8) : 0;
    const auto round = [&](auto finite) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        RoundingBits random{};
        if (stochastic) random = rounding_bits(words, place + j);
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
  // Eight neighbours share random words, which a pack may not have from two groups.
  constexpr int wide = std::is_same_v<P, device_bf16> && std::is_same_v<M, device_bf16> ? 8 : 4;
  const bool aligned =
      aligned16(param.data, master.data, tensors.m_n.data, tensors.v_n.data, tensors.grad_n.data) &&
      tensors.first % wide == 0;
  const int64_t whole = aligned ? count / wide : 0;
  part(std::integral_constant<int, wide>{}, whole, 0);
  part(std::integral_constant<int, 1>{}, count - wide * whole, wide * whole);
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
  if (tensors.m_n.dtype == DType::u8) return adamw_8bit(stream, tensors, param, master, scalars_8, options);
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
