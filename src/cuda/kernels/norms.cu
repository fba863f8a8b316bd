// Zero-centred RMSNorm, alone and behind a residual addition.
//
// y = x rstd (1 + w), rstd = (mean x^2 + eps)^-1/2. With u = x rstd and g = dy (1 + w): dx = rstd (g - u
// mean(g u)) + dsum, dw += sum over tokens of dy u. A block holds a row in registers, so every array is read
// once. Blocks of backward walk some rows and keep their sums for dw, which go to scratch and are added block
// by block in order; the next two rows are on their way into shared memory meanwhile. Rows up to 10240
// elements.
#include <string>

#include "cuda/cuda_ops.h"
#include "cuda/kernels/sums.cuh"
#include "cuda/pack.cuh"
#include "cuda/ptx/mma.cuh"
#include "ops/scratch.h"

namespace deltatune::cuda {
namespace {

struct Tile {
  static constexpr int threads = 320;  ///< at most: as many warps as the row fills, here 5120 elements by 16
  static constexpr int elements = 32;  ///< of a thread, at most
  static constexpr int in_pairs = 16;  ///< up to this many, two blocks share a multiprocessor
};
template <int N, int R>
inline constexpr int min_blocks = N* R <= Tile::in_pairs ? 2 : 1;

/// This thread's packs of a row: N elements from (r * threads + thread) N on, r < R.
template <int N>
__device__ inline int element(int r) {
  return (r * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * N;
}

template <class T, int N, int R>
struct RowPart {
  Pack<T, N> pack[R];

  __device__ void read(const T* row, int width) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      pack[r] = {};
      if (element<N>(r) < width) pack[r] = load_pack<N>(row + element<N>(r));
    }
  }
  __device__ void write(T* row, int width) const {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (element<N>(r) < width) store_pack(row + element<N>(r), pack[r]);
    }
  }
  __device__ float operator()(int r, int i) const {
    return load(pack[r].v[i]);
  }
};

/// One row per block. sum may be the memory of x or delta (no restrict). delta null: sum is not written and x
/// is normalised.
template <class T, int N, int R>
__global__ __launch_bounds__(Tile::threads, min_blocks<N, R>) void norm_forward(T* sum, T* y, float* rstd,
                                                                                const T* x, const T* delta,
                                                                                const T* __restrict__ w,
                                                                                int width, float eps) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  RowPart<T, N, R> in, change, weight;
  in.read(x + row, width);
  if (delta) change.read(delta + row, width);
  weight.read(w, width);
  float squares = 0;
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (delta) in.pack[r].v[i] = store<T>(in(r, i) + change(r, i));
      squares += in(r, i) * in(r, i);
    }
  }
  if (delta) in.write(sum + row, width);
  const float scale = 1.0f / sqrtf(block_sum(squares) / static_cast<float>(width) + eps);
  if (rstd && threadIdx.x == 0) rstd[blockIdx.x] = scale;
  if (!y) return;
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int i = 0; i < N; ++i) in.pack[r].v[i] = store<T>(in(r, i) * scale * (1.0f + weight(r, i)));
  }
  in.write(y + row, width);
}

/// Rows of up to three arrays on their way into shared memory, `depth` of them; each thread copies and reads
/// only its own packs, so no barrier is needed.
template <class T, int N, int R>
struct Ring {
  static constexpr int depth = 3;
  static constexpr int arrays = 3;
  /// What cp.async moves and shared memory holds; other rows are read when they are asked for.
  static constexpr bool copies = sizeof(Pack<T, N>) == 16 && sizeof(RowPart<T, N, R>) <= 64;

  T* shared;
  int width;

  __device__ T* slot(int64_t t, int array, int r) const {
    const int64_t place = ((t % depth) * arrays + array) * R + r;
    return shared + (place * blockDim.x + threadIdx.x) * N;
  }
  __device__ void start(const T* row, int64_t t, int array) const {
    if constexpr (copies) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const bool inside = element<N>(r) < width;
        ptx::cp_async_16(ptx::shared_address(slot(t, array, r)), row + (inside ? element<N>(r) : 0), inside);
      }
    }
  }
  __device__ RowPart<T, N, R> get(const T* row, int64_t t, int array) const {
    RowPart<T, N, R> out;
    if constexpr (copies) {
#pragma unroll
      for (int r = 0; r < R; ++r) out.pack[r] = load_pack<N>(static_cast<const T*>(slot(t, array, r)));
    } else {
      out.read(row, width);
    }
    return out;
  }
};

/// The sum of x over the block, for a thread that calls with odd = false, true, false, ...: one barrier. The
/// order is that of block_sum.
__device__ inline float turn_sum(float x, bool odd) {
  __shared__ float of_warp[2][warp_size];
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  x = lanes_sum(x);
  if (lane == 0) of_warp[odd][threadIdx.x / warp_size] = x;
  __syncthreads();
  return lanes_sum(lane < static_cast<int>(blockDim.x) / warp_size ? of_warp[odd][lane] : 0.0f);
}

/// Rows [blockIdx.x per_block, ...). partial[blockIdx.x] = their sums for dw, where partial is not null. dx
/// null: not wanted; it may be the memory of dy or of dsum (no restrict): a thread reads its elements before
/// it writes them. Shared memory: w [width], then the ring.
template <class T, int N, int R>
__global__ __launch_bounds__(Tile::threads, min_blocks<N, R>) void norm_backward(
    T* dx, float* __restrict__ partial, const T* dy, const T* dsum, const T* x, const T* __restrict__ w,
    const float* __restrict__ rstd, int64_t tokens, int64_t per_block, int width, int ring_offset) {
  const int64_t begin = blockIdx.x * per_block;
  const int64_t end = begin + per_block < tokens ? begin + per_block : tokens;
  T* const weights = dynamic_shared<T>();  // read anew each time: registers are short
  const Ring<T, N, R> ring{weights + ring_offset, width};
  const auto start = [&](int64_t t) {
    if (t < end) {
      ring.start(dy + t * width, t, 0);
      ring.start(x + t * width, t, 1);
      if (dsum) ring.start(dsum + t * width, t, 2);
    }
    ptx::cp_async_commit();
  };
  for (int64_t t = begin; t < begin + ring.depth - 1; ++t) start(t);
  RowPart<T, N, R> weight;
  weight.read(w, width);
  weight.write(weights, width);
  float dw[R][N] = {};
  bool odd = false;
  float next_scale = begin < end ? rstd[begin] : 0.0f;
  for (int64_t t = begin; t < end; ++t, odd = !odd) {
    ptx::cp_async_wait<Ring<T, N, R>::depth - 2>();
    const auto d = ring.get(dy + t * width, t, 0), in = ring.get(x + t * width, t, 1);
    start(t + ring.depth - 1);
    const float scale = next_scale;
    if (t + 1 < end) next_scale = rstd[t + 1];
    weight.read(weights, width);
    float inner = 0;
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float change = d(r, i) * (in(r, i) * scale);
        dw[r][i] += change;
        inner += change * (1.0f + weight(r, i));
      }
    }
    if (!dx) continue;
    const float mean = turn_sum(inner, odd) / static_cast<float>(width);
    RowPart<T, N, R> out, residual;
    if (dsum) residual = ring.get(dsum + t * width, t, 2);
    weight.read(weights, width);
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float g = d(r, i) * (1.0f + weight(r, i));
        const float gradient = scale * (g - in(r, i) * scale * mean);
        out.pack[r].v[i] = store<T>(dsum ? residual(r, i) + gradient : gradient);
      }
    }
    out.write(dx + t * width, width);
  }
  if (!partial) return;
  float* const sums = partial + static_cast<int64_t>(blockIdx.x) * width;
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (element<N>(r) < width) sums[element<N>(r) + i] = dw[r][i];
    }
  }
}

/// Calls f(N, R, threads) with the fewest packs per thread that hold a row.
template <class T, class F>
void by_width(int64_t width, bool aligned, F&& f) {
  by_pack<full_pack<T>>(aligned && width % full_pack<T> == 0, [&](auto n) {
    const int64_t packs = width / n();
    const auto with = [&](auto r) {
      if constexpr (r() * n() <= Tile::elements) {
        const int64_t threads = (packs + r() * warp_size - 1) / (r() * warp_size) * warp_size;
        if (threads > Tile::threads) return false;
        f(n, r, dim3(static_cast<unsigned>(threads)));
        return true;
      }
      return false;
    };
    using std::integral_constant;
    if (with(integral_constant<int, 1>{}) || with(integral_constant<int, 2>{}) ||
        with(integral_constant<int, 4>{}) || with(integral_constant<int, 8>{}) ||
        with(integral_constant<int, Tile::elements>{}))
      return;
    throw Error(ErrorKind::internal, "no CUDA kernel for rows of " + std::to_string(width) + " elements",
                "rmsnorm", "please report it with the command line");
  });
}

void forward(Stream& stream, const char* op, Tensor sum_TD, Tensor y_TD, Tensor rstd_T, CTensor x_TD,
             CTensor delta_TD, CTensor w_D, float eps) {
  const int64_t width = x_TD.dim(1);
  if (x_TD.count() == 0) return;
  by_storage(x_TD.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned = aligned16(sum_TD.data, y_TD.data, x_TD.data, delta_TD.data, w_D.data);
    by_width<T>(width, aligned, [&](auto n, auto r, dim3 threads) {
      launch(stream, {op, x_TD}, norm_forward<T, n(), r()>, static_cast<unsigned>(x_TD.dim(0)), threads, 0,
             pointer<T>(sum_TD), pointer<T>(y_TD), pointer<float>(rstd_T), pointer<T>(x_TD),
             pointer<T>(delta_TD), pointer<T>(w_D), static_cast<int>(width), eps);
    });
  });
}

void backward(Stream& stream, const char* op, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor dsum_TD,
              CTensor x_TD, CTensor w_D, CTensor rstd_T) {
  const int64_t tokens = x_TD.dim(0), width = x_TD.dim(1);
  if (x_TD.count() == 0) return;
  by_storage(x_TD.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t blocks = scratch::cuda_norm_blocks(tokens), per_block = (tokens + blocks - 1) / blocks;
    float* const partial = dw_D.empty() ? nullptr
                                        : reinterpret_cast<float*>(stream.scratch(scratch::rmsnorm_backward(
                                              Target::cuda, x_TD.dtype, tokens, width)));
    const bool aligned = aligned16(dx_TD.data, dy_TD.data, dsum_TD.data, x_TD.data, w_D.data);
    by_width<T>(width, aligned, [&](auto n, auto r, dim3 threads) {
      using Rows = Ring<T, n(), r()>;
      const int64_t weights = (width + 7) / 8 * 8;  // the ring starts at 16 bytes
      const int64_t ring = Rows::copies ? Rows::depth * Rows::arrays * r() * n() * threads.x : 0;
      launch_shared(stream, {op, x_TD}, norm_backward<T, n(), r()>, static_cast<unsigned>(blocks), threads,
                    static_cast<size_t>(weights + ring) * sizeof(T), pointer<T>(dx_TD), partial,
                    pointer<T>(dy_TD), pointer<T>(dsum_TD), pointer<T>(x_TD), pointer<T>(w_D),
                    pointer<float>(rstd_T), tokens, per_block, static_cast<int>(width),
                    static_cast<int>(weights));
    });
    add_partials(stream, {op, x_TD}, {wanted<float>(dw_D), partial, width, width, blocks});
  });
}

}  // namespace

void rmsnorm_forward(Stream& stream, Tensor y_TD, Tensor rstd_T, CTensor x_TD, CTensor w_D, float eps) {
  forward(stream, "rmsnorm_forward", {}, y_TD, rstd_T, x_TD, {}, w_D, eps);
}

void rmsnorm_backward(Stream& stream, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor x_TD, CTensor w_D,
                      CTensor rstd_T) {
  backward(stream, "rmsnorm_backward", dx_TD, dw_D, dy_TD, {}, x_TD, w_D, rstd_T);
}

void add_rmsnorm_forward(Stream& stream, Tensor sum_TD, Tensor y_TD, Tensor rstd_T, CTensor x_TD,
                         CTensor delta_TD, CTensor w_D, float eps) {
  forward(stream, "add_rmsnorm_forward", sum_TD, y_TD, rstd_T, x_TD, delta_TD, w_D, eps);
}

void add_rmsnorm_backward(Stream& stream, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor dsum_TD,
                          CTensor sum_TD, CTensor w_D, CTensor rstd_T) {
  backward(stream, "add_rmsnorm_backward", dx_TD, dw_D, dy_TD, dsum_TD, sum_TD, w_D, rstd_T);
}

}  // namespace deltatune::cuda
