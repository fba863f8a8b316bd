// sigmoid_gate: y = o sigmoid(gate), formulas in ops/attention.h. One thread per element; y may be o's memory
// and do dy's, since a thread reads its elements before it writes.
#include "cuda/cuda_ops.h"
#include "cuda/kernels/sums.cuh"

namespace deltatune::cuda {
namespace {

constexpr int threads = 256;

/// Where in proj the gate of element i of a [T, H, K] tensor lies.
__device__ int64_t gate_of(int64_t i, AttentionShape shape) {
  const int64_t dim = shape.head_dim;
  const int64_t head = i / dim % shape.query_heads;
  const int64_t token = i / (dim * shape.query_heads);
  const int64_t columns = (2 * shape.query_heads + 2 * shape.kv_heads) * dim;
  return token * columns + (2 * head + 1) * dim + i % dim;
}

template <class T>
__global__ void __launch_bounds__(threads)
    forward_kernel(T* y, const T* o, const T* __restrict__ proj, int64_t count, AttentionShape shape) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= count) return;
  y[i] = store<T>(load(o[i]) * sigmoid(load(proj[gate_of(i, shape)])));
}

template <class T>
__global__ void __launch_bounds__(threads)
    backward_kernel(T* d_o, T* __restrict__ dproj, const T* dy, const T* __restrict__ o,
                    const T* __restrict__ proj, int64_t count, AttentionShape shape) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= count) return;
  const int64_t gate = gate_of(i, shape);
  const float s = sigmoid(load(proj[gate]));
  const float d = load(dy[i]);
  d_o[i] = store<T>(d * s);
  dproj[gate] = store<T>(d * load(o[i]) * s * (1.0f - s));
}

}  // namespace

void sigmoid_gate_forward(Stream& stream, Tensor y_THK, CTensor o_THK, CTensor proj_TN,
                          AttentionShape shape) {
  by_storage(o_THK.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, {"sigmoid_gate_forward", o_THK}, forward_kernel<T>,
           dim3(blocks_for(o_THK.count(), threads)), dim3(threads), 0, pointer<T>(y_THK), pointer<T>(o_THK),
           pointer<T>(proj_TN), o_THK.count(), shape);
  });
}

void sigmoid_gate_backward(Stream& stream, Tensor do_THK, Tensor dproj_TN, CTensor dy_THK, CTensor o_THK,
                           CTensor proj_TN, AttentionShape shape) {
  by_storage(o_THK.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, {"sigmoid_gate_backward", o_THK}, backward_kernel<T>,
           dim3(blocks_for(o_THK.count(), threads)), dim3(threads), 0, pointer<T>(do_THK),
           pointer<T>(dproj_TN), pointer<T>(dy_THK), pointer<T>(o_THK), pointer<T>(proj_TN), o_THK.count(),
           shape);
  });
}

}  // namespace deltatune::cuda
