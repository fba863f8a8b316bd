// gated_delta forward, plain: the recurrence of ops/delta_net.h token by token, state in registers.
//
// One block per (document, value head, 32 columns of the state); the grid has a block for every entry of the
// chunk table, and only those at the first chunk of a document work. Blocks depend on nothing outside their
// document.
#include "cuda/cuda_ops.h"
#include "cuda/kernels/gated_delta.cuh"

namespace deltatune::cuda {
namespace gdn {
namespace {

/// Up to Walk::tokens tokens from t0: walks S on and writes o.
template <class T, int Rows>
__device__ void walk(const Call<T>& call, float (&s)[Rows], T* __restrict__ o, const Stage<Rows>& stage,
                     const Place& place, int64_t t0, int n, int64_t h) {
  constexpr int padded = Stage<Rows>::padded;
  const int64_t dk = call.key_dim, width = call.value_dim - place.column0;
  const int64_t key_stride = call.key_heads * dk, value_stride = call.value_heads * call.value_dim;
  const int64_t value0 = call.value_row(t0, h) + place.column0;
  stage_rows(stage.k, padded, call.k + call.key_row(t0, h), key_stride, n, dk);
  stage_rows(stage.q, padded, call.q + call.key_row(t0, h), key_stride, n, dk);
  stage_rows(stage.v, Walk::columns, call.v + value0, value_stride, n, width);
  stage_gates(stage.alpha, stage.beta, call, t0, n, h);
  __syncthreads();
  for (int t = 0; t < n; ++t) {
    float row[Rows];
    read_row(row, stage.k + t * padded, place);
    const float v = stage.v[t * Walk::columns + place.column];
    const float d = decay_and_miss(s, row, stage.alpha[t], v) * stage.beta[t];
#pragma unroll
    for (int m = 0; m < Rows; ++m) s[m] += row[m] * d;
    read_row(row, stage.q + t * padded, place);
    float out = 0;
#pragma unroll
    for (int m = 0; m < Rows; ++m) out += s[m] * row[m];
    out = lanes_sum<Walk::groups>(out);
    if (place.group == 0) stage.out[t * Walk::columns + place.column] = out * call.scale;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); o && i < n * Walk::columns; i += Walk::threads) {
    const int j = i % Walk::columns;
    if (j < width) o[value0 + i / Walk::columns * value_stride + j] = store<T>(stage.out[i]);
  }
}

/// Grid: chunk table, value heads, slices of columns.
template <class T, int Rows>
__global__ void __launch_bounds__(Walk::threads)
    forward_kernel(Call<T> call, T* __restrict__ o, T* __restrict__ states) {
  const int64_t first = blockIdx.x, h = blockIdx.y;
  if (call.length(first) == 0 || call.number(first) != 0) return;
  const Stage<Rows> stage(dynamic_shared<float>());
  const Place place(blockIdx.z);
  float s[Rows];
  load_state<T>(s, nullptr, place, call.key_dim, call.value_dim);
  for (int64_t c = first;; ++c) {
    if (states) store_state(states + call.state(c, h), s, place, call.key_dim, call.value_dim);
    for (int t = 0; t < call.length(c); t += Walk::tokens) {
      walk(call, s, o, stage, place, call.first_token(c) + t, min(Walk::tokens, call.length(c) - t), h);
    }
    if (!call.continues(c)) break;
  }
}

}  // namespace
}  // namespace gdn

void gated_delta_forward(Stream& stream, Tensor o_THV, Tensor states_CHKV, CTensor q_THK, CTensor k_THK,
                         CTensor v_THV, CTensor g_TH, CTensor beta_TH, const Segments& segments,
                         GdnShape shape) {
  by_storage(q_THK.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto call = gdn::make_call<T>(q_THK, k_THK, v_THV, g_TH, beta_TH, segments, shape);
    gdn::by_rows(shape.key_dim, [&]<int Rows>() {
      launch_shared(stream, {"gated_delta_forward", v_THV}, gdn::forward_kernel<T, Rows>,
                    dim3(static_cast<unsigned>(segments.chunks.dim(0)),
                         static_cast<unsigned>(shape.value_heads), gdn::slices_of(shape)),
                    dim3(gdn::Walk::threads), gdn::Stage<Rows>::floats * sizeof(float), call,
                    wanted<T>(o_THV), wanted<T>(states_CHKV));
    });
  });
}

}  // namespace deltatune::cuda
