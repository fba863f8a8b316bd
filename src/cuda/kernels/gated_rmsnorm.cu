// gated_rmsnorm: y = o rstd w silu(z) per value head, formulas in ops/delta_net.h. A warp per (token, head),
// several of them loaded before the first is used; heads up to 256 wide; one chain in fp32 with one rounding
// at the store.
//
// bf16 heads of 128 are limited by instructions, not bytes, unless half a warp holds a head: loads, addresses
// and shuffles then serve eight elements of a lane. They come through shared memory, some of them ahead.
//
// dw is summed over blocks of tokens into scratch, then the blocks in order.
#include <algorithm>
#include <string>

#include "cuda/cuda_ops.h"
#include "cuda/kernels/sums.cuh"
#include "cuda/lanes.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/words.cuh"
#include "ops/delta_net_cuda_scratch.h"

namespace deltatune::cuda {
namespace {

struct Norm {
  static constexpr int threads = 256;
  static constexpr int warps = threads / warp_size;
  static constexpr int max_dim = 256;
  static constexpr int forward_heads = 3;   ///< of a warp, loaded together
  static constexpr int backward_heads = 2;  ///< the same
};

/// What forward and backward share; z starts at the first z column of proj.
template <class T>
struct Call {
  const T *o, *z;
  const float* w;
  int64_t tokens, columns;
  int heads, dim;

  __device__ int64_t row(int64_t t, int h) const { return (t * heads + h) * dim; }
  __device__ int64_t z_row(int64_t t, int h) const { return t * columns + static_cast<int64_t>(h) * dim; }
  __device__ float mean(float sum) const { return sum / static_cast<float>(dim); }
};

template <int N, int R>
struct Weight {
  Stored<float, N, R> w;
  __device__ Weight(const float* from, int lane, int dim) { w.read(from, lane, dim); }
  __device__ float operator()(int r, int i) const { return w(r, i); }
};

/// Grid: tokens; the warps share the heads.
template <class T, int N, int R>
__global__ void __launch_bounds__(Norm::threads)
    forward_kernel(const __grid_constant__ Call<T> call, T* __restrict__ y, float* __restrict__ rstd_out,
                   float eps) {
  constexpr int group = Norm::forward_heads;
  const int lane = static_cast<int>(threadIdx.x) % warp_size,
            warp = static_cast<int>(threadIdx.x) / warp_size;
  const int64_t t = blockIdx.x;
  const Weight<N, R> w(call.w, lane, call.dim);
  for (int first = warp; first < call.heads; first += group * Norm::warps) {
    Stored<T, N, R> o[group], z[group];
#pragma unroll
    for (int a = 0; a < group; ++a) {
      const int h = min(first + a * Norm::warps, call.heads - 1);
      o[a].read(call.o + call.row(t, h), lane, call.dim);
      z[a].read(call.z + call.z_row(t, h), lane, call.dim);
    }
#pragma unroll
    for (int a = 0; a < group; ++a) {
      const int h = first + a * Norm::warps;
      if (h >= call.heads) break;
      float squares = 0;
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int i = 0; i < N; ++i) squares += o[a](r, i) * o[a](r, i);
      }
      const float rstd = rsqrtf(call.mean(lanes_sum(squares)) + eps);
      if (rstd_out && lane == 0) rstd_out[t * call.heads + h] = rstd;
      if (!y) continue;
      Lane<N, R> out;
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float gate = z[a](r, i) * sigmoid_for<T>(z[a](r, i));
          out[r][i] = o[a](r, i) * rstd * w(r, i) * gate;
        }
      }
      write_row<N, R>(y + call.row(t, h), lane, call.dim, out);
    }
  }
}

/// Grid: blocks of tokens; the warps share their heads. dz is written at the z columns of dproj; partial:
/// [blocks, dim].
template <class T, int N, int R>
__global__ void __launch_bounds__(Norm::threads, N* R > 4 ? 1 : 4)
    backward_kernel(const __grid_constant__ Call<T> call, T* __restrict__ d_o, T* __restrict__ dz,
                    const T* __restrict__ dy, const float* __restrict__ rstd_TH,
                    float* __restrict__ partial) {
  constexpr int group = Norm::backward_heads;
  __shared__ float sums[Norm::warps][Norm::max_dim];
  const int lane = static_cast<int>(threadIdx.x) % warp_size,
            warp = static_cast<int>(threadIdx.x) / warp_size;
  const int64_t t0 = static_cast<int64_t>(blockIdx.x) * GdnCudaTile::norm_tokens;
  const int count = static_cast<int>(min(GdnCudaTile::norm_tokens, call.tokens - t0)) * call.heads;
  const Weight<N, R> w(call.w, lane, call.dim);
  Lane<N, R> dw = {};
  for (int first = warp; first < count; first += group * Norm::warps) {
    Stored<T, N, R> o[group], z[group], d[group];
    float rstd[group];
    int64_t row[group], z_row[group];
#pragma unroll
    for (int a = 0; a < group; ++a) {
      const int i = min(first + a * Norm::warps, count - 1), t = i / call.heads, h = i - t * call.heads;
      row[a] = call.row(t0 + t, h);
      z_row[a] = call.z_row(t0 + t, h);
      o[a].read(call.o + row[a], lane, call.dim);
      z[a].read(call.z + z_row[a], lane, call.dim);
      d[a].read(dy + row[a], lane, call.dim);
      rstd[a] = rstd_TH[t0 * call.heads + i];
    }
#pragma unroll
    for (int a = 0; a < group; ++a) {
      if (first + a * Norm::warps >= count) break;
      Lane<N, R> dn, to_z;
      float along = 0;
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float x = z[a](r, i), s = sigmoid_for<T>(x), gate = x * s;
          const float n = o[a](r, i) * rstd[a], gradient = d[a](r, i);
          dw[r][i] += gradient * n * gate;
          dn[r][i] = gradient * w(r, i) * gate;
          along += n * dn[r][i];
          to_z[r][i] = gradient * n * w(r, i) * (s + gate * (1.0f - s));
        }
      }
      if (dz) write_row<N, R>(dz + z_row[a], lane, call.dim, to_z);
      if (!d_o) continue;
      const float mean = call.mean(lanes_sum(along));
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int i = 0; i < N; ++i) dn[r][i] = rstd[a] * (dn[r][i] - o[a](r, i) * rstd[a] * mean);
      }
      write_row<N, R>(d_o + row[a], lane, call.dim, dn);
    }
  }
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int j = lane_element<N>(r, lane) + i;
      if (j < call.dim) sums[warp][j] = dw[r][i];
    }
  }
  __syncthreads();
  for (int j = static_cast<int>(threadIdx.x); j < call.dim; j += Norm::threads) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Norm::warps; ++i) sum += sums[i][j];
    partial[static_cast<int64_t>(blockIdx.x) * call.dim + j] = sum;
  }
}

/// Two heads of 128 by a warp, lane l with elements 8 (l % 16) .. + 8.
struct Pair {
  using T = device_bf16;
  static constexpr int dim = 128;
  static constexpr int each = 8;            ///< elements of a lane
  static constexpr int lanes = dim / each;  ///< of a head
  static constexpr int heads = warp_size / lanes;
  static constexpr int elements = heads * dim;

  /// Where a warp, which takes each eighth pair of its block, is in z.
  struct Place {
    int pair;        ///< of the token's pairs
    int64_t offset;  ///< of its first element

    __device__ Place(const Call<T>& call, int index) {
      const int pairs = call.heads / heads, t = index / pairs;
      pair = index - t * pairs;
      offset = t * call.columns + pair * elements;
    }
    __device__ void next(int pairs, int64_t step, int step_pairs, int64_t wrap) {
      pair += step_pairs;
      offset += step;
      if (pair >= pairs) {
        pair -= pairs;
        offset += wrap;
      }
    }
  };
};

/// The pairs of a warp on their way through shared memory, `slots` of them with `arrays_` rows each: o, z,
/// dy.
template <int arrays_, int slots_, int blocks_>
struct PairRing {
  using T = Pair::T;
  static constexpr int arrays = arrays_;
  static constexpr int slots = slots_;
  static constexpr int blocks = blocks_;  ///< of a multiprocessor
  static constexpr int grid = 132 * blocks;
  using Slot = Pack<T, Pair::each>[arrays][warp_size];
  static constexpr size_t shared = Norm::warps * slots * sizeof(Slot);

  const Call<T>& call;
  const T* dy;  ///< where there are three arrays
  int pairs, step_pairs, end, own, next;
  int64_t step, wrap;
  Pair::Place ahead, at;
  Slot* ring;
  int next_slot = 0, slot = 0;

  /// Pairs begin + warp, + 8, ... below `last`; the first are started.
  __device__ PairRing(const Call<T>& c, const T* gradient, int begin, int last, int warp, int lane)
      : call(c),
        dy(gradient),
        pairs(c.heads / Pair::heads),
        step_pairs(Norm::warps % pairs),
        end(last),
        own(lane * Pair::each),
        next(begin + warp),
        step(Norm::warps / pairs * c.columns + step_pairs * Pair::elements),
        wrap(c.columns - static_cast<int64_t>(pairs) * Pair::elements),
        ahead(c, begin + warp),
        at(ahead),
        ring(dynamic_shared<Slot>() + warp * slots) {
    for (int i = 0; i < slots - 1; ++i) start();
  }
  __device__ void start() {
    if (next < end) {
      const int64_t row = static_cast<int64_t>(next) * Pair::elements + own;
      const auto copy = [&](int array, const T* from) {
        ptx::cp_async_16(ptx::shared_address(&ring[next_slot][array][own / Pair::each]), from, true);
      };
      copy(0, call.o + row);
      copy(1, call.z + ahead.offset + own);
      if constexpr (arrays == 3) copy(2, dy + row);
    }
    ptx::cp_async_commit();
    next += Norm::warps;
    ahead.next(pairs, step, step_pairs, wrap);
    next_slot = next_slot + 1 == slots ? 0 : next_slot + 1;
  }
  /// The rows of the next pair in fp32; its slot is then used again.
  template <class... Eight>
  __device__ void take(Eight&... rows) {
    ptx::cp_async_wait<slots - 2>();
    int array = 0;
    (widen(rows, ring[slot][array++][own / Pair::each]), ...);
    start();
    slot = slot + 1 == slots ? 0 : slot + 1;
  }
  /// Element of z, or dz, of the pair taken last.
  __device__ int64_t z_offset() const { return at.offset + own; }
  __device__ void done() { at.next(pairs, step, step_pairs, wrap); }
};
using ForwardRing = PairRing<2, 6, 4>;
using BackwardRing = PairRing<3, 6, 3>;

/// Grid: blocks of per_block pairs of the T Hv / 2.
__global__ void __launch_bounds__(Norm::threads, ForwardRing::blocks)
    pair_forward_kernel(const __grid_constant__ Call<Pair::T> call, Pair::T* __restrict__ y,
                        float* __restrict__ rstd_TH, float eps, int per_block) {
  constexpr int each = Pair::each;
  using Eight = float[each];
  const int lane = static_cast<int>(threadIdx.x) % warp_size,
            warp = static_cast<int>(threadIdx.x) / warp_size;
  const int begin = static_cast<int>(blockIdx.x) * per_block;
  const int end = min(begin + per_block, static_cast<int>(call.tokens) * call.heads / Pair::heads);
  ForwardRing ring(call, nullptr, begin, end, warp, lane);
  const int own = lane * each;  // first element in a pair
  Eight w;
#pragma unroll
  for (int i = 0; i < each; ++i) w[i] = call.w[own % Pair::dim + i];
  for (int pair = begin + warp; pair < end; pair += Norm::warps) {
    Eight o, z;
    ring.take(o, z);
    float squares = 0;
#pragma unroll
    for (int i = 0; i < each; ++i) squares += o[i] * o[i];
    const float rstd = rsqrtf(call.mean(lanes_sum<Pair::lanes>(squares)) + eps);
    if (rstd_TH && lane % Pair::lanes == 0)
      rstd_TH[static_cast<int64_t>(pair) * Pair::heads + lane / Pair::lanes] = rstd;
    if (!y) continue;
#pragma unroll
    for (int i = 0; i < each; ++i) o[i] = o[i] * rstd * w[i] * (z[i] * sigmoid_for<Pair::T>(z[i]));
    store_pack(y + static_cast<int64_t>(pair) * Pair::elements + own, narrow<Pair::T>(o));
  }
}

/// Grid: blocks of per_block pairs of the T Hv / 2. partial: [blocks, 128].
__global__ void __launch_bounds__(Norm::threads, BackwardRing::blocks)
    pair_backward_kernel(const __grid_constant__ Call<Pair::T> call, Pair::T* __restrict__ d_o,
                         Pair::T* __restrict__ dz, const Pair::T* __restrict__ dy,
                         const float* __restrict__ rstd_TH, float* __restrict__ partial, int per_block) {
  constexpr int each = Pair::each;
  using Eight = float[each];
  const int lane = static_cast<int>(threadIdx.x) % warp_size,
            warp = static_cast<int>(threadIdx.x) / warp_size;
  const int begin = static_cast<int>(blockIdx.x) * per_block;
  const int end = min(begin + per_block, static_cast<int>(call.tokens) * call.heads / Pair::heads);
  BackwardRing ring(call, dy, begin, end, warp, lane);
  const int own = lane * each;  // first element in a pair
  Eight w, dw = {};
#pragma unroll
  for (int i = 0; i < each; ++i) w[i] = call.w[own % Pair::dim + i];
  const auto rstd_of = [&](int pair) {
    return pair < end ? rstd_TH[static_cast<int64_t>(pair) * Pair::heads + lane / Pair::lanes] : 0.0f;
  };
  float next_rstd = rstd_of(begin + warp);
  for (int pair = begin + warp; pair < end; pair += Norm::warps) {
    Eight n, z, d;
    ring.take(n, z, d);
    const float rstd = next_rstd;
    next_rstd = rstd_of(pair + Norm::warps);
    float along = 0;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const float s = sigmoid_for<Pair::T>(z[i]), gate = z[i] * s;
      n[i] *= rstd;
      const float dn = d[i] * n[i];
      dw[i] += dn * gate;
      d[i] = d[i] * w[i] * gate;
      along += n[i] * d[i];
      z[i] = dn * w[i] * (s + gate * (1.0f - s));
    }
    if (dz) store_pack(dz + ring.z_offset(), narrow<Pair::T>(z));
    ring.done();
    if (!d_o) continue;
    const float mean = lanes_sum<Pair::lanes>(along) / static_cast<float>(Pair::dim);
#pragma unroll
    for (int i = 0; i < each; ++i) d[i] = rstd * (d[i] - n[i] * mean);
    store_pack(d_o + static_cast<int64_t>(pair) * Pair::elements + own, narrow<Pair::T>(d));
  }
  ptx::let_next_kernel_start();
  // dw of the halves of all warps, in the ring: nothing is under way to it any more once all are here.
  ptx::cp_async_wait<0>();
  __syncthreads();
  float* const sums = dynamic_shared<float>();
#pragma unroll
  for (int i = 0; i < each; ++i) sums[warp * Pair::elements + own + i] = dw[i];
  __syncthreads();
  for (int j = static_cast<int>(threadIdx.x); j < Pair::dim; j += Norm::threads) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Norm::warps * Pair::heads; ++i) sum += sums[i * Pair::dim + j];
    partial[static_cast<int64_t>(blockIdx.x) * Pair::dim + j] = sum;
  }
}

template <class T>
Call<T> make_call(CTensor o_THV, CTensor proj_TN, CTensor w_V, const GdnShape& shape) {
  if (shape.value_dim > Norm::max_dim) {
    throw Error(ErrorKind::internal, "no CUDA kernel for value heads of " + std::to_string(shape.value_dim),
                "gated_rmsnorm", "please report it with the command line");
  }
  return {pointer<T>(o_THV),
          pointer<T>(proj_TN) + shape.z_column(),
          pointer<float>(w_V),
          proj_TN.dim(0),
          shape.columns(),
          static_cast<int>(shape.value_heads),
          static_cast<int>(shape.value_dim)};
}

/// Packs of 4 where every row of a head starts at a multiple of it.
bool whole(const GdnShape& shape) {
  return (shape.value_dim | shape.columns() | shape.z_column()) % 4 == 0;
}
/// Whether the kernels of pairs serve it.
bool in_pairs(const GdnShape& shape) {
  return shape.value_dim == Pair::dim && shape.value_heads % Pair::heads == 0 &&
         (shape.columns() | shape.z_column()) % Pair::each == 0;
}

}  // namespace

void gated_rmsnorm_forward(Stream& stream, Tensor y_THV, Tensor rstd_TH, CTensor o_THV, CTensor proj_TN,
                           CTensor w_V, GdnShape shape, float eps) {
  if (proj_TN.dim(0) == 0) return;
  by_storage(proj_TN.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned = aligned16(y_THV.data, o_THV.data, proj_TN.data, w_V.data);
    if constexpr (std::is_same_v<T, Pair::T>) {
      if (aligned && in_pairs(shape)) {
        const int64_t pairs = proj_TN.dim(0) * shape.value_heads / Pair::heads;
        const auto blocks = static_cast<unsigned>(std::min<int64_t>(ForwardRing::grid, pairs));
        launch_shared(stream, {"gated_rmsnorm_forward", proj_TN}, pair_forward_kernel, dim3(blocks),
                      dim3(Norm::threads), ForwardRing::shared, make_call<T>(o_THV, proj_TN, w_V, shape),
                      wanted<T>(y_THV), wanted<float>(rstd_TH), eps,
                      static_cast<int>((pairs + blocks - 1) / blocks));
        return;
      }
    }
    by_lanes<4>(shape.value_dim, aligned && whole(shape), [&](auto n, auto r) {
      launch(stream, {"gated_rmsnorm_forward", proj_TN}, forward_kernel<T, n(), r()>,
             dim3(static_cast<unsigned>(proj_TN.dim(0))), dim3(Norm::threads), 0,
             make_call<T>(o_THV, proj_TN, w_V, shape), wanted<T>(y_THV), wanted<float>(rstd_TH), eps);
    });
  });
}

void gated_rmsnorm_backward(Stream& stream, Tensor do_THV, Tensor dproj_TN, Tensor dw_V, CTensor dy_THV,
                            CTensor o_THV, CTensor proj_TN, CTensor w_V, CTensor rstd_TH, GdnShape shape) {
  if (proj_TN.dim(0) == 0) return;
  by_storage(proj_TN.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t tokens = proj_TN.dim(0), dim = shape.value_dim;
    unsigned blocks = blocks_for(tokens, GdnCudaTile::norm_tokens);
    float* const partial =
        reinterpret_cast<float*>(stream.scratch(gated_rmsnorm_backward_cuda_scratch(shape, tokens)));
    const bool aligned =
        aligned16(do_THV.data, dproj_TN.data, dy_THV.data, o_THV.data, proj_TN.data, w_V.data);
    const auto call = make_call<T>(o_THV, proj_TN, w_V, shape);
    T* const dz = dproj_TN.empty() ? nullptr : pointer<T>(dproj_TN) + shape.z_column();
    const auto run = [&](auto kernel, size_t shared, auto... last) {
      launch_shared(stream, {"gated_rmsnorm_backward", proj_TN}, kernel, dim3(blocks), dim3(Norm::threads),
                    shared, call, wanted<T>(do_THV), dz, pointer<T>(dy_THV), pointer<float>(rstd_TH), partial,
                    last...);
    };
    const auto by_head = [&] {
      by_lanes<4>(dim, aligned && whole(shape),
                  [&](auto n, auto r) { run(backward_kernel<T, n(), r()>, 0); });
    };
    if constexpr (std::is_same_v<T, Pair::T>) {
      if (aligned && in_pairs(shape)) {
        blocks = std::min(blocks, static_cast<unsigned>(BackwardRing::grid));
        const int64_t pairs = tokens * shape.value_heads / Pair::heads;
        run(pair_backward_kernel, BackwardRing::shared, static_cast<int>((pairs + blocks - 1) / blocks));
      } else {
        by_head();
      }
    } else {
      by_head();
    }
    add_partials(stream, {"gated_rmsnorm_backward: dw", proj_TN},
                 {wanted<float>(dw_V), partial, dim, dim, static_cast<int64_t>(blocks)});
  });
}

}  // namespace deltatune::cuda
