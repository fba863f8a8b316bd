// gated_delta backward, plain: formulas in ops/delta_net.h, cut into what is serial and what is not.
//
// Notation inside a chunk: e_t = v - S'^T k, d = beta e, R as there, dd = R^T k; A_ut = product of e^g over
// (t, u]; S and R without index: the state entering the chunk and its gradient leaving it.
//   1. errors: e_t, chunk by chunk from the stored states, all chunks at once (the recurrence of forward).
//   2. reverse: R through the chunks of each document in reverse, in registers: dd_t, dv_t, and R leaving
//      each chunk.
//   3. products, one block per chunk and key head, from expanding R_t and S'_t into the chunk's tokens:
//        dq_t = s [A_t0 S do_t + sum_{j<=t} A_tj (d_j . do_t) k_j]
//        dk_t = sum_{u>=t} A_ut s (do_u . d_t) q_u + A_nt R d_t - A_t0 S dv_t
//               - sum_{u>t} A_ut (dv_u . d_t) k_u - sum_{j<t} A_tj (dv_t . d_j) k_j
//        dg_t = sum_{u>=t>j} A_uj [s (q_u . k_j)(do_u . d_j) - (k_u . k_j)(dv_u . d_j)]
//               + sum_{u>=t} A_u0 [s q_u . S do_u - k_u . S dv_u] + sum_{j<t} A_nj k_j . R d_j + A_n0 <R, S>
//      (s = dk^-1/2, A_t0 over [first, t], n the last token), dbeta_t = dd_t . e_t. Every A is the
//      exponential of a sum of its own g: never a quotient or a difference, so nothing cancels or overflows.
// Chunks are handled in windows of 32, last window first, which bounds the scratch; R crosses from window to
// window in two alternating carries, so that a block never reads what another block of the launch writes.
#include "cuda/cuda_ops.h"
#include "cuda/kernels/gated_delta.cuh"
#include "cuda/kernels/tile.cuh"
#include "ops/delta_net_cuda_scratch.h"

namespace deltatune::cuda {
namespace gdn {
namespace {

/// The chunks [begin, begin + 32) of the table, and the scratch of a window. Rows are counted from the first
/// token of the window.
struct Window {
  int64_t begin;
  float* errors;       ///< [tokens, Hv, dv]
  float* dd;           ///< [tokens, Hv, dv]
  float* leaving;      ///< R leaving each chunk, [32, Hv, dk, dv]
  const float* later;  ///< R leaving the last chunk of the window, [Hv, dk, dv], if its document goes on
  float* earlier;      ///< out: R leaving the chunk before the window
};

/// Outputs.
template <class T>
struct Gradients {
  T *dq, *dk, *dv;
  float *dg, *dbeta;
};

/// Grid: chunks of the window, value heads, slices.
template <class T, int Rows>
__global__ void __launch_bounds__(Walk::threads) errors_kernel(Call<T> call, Window window) {
  constexpr int padded = Stage<Rows>::padded;
  const int64_t c = window.begin + blockIdx.x, h = blockIdx.y;
  if (c >= call.num_chunks || call.length(c) == 0) return;
  const Stage<Rows> stage(dynamic_shared<float>());
  const Place place(blockIdx.z);
  const int64_t dk = call.key_dim, width = call.value_dim - place.column0;
  const int64_t value_stride = call.value_heads * call.value_dim;
  const int64_t window_row = call.value_row(call.first_token(window.begin), 0);
  float s[Rows];
  load_state(s, call.states + call.state(c, h), place, dk, call.value_dim);
  for (int begin = 0; begin < call.length(c); begin += Walk::tokens) {
    const int n = min(Walk::tokens, call.length(c) - begin);
    const int64_t t0 = call.first_token(c) + begin;
    const int64_t value0 = call.value_row(t0, h) + place.column0;
    __syncthreads();
    stage_rows(stage.k, padded, call.k + call.key_row(t0, h), call.key_heads * dk, n, dk);
    stage_rows(stage.v, Walk::columns, call.v + value0, value_stride, n, width);
    stage_gates(stage.alpha, stage.beta, call, t0, n, h);
    __syncthreads();
    for (int t = 0; t < n; ++t) {
      float k[Rows];
      read_row(k, stage.k + t * padded, place);
      const float error = decay_and_miss(s, k, stage.alpha[t], stage.v[t * Walk::columns + place.column]);
      const float d = error * stage.beta[t];
#pragma unroll
      for (int m = 0; m < Rows; ++m) s[m] += k[m] * d;
      if (place.group == 0) stage.out[t * Walk::columns + place.column] = error;
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < n * Walk::columns; i += Walk::threads) {
      const int j = i % Walk::columns;
      if (j < width) window.errors[value0 - window_row + i / Walk::columns * value_stride + j] = stage.out[i];
    }
  }
}

/// Up to Walk::tokens tokens in reverse: takes R back over them, writes dd and dv.
template <class T, int Rows>
__device__ void walk_back(const Call<T>& call, float (&r)[Rows], float* __restrict__ dd_out,
                          T* __restrict__ dv_out, const Stage<Rows>& stage, const Place& place, int64_t t0,
                          int n, int64_t h) {
  constexpr int padded = Stage<Rows>::padded;
  const int64_t dk = call.key_dim, width = call.value_dim - place.column0;
  const int64_t key_stride = call.key_heads * dk, value_stride = call.value_heads * call.value_dim;
  const int64_t value0 = call.value_row(t0, h) + place.column0;
  stage_rows(stage.k, padded, call.k + call.key_row(t0, h), key_stride, n, dk);
  stage_rows(stage.q, padded, call.q + call.key_row(t0, h), key_stride, n, dk);
  stage_rows(stage.v, Walk::columns, call.d_o + value0, value_stride, n, width);
  stage_gates(stage.alpha, stage.beta, call, t0, n, h);
  __syncthreads();
  for (int t = n - 1; t >= 0; --t) {
    float row[Rows];
    read_row(row, stage.q + t * padded, place);
    const float dout = stage.v[t * Walk::columns + place.column] * call.scale;
#pragma unroll
    for (int m = 0; m < Rows; ++m) r[m] += row[m] * dout;
    read_row(row, stage.k + t * padded, place);
    float dd = 0;
#pragma unroll
    for (int m = 0; m < Rows; ++m) dd += r[m] * row[m];
    dd = lanes_sum<Walk::groups>(dd);
    const float dv = dd * stage.beta[t], alpha = stage.alpha[t];
#pragma unroll
    for (int m = 0; m < Rows; ++m) r[m] = (r[m] - row[m] * dv) * alpha;
    if (place.group == 0) stage.out[t * Walk::columns + place.column] = dd;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < n * Walk::columns; i += Walk::threads) {
    const int j = i % Walk::columns;
    if (j >= width) continue;
    const int64_t at = value0 + i / Walk::columns * value_stride + j;
    dd_out[at] = stage.out[i];
    if (dv_out) dv_out[at] = store<T>(stage.out[i] * stage.beta[i / Walk::columns]);
  }
  __syncthreads();
}

/// Grid: chunks of the window, value heads, slices. The block at the last chunk of a document inside the
/// window walks that document back to its start or the window's.
template <class T, int Rows>
__global__ void __launch_bounds__(Walk::threads)
    reverse_kernel(Call<T> call, Window window, T* __restrict__ dv) {
  const int64_t last = window.begin + blockIdx.x, h = blockIdx.y;
  if (last >= call.num_chunks || call.length(last) == 0) return;
  const bool goes_on = call.continues(last);
  const bool at_end = last + 1 == window.begin + GdnCudaTile::window;
  if (goes_on && !at_end) return;
  const Stage<Rows> stage(dynamic_shared<float>());
  const Place place(blockIdx.z);
  const int64_t dk = call.key_dim, value_dim = call.value_dim;
  float* const dd = window.dd - call.value_row(call.first_token(window.begin), 0);
  float r[Rows];
  load_state(r, goes_on ? window.later + call.state(0, h) : nullptr, place, dk, value_dim);
  for (int64_t c = last;; --c) {
    store_state(window.leaving + call.state(c - window.begin, h), r, place, dk, value_dim);
    for (int begin = (call.length(c) - 1) / Walk::tokens * Walk::tokens; begin >= 0; begin -= Walk::tokens) {
      walk_back(call, r, dd, dv, stage, place, call.first_token(c) + begin,
                min(Walk::tokens, call.length(c) - begin), h);
    }
    if (call.number(c) == 0) break;
    if (c == window.begin) {
      store_state(window.earlier + call.state(0, h), r, place, dk, value_dim);
      break;
    }
  }
}

/// Shared memory of products_kernel.
struct ProductsShared {
  static constexpr int64_t stride = Tile::stride;
  static constexpr int square = Tile::rows * Tile::stride;
  static constexpr int floats = Tile::panel_floats<8> + 3 * square + 6 * Tile::rows + 8;
  float* panels;
  float* out_weights;   ///< [u][t] = A_ut (do_u . d_t), u >= t; first A_ut itself
  float* self_weights;  ///< [u][t] = A_ut (dv_u . d_t), u > t, and its mirror image
  float* decay_terms;   ///< [u][j], u > j: the terms of dg
  float* from_start;    ///< A_u0
  float* to_end;        ///< A_nt
  float* beta;
  float* g;
  float* later_terms;    ///< [u], summed into dg_t for u >= t
  float* earlier_terms;  ///< [j], summed into dg_t for j < t
  float* warps;

  __device__ explicit ProductsShared(float* memory) {
    panels = memory;
    out_weights = panels + Tile::panel_floats<8>;
    self_weights = out_weights + square;
    decay_terms = self_weights + square;
    from_start = decay_terms + square;
    to_end = from_start + Tile::rows;
    beta = to_end + Tile::rows;
    g = beta + Tile::rows;
    later_terms = g + Tile::rows;
    earlier_terms = later_terms + Tile::rows;
    warps = earlier_terms + Tile::rows;
  }
};

/// One chunk of one value head, as the products see it; rows beyond the chunk are zero.
template <class T>
struct Chunk {
  const Call<T>& call;
  const ProductsShared& x;
  int n;  ///< tokens
  const T *q, *k, *d_o, *state;
  const float *error, *dd, *leaving;

  __device__ float query(int t, int64_t i) const {
    return t < n && i < call.key_dim ? load(q[t * call.key_heads * call.key_dim + i]) : 0.0f;
  }
  __device__ float key(int t, int64_t i) const {
    return t < n && i < call.key_dim ? load(k[t * call.key_heads * call.key_dim + i]) : 0.0f;
  }
  __device__ int64_t value(int t, int64_t j) const { return t * call.value_heads * call.value_dim + j; }
  __device__ float dout(int t, int64_t j) const { return t < n ? load(d_o[value(t, j)]) : 0.0f; }
  __device__ float d(int t, int64_t j) const { return t < n ? error[value(t, j)] * x.beta[t] : 0.0f; }
  __device__ float dv(int t, int64_t j) const { return t < n ? dd[value(t, j)] * x.beta[t] : 0.0f; }
  /// Row i of a [dk, dv] matrix.
  template <class M>
  __device__ float entry(const M* matrix, int64_t i, int64_t j) const {
    return i < call.key_dim ? load(matrix[i * call.value_dim + j]) : 0.0f;
  }
};

/// g, beta and all products of decays of the chunk; out_weights[u][t] = A_ut for n > u >= t.
template <class T>
__device__ void prepare_decays(const Chunk<T>& chunk, int64_t t0, int64_t h) {
  const ProductsShared& x = chunk.x;
  const Call<T>& call = chunk.call;
  const int t = static_cast<int>(threadIdx.x);
  if (t < Tile::rows) {
    x.g[t] = t < chunk.n ? call.g[(t0 + t) * call.value_heads + h] : 0.0f;
    x.beta[t] = t < chunk.n ? call.beta[(t0 + t) * call.value_heads + h] : 0.0f;
  }
  __syncthreads();
  if (t < Tile::rows) {
    float sum = 0;
    for (int u = 0; u < Tile::rows; ++u) {
      if (u > t) sum += x.g[u];
      const bool valid = u >= t && u < chunk.n;
      x.out_weights[u * ProductsShared::stride + t] = valid ? expf(sum) : 0.0f;
      if (u == chunk.n - 1) x.to_end[t] = valid ? expf(sum) : 0.0f;
    }
    float start = 0;
    for (int u = 0; u <= t; ++u) start += x.g[u];
    x.from_start[t] = t < chunk.n ? expf(start) : 0.0f;
  }
  __syncthreads();
}

/// out_weights, self_weights and the pairwise terms of dg.
template <class T>
__device__ void weigh_pairs(const Chunk<T>& chunk) {
  const ProductsShared& x = chunk.x;
  const int value_dim = static_cast<int>(chunk.call.value_dim),
            key_dim = static_cast<int>(chunk.call.key_dim);
  const auto d = [&](int t, int j) { return chunk.d(t, j); };
  const auto key = [&](int t, int i) { return chunk.key(t, i); };
  float out[4][4] = {}, self[4][4] = {}, qk[4][4] = {}, kk[4][4] = {};
  multiply<Along::depth, Along::depth>(
      out, value_dim, x.panels, [&](int t, int j) { return chunk.dout(t, j); }, d);
  multiply<Along::depth, Along::depth>(
      self, value_dim, x.panels, [&](int t, int j) { return chunk.dv(t, j); }, d);
  multiply<Along::depth, Along::depth>(
      qk, key_dim, x.panels, [&](int t, int i) { return chunk.query(t, i); }, key);
  multiply<Along::depth, Along::depth>(kk, key_dim, x.panels, key, key);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int u = Tile::row() + i, t = Tile::column(j);
      const int64_t at = u * ProductsShared::stride + t;
      const float decay = x.out_weights[at];
      const float out_weight = decay * out[i][j];
      const float self_weight = u > t ? decay * self[i][j] : 0.0f;
      x.out_weights[at] = out_weight;
      if (u >= t) {
        x.self_weights[at] = self_weight;
        x.self_weights[t * ProductsShared::stride + u] = self_weight;
      }
      x.decay_terms[at] = u > t ? chunk.call.scale * qk[i][j] * out_weight - kk[i][j] * self_weight : 0.0f;
    }
  }
  __syncthreads();
}

/// to[row] += factor[row] sum over this tile's columns of value[row][.] element(row, column).
template <int NC, class F>
__device__ void add_row_dots(float* to, const float (&value)[4][NC], F&& element) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < NC; ++c) sum += value[i][c] * element(Tile::row() + i, Tile::column(c));
    sum = lanes_sum<Tile::lanes>(sum);
    if (threadIdx.x % Tile::lanes == 0) to[Tile::row() + i] += sum;
  }
}

/// Adds one value head's part to the columns [column0, column0 + 16 NC) of dq and dk, and fills the terms of
/// dg that belong to those columns.
template <class T, int NC>
__device__ void add_products(const Chunk<T>& chunk, float (&dq)[4][NC], float (&dk)[4][NC], int64_t column0) {
  const ProductsShared& x = chunk.x;
  const int value_dim = static_cast<int>(chunk.call.value_dim), n = chunk.n;
  const float scale = chunk.call.scale;
  const auto state = [&](int i, int j) { return chunk.entry(chunk.state, column0 + i, j); };
  const auto key = [&](int i, int t) { return chunk.key(t, column0 + i); };
  const auto key_at = [&](int t, int i) { return chunk.key(t, column0 + i); };
  {
    float part[4][NC] = {};  // s A_t0 S do_t
    multiply<Along::depth, Along::depth>(
        part, value_dim, x.panels, [&](int t, int j) { return chunk.dout(t, j) * (x.from_start[t] * scale); },
        state);
    add_row_dots(x.later_terms, part, [&](int t, int i) { return chunk.query(t, column0 + i); });
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int c = 0; c < NC; ++c) dq[i][c] += part[i][c];
    }
  }
  multiply<Along::depth, Along::rows>(
      dq, n, x.panels,
      [&](int t, int j) { return j <= t ? x.out_weights[t * ProductsShared::stride + j] * scale : 0.0f; },
      key);
  {
    float part[4][NC] = {};  // -A_t0 S dv_t
    multiply<Along::depth, Along::depth>(
        part, value_dim, x.panels, [&](int t, int j) { return chunk.dv(t, j) * -x.from_start[t]; }, state);
    add_row_dots(x.later_terms, part, key_at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int c = 0; c < NC; ++c) dk[i][c] += part[i][c];
    }
  }
  {
    float part[4][NC] = {};  // A_nt R d_t
    multiply<Along::depth, Along::depth>(
        part, value_dim, x.panels, [&](int t, int j) { return chunk.d(t, j) * x.to_end[t]; },
        [&](int i, int j) { return chunk.entry(chunk.leaving, column0 + i, j); });
    add_row_dots(x.earlier_terms, part, key_at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int c = 0; c < NC; ++c) dk[i][c] += part[i][c];
    }
  }
  multiply<Along::rows, Along::rows>(
      dk, n, x.panels,
      [&](int t, int u) { return u >= t ? x.out_weights[u * ProductsShared::stride + t] * scale : 0.0f; },
      [&](int i, int u) { return chunk.query(u, column0 + i); });
  multiply<Along::depth, Along::rows>(
      dk, n, x.panels, [&](int t, int u) { return -x.self_weights[t * ProductsShared::stride + u]; }, key);
}

/// <R, S> over the rows [row0, row0 + rows) of the state; every thread gets it.
template <class T>
__device__ float state_product(const Chunk<T>& chunk, int64_t row0, int64_t rows) {
  const int64_t begin = row0 * chunk.call.value_dim;
  const int64_t end = min(row0 + rows, chunk.call.key_dim) * chunk.call.value_dim;
  float sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += Tile::threads)
    sum += load(chunk.state[i]) * chunk.leaving[i];
  sum = lanes_sum(sum);
  if (threadIdx.x % warp_size == 0) chunk.x.warps[threadIdx.x / warp_size] = sum;
  __syncthreads();
  float total = 0;
  for (int i = 0; i < Tile::threads / warp_size; ++i) total += chunk.x.warps[i];
  return total;
}

/// dg from its terms: written by the first tile of columns, added to by later ones.
template <class T>
__device__ void store_decay_gradient(const Chunk<T>& chunk, float* dg, int64_t t0, int64_t h, bool first,
                                     float states_product) {
  const ProductsShared& x = chunk.x;
  const int t = static_cast<int>(threadIdx.x), n = chunk.n;
  if (first && t < n) {  // decay_terms[u][t] <- sum over u' >= u
    float sum = 0;
    for (int u = n - 1; u >= 0; --u) {
      sum += x.decay_terms[u * ProductsShared::stride + t];
      x.decay_terms[u * ProductsShared::stride + t] = sum;
    }
  }
  __syncthreads();
  if (t >= n) return;
  float sum = x.from_start[n - 1] * states_product;
  for (int u = t; u < n; ++u) sum += x.later_terms[u];
  for (int j = 0; j < t; ++j) sum += x.earlier_terms[j];
  for (int j = 0; first && j < t; ++j) sum += x.decay_terms[t * ProductsShared::stride + j];
  float* const out = dg + (t0 + t) * chunk.call.value_heads + h;
  *out = first ? sum : *out + sum;
}

/// dbeta_t = dd_t . e_t, a warp per token.
template <class T>
__device__ void store_beta_gradient(const Chunk<T>& chunk, float* dbeta, int64_t t0, int64_t h) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  for (int t = static_cast<int>(threadIdx.x) / warp_size; t < chunk.n; t += Tile::threads / warp_size) {
    float sum = 0;
    for (int64_t j = lane; j < chunk.call.value_dim; j += warp_size) {
      sum += chunk.dd[chunk.value(t, j)] * chunk.error[chunk.value(t, j)];
    }
    sum = lanes_sum(sum);
    if (lane == 0) dbeta[(t0 + t) * chunk.call.value_heads + h] = sum;
  }
}

template <class T, int NC>
__device__ void store_tile(T* __restrict__ out, const float (&value)[4][NC], const Call<T>& call, int64_t row,
                           int n, int64_t column0) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int c = 0; c < NC; ++c) {
      const int64_t t = Tile::row() + i, column = column0 + Tile::column(c);
      if (t < n && column < call.key_dim)
        out[row + t * call.key_heads * call.key_dim + column] = store<T>(value[i][c]);
    }
  }
}

/// Grid: chunks of the window, key heads.
template <class T, int NC>
__global__ void __launch_bounds__(Tile::threads)
    products_kernel(Call<T> call, Window window, Gradients<T> gradients) {
  const int64_t c = window.begin + blockIdx.x, key_head = blockIdx.y;
  if (c >= call.num_chunks || call.length(c) == 0) return;
  const ProductsShared shared(dynamic_shared<float>());
  const int n = call.length(c);
  const int64_t t0 = call.first_token(c), ratio = call.value_heads / call.key_heads;
  const int64_t key_row = call.key_row(t0, key_head * ratio);
  const int64_t window_row = call.value_row(call.first_token(window.begin), 0);
  for (int64_t column0 = 0; column0 < call.key_dim; column0 += 16 * NC) {
    float dq[4][NC] = {}, dk[4][NC] = {};
    for (int64_t h = key_head * ratio; h < (key_head + 1) * ratio; ++h) {
      const int64_t value_row = call.value_row(t0, h);
      const Chunk<T> chunk{call,
                           shared,
                           n,
                           call.q + key_row,
                           call.k + key_row,
                           call.d_o + value_row,
                           call.states + call.state(c, h),
                           window.errors + value_row - window_row,
                           window.dd + value_row - window_row,
                           window.leaving + call.state(blockIdx.x, h)};
      __syncthreads();
      prepare_decays(chunk, t0, h);
      weigh_pairs(chunk);
      if (threadIdx.x < Tile::rows) {
        shared.later_terms[threadIdx.x] = 0;
        shared.earlier_terms[threadIdx.x] = 0;
      }
      const float product = state_product(chunk, column0, 16 * NC);
      add_products(chunk, dq, dk, column0);
      __syncthreads();
      if (gradients.dg) store_decay_gradient(chunk, gradients.dg, t0, h, column0 == 0, product);
      if (gradients.dbeta && column0 == 0) store_beta_gradient(chunk, gradients.dbeta, t0, h);
    }
    if (gradients.dq) store_tile(gradients.dq, dq, call, key_row, n, column0);
    if (gradients.dk) store_tile(gradients.dk, dk, call, key_row, n, column0);
  }
}

/// Windows from the last to the first.
template <class T, int Rows>
void run_windows(const Stream& stream, const Call<T>& call, const Gradients<T>& gradients,
                 const GdnShape& shape, const Shape& values) {
  constexpr int64_t size = GdnCudaTile::window;
  constexpr int NC = Rows <= 8 ? 4 : 8;
  const int64_t rows = size * gdn_chunk * shape.values(), states = gdn_state_elements(shape);
  float* const scratch = reinterpret_cast<float*>(stream.scratch(gated_delta_backward_cuda_scratch(shape)));
  float* const leaving = scratch + 2 * rows;
  float* const carries = leaving + size * states;
  const dim3 heads(static_cast<unsigned>(size), static_cast<unsigned>(shape.value_heads), slices_of(shape));
  const dim3 key_heads(static_cast<unsigned>(size), static_cast<unsigned>(shape.key_heads));
  const size_t stage = Stage<Rows>::floats * sizeof(float);
  for (int64_t w = (call.num_chunks + size - 1) / size - 1; w >= 0; --w) {
    const Window window{
        w * size, scratch, scratch + rows, leaving, carries + w % 2 * states, carries + (w + 1) % 2 * states};
    launch_shared(stream, {"gated_delta_backward: errors", values}, errors_kernel<T, Rows>, heads,
                  dim3(Walk::threads), stage, call, window);
    launch_shared(stream, {"gated_delta_backward: reverse", values}, reverse_kernel<T, Rows>, heads,
                  dim3(Walk::threads), stage, call, window, gradients.dv);
    launch_shared(stream, {"gated_delta_backward: products", values}, products_kernel<T, NC>, key_heads,
                  dim3(Tile::threads), ProductsShared::floats * sizeof(float), call, window, gradients);
  }
}

}  // namespace
}  // namespace gdn

void gated_delta_backward(Stream& stream, Tensor dq_THK, Tensor dk_THK, Tensor dv_THV, Tensor dg_TH,
                          Tensor dbeta_TH, CTensor do_THV, CTensor states_CHKV, CTensor q_THK, CTensor k_THK,
                          CTensor v_THV, CTensor g_TH, CTensor beta_TH, const Segments& segments,
                          GdnShape shape) {
  by_storage(q_THK.dtype, [&](auto zero) {
    using T = decltype(zero);
    auto call = gdn::make_call<T>(q_THK, k_THK, v_THV, g_TH, beta_TH, segments, shape);
    call.d_o = pointer<T>(do_THV);
    call.states = pointer<T>(states_CHKV);
    const gdn::Gradients<T> gradients{wanted<T>(dq_THK), wanted<T>(dk_THK), wanted<T>(dv_THV),
                                      wanted<float>(dg_TH), wanted<float>(dbeta_TH)};
    gdn::by_rows(shape.key_dim,
                 [&]<int Rows>() { gdn::run_windows<T, Rows>(stream, call, gradients, shape, v_THV.shape); });
  });
}

}  // namespace deltatune::cuda
