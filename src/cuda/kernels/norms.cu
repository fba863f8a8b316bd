// Zero-centred RMSNorm, alone and behind a residual addition.
//
// y = x rstd (1 + w), rstd = (mean x^2 + eps)^-1/2. With u = x rstd and g = dy (1 + w): dx = rstd (g - u
// mean(g u)) + dsum, dw += sum over tokens of dy u. A block holds a row in registers, so every array is read
// once. Blocks of backward take every so many-th row and keep their sums for dw, which go to scratch and are
// added block by block in order; the next rows are on their way into shared memory meanwhile, and a row's sum
// over the block is collected while its successor is read, so that no warp stands at a barrier. Rows up to
// 10240 elements.
#include <string>

#include "cuda/cuda_ops.h"
#include "cuda/kernels/sums.cuh"
#include "cuda/pack.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/words.cuh"
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

/// The same for reading, as words: a loop that carries a row keeps it in half the registers.
template <class T, int N, int R>
struct RowWords {
  static constexpr int bytes = sizeof(T) * N, words = bytes < 4 ? 1 : bytes / 4;
  struct alignas(bytes < 16 ? words * 4 : 16) Some {
    uint32_t word[words];
  };
  Some pack[R];

  __device__ void set(int r, const T* from) {
    if constexpr (bytes >= 4) {
      pack[r] = *reinterpret_cast<const Some*>(from);
    } else {
      pack[r].word[0] = *reinterpret_cast<const uint16_t*>(from);
    }
  }
  __device__ void read(const T* row, int width) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      pack[r] = {};
      if (element<N>(r) < width) set(r, row + element<N>(r));
    }
  }
  __device__ void widen(float (&x)[N], int r) const {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = __uint_as_float(pack[r].word[i]);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i)
        x[i] = __uint_as_float(i % 2 == 0 ? pack[r].word[i / 2] << 16 : pack[r].word[i / 2] & 0xffff0000u);
    }
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

/// Rows of `arrays` arrays (two or three) on their way into shared memory, `depth` of them; each thread
/// copies and reads only its own packs, so no barrier is needed.
template <class T, int N, int R, int Arrays>
struct Ring {
  static constexpr int arrays = Arrays;
  static constexpr int depth = arrays == 2 ? 4 : 3;
  /// What cp.async moves and shared memory holds: bf16 up to 5120 elements; other rows are read when they are
  /// asked for.
  static constexpr bool copies = sizeof(Pack<T, N>) == 16 && sizeof(RowPart<T, N, R>) <= 32;

  T* shared;
  int width;

  __device__ T* place(int slot, int array, int r) const {
    return shared + (((slot * arrays + array) * R + r) * Tile::threads + static_cast<int>(threadIdx.x)) * N;
  }
  __device__ void start(const T* row, int slot, int array) const {
    if constexpr (copies) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const bool inside = element<N>(r) < width;
        ptx::cp_async_16(ptx::shared_address(place(slot, array, r)), row + (inside ? element<N>(r) : 0),
                         inside);
      }
    }
  }
  __device__ RowWords<T, N, R> get(const T* row, int slot, int array) const {
    RowWords<T, N, R> out;
    if constexpr (copies) {
#pragma unroll
      for (int r = 0; r < R; ++r) out.set(r, place(slot, array, r));
    } else {
      out.read(row, width);
    }
    return out;
  }
  static __device__ int after(int slot) {
    return slot + 1 == depth ? 0 : slot + 1;
  }
};

/// 1 + w in shared memory as fp32; each thread writes and reads only what belongs to its own packs. Elements
/// outside the row are 1.
template <int N, int R>
struct Weights {
  static constexpr int wide = N % 4 == 0 ? 4 : 1;
  Pack<float, wide>* shared;

  __device__ Pack<float, wide>& place(int r, int i) const {
    return shared[(r * (N / wide) + i) * Tile::threads + static_cast<int>(threadIdx.x)];
  }
  template <class T>
  __device__ void fill(const T* w, int width) const {
    RowPart<T, N, R> row;
    row.read(w, width);
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int i = 0; i < N; ++i) place(r, i / wide).v[i % wide] = 1.0f + row(r, i);
    }
  }
  __device__ void read(float (&w)[N], int r) const {
#pragma unroll
    for (int i = 0; i < N / wide; ++i) {
      const Pack<float, wide> part = place(r, i);
#pragma unroll
      for (int j = 0; j < wide; ++j) w[i * wide + j] = part.v[j];
    }
  }
};

/// Sums over the block, one for each row in turn. A warp gives its part of a row's sum before it asks for
/// that of the row before, so none is more than a row ahead and four places do.
class RowSums {
  static constexpr int warps = Tile::threads / warp_size, places = (warps + 3) / 4 * 4, turns = 4;
  struct Shared {
    float4 of_warp[turns][places / 4];
    uint64_t given[turns];
  };
  Shared& shared_;
  int turn_ = 0, parity_ = 0;  // of the sum that is asked for next

  static __device__ Shared& memory() {
    __shared__ Shared shared;
    return shared;
  }

 public:
  __device__ RowSums() : shared_(memory()) {
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < turns * places; i += static_cast<int>(blockDim.x))
      reinterpret_cast<float*>(shared_.of_warp)[i] = 0;
    if (thread < turns)
      ptx::mbarrier_init(ptx::shared_address(shared_.given + thread), static_cast<int>(blockDim.x));
    __syncthreads();
  }
  /// Gives x to the sum that is `ahead` rows behind the one asked for next. Every lane arrives: each has read
  /// the sums taken before, and whoever waits for all arrivals may write in their place.
  __device__ void give(float x, int ahead) {
    x = lanes_sum(x);
    const int turn = (turn_ + ahead) % turns;
    if (threadIdx.x % warp_size == 0)
      reinterpret_cast<float*>(shared_.of_warp[turn])[threadIdx.x / warp_size] = x;
    ptx::mbarrier_arrive(ptx::shared_address(shared_.given + turn));
  }
  /// The next sum, in an order that depends on the block's size alone.
  __device__ float take() {
    ptx::mbarrier_wait(ptx::shared_address(shared_.given + turn_), parity_);
    float total = 0;
#pragma unroll
    for (int i = 0; i < places / 4; ++i) {
      const float4 four = shared_.of_warp[turn_][i];
      total += (four.x + four.y) + (four.z + four.w);
    }
    turn_ = (turn_ + 1) % turns;
    parity_ ^= turn_ == 0;
    return total;
  }
};

/// What backward takes, as rows from row 0 on. dx null: not wanted; it may be the memory of dy or of dsum (no
/// restrict): a thread reads its elements before it writes them.
template <class T>
struct Backward {
  T* dx;
  float* partial;  ///< [blocks, width]: sums for dw; null: not wanted
  const T *dy, *dsum, *x, *w;
  const float* rstd;
  int64_t tokens;
  int width;
};

/// What a thread holds of a row of dy and x.
template <class T, int N, int R>
struct RowPair {
  RowWords<T, N, R> x;
  float g[R][N];
  float rstd;
};

/// Rows blockIdx.x, + gridDim.x, ... Shared memory: 1 + w, then the ring.
template <class T, int N, int R, bool with_dsum>
__global__ __launch_bounds__(Tile::threads,
                             min_blocks<N, R>) void norm_backward(const __grid_constant__ Backward<T> call) {
  using Rows = Ring<T, N, R, with_dsum ? 3 : 2>;
  const int width = call.width;
  const int64_t begin = blockIdx.x, end = call.tokens, step = gridDim.x;
  float* const memory = dynamic_shared<float>();
  const Weights<N, R> weights{reinterpret_cast<Pack<float, Weights<N, R>::wide>*>(memory)};
  const Rows ring{reinterpret_cast<T*>(memory + R * N * Tile::threads), width};
  RowSums sums;
  const auto start = [&](int64_t t, int slot) {
    if (t < end) {
      ring.start(call.dy + t * width, slot, 0);
      ring.start(call.x + t * width, slot, 1);
      if (with_dsum) ring.start(call.dsum + t * width, slot, 2);
    }
    ptx::cp_async_commit();
  };
  for (int i = 0; i < Rows::depth - 1; ++i) start(begin + i * step, i);
  weights.fill(call.w, width);
  const float inverse_width = 1.0f / static_cast<float>(width);
  float dw[R][N] = {};
  float next_rstd = call.rstd[begin];
  int slot = 0;  // of the row that is read next
  // Reads row t, whose sum is `ahead` rows behind the one asked for next.
  const auto read = [&](int64_t t, int ahead) {
    ptx::cp_async_wait<Rows::depth - 2>();
    const RowWords<T, N, R> dy = ring.get(call.dy + t * width, slot, 0);
    RowPair<T, N, R> row;
    row.x = ring.get(call.x + t * width, slot, 1);
    row.rstd = next_rstd;
    if (t + step < end) next_rstd = call.rstd[t + step];
    float inner = 0;  // sum of g x
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float d[N], in[N];
      dy.widen(d, r);
      row.x.widen(in, r);
      weights.read(row.g[r], r);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        dw[r][i] += d[i] * row.rstd * in[i];
        row.g[r][i] *= d[i];
        inner += row.g[r][i] * in[i];
      }
    }
    if (call.dx) sums.give(inner, ahead);
    return row;
  };
  RowPair<T, N, R> row = read(begin, 0);
  for (int64_t t = begin; t < end; t += step) {
    RowWords<T, N, R> residual;
    if (with_dsum) residual = ring.get(call.dsum + t * width, slot, 2);
    start(t + (Rows::depth - 1) * step, slot == 0 ? Rows::depth - 1 : slot - 1);
    slot = Rows::after(slot);
    RowPair<T, N, R> next;
    if (t + step < end) next = read(t + step, 1);
    if (call.dx) {
      // dx = rstd g - x rstd^2 mean(g u) + dsum, g = dy (1 + w)
      const float along = row.rstd * row.rstd * (sums.take() * row.rstd * inverse_width);
      RowPart<T, N, R> out;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        float d[N], in[N], rest[N] = {};
        row.x.widen(in, r);
        if (with_dsum) residual.widen(rest, r);
#pragma unroll
        for (int i = 0; i < N; ++i) d[i] = row.rstd * row.g[r][i] + (rest[i] - along * in[i]);
        out.pack[r] = narrow<T>(d);
      }
      out.write(call.dx + t * width, width);
    }
    row = next;
  }
  if (!call.partial) return;
  float* const out = call.partial + static_cast<int64_t>(blockIdx.x) * width;
  constexpr int wide = Weights<N, R>::wide;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    if (element<N>(r) >= width) continue;
#pragma unroll
    for (int i = 0; i < N; i += wide) {
      Pack<float, wide> some;
#pragma unroll
      for (int j = 0; j < wide; ++j) some.v[j] = dw[r][i + j];
      store_pack(out + element<N>(r) + i, some);
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
    const int64_t blocks = scratch::cuda_norm_blocks(tokens);
    float* const partial = dw_D.empty() ? nullptr
                                        : reinterpret_cast<float*>(stream.scratch(scratch::rmsnorm_backward(
                                              Target::cuda, x_TD.dtype, tokens, width)));
    const bool aligned = aligned16(dx_TD.data, dy_TD.data, dsum_TD.data, x_TD.data, w_D.data);
    const Backward<T> call{pointer<T>(dx_TD),      partial,          pointer<T>(dy_TD),
                           pointer<T>(dsum_TD),    pointer<T>(x_TD), pointer<T>(w_D),
                           pointer<float>(rstd_T), tokens,           static_cast<int>(width)};
    by_width<T>(width, aligned, [&](auto n, auto r, dim3 threads) {
      const size_t packs = static_cast<size_t>(r() * n()) * Tile::threads;
      const auto with = [&](auto dsum) {
        using Rows = Ring<T, n(), r(), dsum() ? 3 : 2>;
        const size_t shared =
            packs * (sizeof(float) + (Rows::copies ? Rows::depth * Rows::arrays : 0) * sizeof(T));
        launch_shared(stream, {op, x_TD}, norm_backward<T, n(), r(), dsum()>, static_cast<unsigned>(blocks),
                      threads, shared, call);
      };
      if (dsum_TD.empty()) return with(std::false_type{});
      with(std::true_type{});
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
