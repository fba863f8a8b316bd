// gated_rmsnorm: y = o rstd w silu(z) per value head, formulas in ops/delta_net.h. A warp per (token, head),
// several of them loaded before the first is used; heads up to 256 wide; one chain in fp32 with one rounding
// at the store.
//
// dw is summed over blocks of 16 tokens into scratch, then the blocks in order.
#include <string>

#include "cuda/cuda_ops.h"
#include "cuda/kernels/sums.cuh"
#include "cuda/lanes.cuh"
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

}  // namespace

void gated_rmsnorm_forward(Stream& stream, Tensor y_THV, Tensor rstd_TH, CTensor o_THV, CTensor proj_TN,
                           CTensor w_V, GdnShape shape, float eps) {
  if (proj_TN.dim(0) == 0) return;
  by_storage(proj_TN.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned = aligned16(y_THV.data, o_THV.data, proj_TN.data, w_V.data);
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
    const unsigned blocks = blocks_for(tokens, GdnCudaTile::norm_tokens);
    float* const partial =
        reinterpret_cast<float*>(stream.scratch(gated_rmsnorm_backward_cuda_scratch(shape, tokens)));
    const bool aligned =
        aligned16(do_THV.data, dproj_TN.data, dy_THV.data, o_THV.data, proj_TN.data, w_V.data);
    by_lanes<4>(dim, aligned && whole(shape), [&](auto n, auto r) {
      launch(stream, {"gated_rmsnorm_backward", proj_TN}, backward_kernel<T, n(), r()>, dim3(blocks),
             dim3(Norm::threads), 0, make_call<T>(o_THV, proj_TN, w_V, shape), wanted<T>(do_THV),
             dproj_TN.empty() ? nullptr : pointer<T>(dproj_TN) + shape.z_column(), pointer<T>(dy_THV),
             pointer<float>(rstd_TH), partial);
    });
    add_partials(stream, {"gated_rmsnorm_backward: dw", proj_TN},
                 {wanted<float>(dw_V), partial, dim, dim, static_cast<int64_t>(blocks)});
  });
}

}  // namespace deltatune::cuda
