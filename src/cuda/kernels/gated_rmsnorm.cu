// gated_rmsnorm, plain: y = o rstd w silu(z) per value head, formulas in ops/delta_net.h. A warp per (token,
// head), heads up to 256 wide; one chain in fp32 with one rounding at the store.
//
// dw is summed over blocks of 16 tokens into scratch, then the blocks in order.
#include <string>

#include "cuda/cuda_ops.h"
#include "cuda/kernels/sums.cuh"
#include "ops/delta_net_cuda_scratch.h"

namespace deltatune::cuda {
namespace {

struct Norm {
  static constexpr int threads = 256;
  static constexpr int warps = threads / warp_size;
  static constexpr int max_dim = 256;
  static constexpr int registers = max_dim / warp_size;  ///< elements of a head per lane
};

/// What forward and backward share; z starts at the first z column of proj.
template <class T>
struct Call {
  const T *o, *z;
  const float* w;
  int64_t tokens, heads, dim, columns;

  /// Of head row i = token * heads + head.
  __device__ int64_t z_at(int64_t i) const { return i / heads * columns + i % heads * dim; }
};

/// Grid: (token, head) pairs, a warp each.
template <class T>
__global__ void __launch_bounds__(Norm::threads)
    forward_kernel(Call<T> call, T* __restrict__ y, float* __restrict__ rstd_out, float eps) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * Norm::threads + threadIdx.x) / warp_size;
  if (i >= call.tokens * call.heads) return;
  const T* const o = call.o + i * call.dim;
  const T* const z_row = call.z + call.z_at(i);
  float squares = 0;
  for (int64_t j = lane; j < call.dim; j += warp_size) squares += load(o[j]) * load(o[j]);
  const float rstd = 1.0f / sqrtf(lanes_sum(squares) / static_cast<float>(call.dim) + eps);
  if (rstd_out && lane == 0) rstd_out[i] = rstd;
  for (int64_t j = lane; y && j < call.dim; j += warp_size) {
    const float z = load(z_row[j]);
    y[i * call.dim + j] = store<T>(load(o[j]) * rstd * call.w[j] * (z * sigmoid(z)));
  }
}

/// Grid: blocks of tokens. dz is written at the z columns of dproj; partial: [blocks, dim].
template <class T>
__global__ void __launch_bounds__(Norm::threads)
    backward_kernel(Call<T> call, T* __restrict__ d_o, T* __restrict__ dz, const T* __restrict__ dy,
                    const float* __restrict__ rstd_TH, float* __restrict__ partial) {
  float* const sums = dynamic_shared<float>();  // [warps, dim]
  const int dim = static_cast<int>(call.dim);
  const int lane = static_cast<int>(threadIdx.x) % warp_size,
            warp = static_cast<int>(threadIdx.x) / warp_size;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * GdnCudaTile::norm_tokens * call.heads;
  const int64_t end = min(begin + GdnCudaTile::norm_tokens * call.heads, call.tokens * call.heads);
  float dw[Norm::registers] = {};
  for (int64_t i = begin + warp; i < end; i += Norm::warps) {
    const int64_t z_at = call.z_at(i);
    const float rstd = rstd_TH[i];
    float dn[Norm::registers];
    float mean = 0;
#pragma unroll
    for (int m = 0; m < Norm::registers; ++m) {
      const int j = lane + m * warp_size;
      if (j >= dim) continue;
      const float z = load(call.z[z_at + j]), sig = sigmoid(z), gate = z * sig;
      const float n = load(call.o[i * dim + j]) * rstd, gradient = load(dy[i * dim + j]), w = call.w[j];
      dw[m] += gradient * n * gate;
      dn[m] = gradient * w * gate;
      mean += n * dn[m];
      if (dz) dz[z_at + j] = store<T>(gradient * n * w * (sig * (1.0f + z * (1.0f - sig))));
    }
    mean = lanes_sum(mean) / static_cast<float>(dim);
#pragma unroll
    for (int m = 0; m < Norm::registers; ++m) {
      const int j = lane + m * warp_size;
      if (d_o && j < dim)
        d_o[i * dim + j] = store<T>(rstd * (dn[m] - load(call.o[i * dim + j]) * rstd * mean));
    }
  }
#pragma unroll
  for (int m = 0; m < Norm::registers; ++m) {
    const int j = lane + m * warp_size;
    if (j < dim) sums[warp * dim + j] = dw[m];
  }
  __syncthreads();
  for (int j = static_cast<int>(threadIdx.x); j < dim; j += Norm::threads) {
    float sum = 0;
    for (int i = 0; i < Norm::warps; ++i) sum += sums[i * dim + j];
    partial[static_cast<int64_t>(blockIdx.x) * dim + j] = sum;
  }
}

template <class T>
Call<T> make_call(CTensor o_THV, CTensor proj_TN, CTensor w_V, const GdnShape& shape) {
  if (shape.value_dim > Norm::max_dim) {
    throw Error(ErrorKind::internal, "no CUDA kernel for value heads of " + std::to_string(shape.value_dim),
                "gated_rmsnorm", "please report it with the command line");
  }
  return {pointer<T>(o_THV),   pointer<T>(proj_TN) + shape.z_column(),
          pointer<float>(w_V), proj_TN.dim(0),
          shape.value_heads,   shape.value_dim,
          shape.columns()};
}

}  // namespace

void gated_rmsnorm_forward(Stream& stream, Tensor y_THV, Tensor rstd_TH, CTensor o_THV, CTensor proj_TN,
                           CTensor w_V, GdnShape shape, float eps) {
  by_storage(proj_TN.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, {"gated_rmsnorm_forward", proj_TN}, forward_kernel<T>,
           dim3(blocks_for(proj_TN.dim(0) * shape.value_heads, Norm::warps)), dim3(Norm::threads), 0,
           make_call<T>(o_THV, proj_TN, w_V, shape), wanted<T>(y_THV), wanted<float>(rstd_TH), eps);
  });
}

void gated_rmsnorm_backward(Stream& stream, Tensor do_THV, Tensor dproj_TN, Tensor dw_V, CTensor dy_THV,
                            CTensor o_THV, CTensor proj_TN, CTensor w_V, CTensor rstd_TH, GdnShape shape) {
  by_storage(proj_TN.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t tokens = proj_TN.dim(0), dim = shape.value_dim;
    const unsigned blocks = blocks_for(tokens, GdnCudaTile::norm_tokens);
    float* const partial =
        reinterpret_cast<float*>(stream.scratch(gated_rmsnorm_backward_cuda_scratch(shape, tokens)));
    launch(stream, {"gated_rmsnorm_backward", proj_TN}, backward_kernel<T>, dim3(blocks), dim3(Norm::threads),
           static_cast<size_t>(Norm::warps * dim) * sizeof(float), make_call<T>(o_THV, proj_TN, w_V, shape),
           wanted<T>(do_THV), dproj_TN.empty() ? nullptr : pointer<T>(dproj_TN) + shape.z_column(),
           pointer<T>(dy_THV), pointer<float>(rstd_TH), partial);
    if (!dw_V.empty()) {
      add_partials(stream, {"gated_rmsnorm_backward: dw", proj_TN}, pointer<float>(dw_V), partial, dim, dim,
                   blocks);
    }
  });
}

}  // namespace deltatune::cuda
