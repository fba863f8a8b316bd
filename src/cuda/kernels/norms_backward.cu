// Zero-centred RMSNorm, backward, alone and in front of a residual addition.
//
// With u = x rstd and g = dy (1 + w): dx = rstd (g - u mean(g u)) + dsum, dw += sum over tokens of dy u.
// Blocks take every so many-th row and keep their sums for dw, which go to scratch and are added block by
// block in order; the next rows are on their way into shared memory meanwhile, and a row's sum over the block
// is collected while its successor is read, so that no warp stands at a barrier. At low clocks the loop's
// instructions are its time: addresses are running offsets, and no row is carried from register to register.
#include "cuda/kernels/norm_rows.cuh"
#include "cuda/kernels/sums.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/words.cuh"
#include "ops/scratch.h"

namespace deltatune::cuda {
namespace {

using namespace norm;

/// A block that has so many rows left lets the sums of dw be launched, which takes about their time.
constexpr unsigned last_rows = 3;

/// A thread's packs of a row for reading, as words: a loop that carries a row keeps it in half the registers.
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

/// The packs of a row that belong to this thread. Held rather than asked for again: where a loop's time is
/// instructions, the compiler would read the thread's index anew in every turn.
template <int N, int R>
struct Own {
  int thread;  ///< of the block
  int leap;    ///< elements from a pack to the next
  int width;

  __device__ explicit Own(int row_width)
      : thread(ptx::computed_here(static_cast<int>(threadIdx.x))),
        leap(static_cast<int>(blockDim.x) * N),
        width(row_width) {}
  __device__ bool inside(int r) const { return thread * N + r * leap < width; }
  /// Elements from a row's first to pack 0; to a row's first where that lies outside.
  __device__ int first() const { return inside(0) ? thread * N : 0; }
};

/// Rows of `arrays` arrays (two or three) on their way into shared memory, `depth` of them; each thread
/// copies and reads only its own packs, so no barrier is needed.
template <class T, int N, int R, int Arrays, bool Shallow>
struct Ring {
  static constexpr int arrays = Arrays;
  static constexpr int depth = (arrays == 2 ? 4 : 3) - (Shallow ? 1 : 0);
  /// What cp.async moves and shared memory holds: bf16 up to 5120 elements, fp32 up to 2560; other rows are
  /// read when they are asked for.
  static constexpr bool copies = sizeof(Pack<T, N>) == 16 && sizeof(RowPart<T, N, R>) <= 32;
  static constexpr int elements = copies ? depth * arrays * R * N * Tile::threads : 0;

  const Own<N, R>& own;
  T* shared;

  __device__ T* place(int slot, int array, int r) const {
    return shared + (((slot * arrays + array) * R + r) * Tile::threads + own.thread) * N;
  }
  /// `row`: its element own.first().
  __device__ void start(const T* row, int slot, int array) const {
    if constexpr (copies) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const bool inside = own.inside(r);
        ptx::cp_async_16(ptx::shared_address(place(slot, array, r)), row + (inside ? r * own.leap : 0),
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
#pragma unroll
      for (int r = 0; r < R; ++r) {
        out.pack[r] = {};
        if (own.inside(r)) out.set(r, row + r * own.leap);
      }
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
  static constexpr int elements = R * N * Tile::threads;

  const Own<N, R>& own;
  Pack<float, wide>* shared;

  __device__ Pack<float, wide>& place(int r, int i) const {
    return shared[(r * (N / wide) + i) * Tile::threads + own.thread];
  }
  template <class T>
  __device__ void fill(const T* w) const {
    RowPart<T, N, R> row;
    row.read(w, own.width);
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
  static constexpr int warps = Tile::threads / warp_size, places = (warps + 3) / 4 * 4;
  static constexpr unsigned turns = 4;
  struct alignas(16) Turn {
    float4 of_warp[places / 4];
    uint64_t given;
  };
  Turn* turn_;
  int thread_;

 public:
  static constexpr int bytes = turns * sizeof(Turn);

  __device__ RowSums(void* memory, int thread) : turn_(static_cast<Turn*>(memory)), thread_(thread) {
    for (int i = thread; i < static_cast<int>(turns) * places; i += static_cast<int>(blockDim.x))
      reinterpret_cast<float*>(turn_[i / places].of_warp)[i % places] = 0;
    if (thread < static_cast<int>(turns))
      ptx::mbarrier_init(ptx::shared_address(&turn_[thread].given), static_cast<int>(blockDim.x));
    __syncthreads();
  }
  /// Gives x to the sum of row i. Every lane arrives: each has read the sums taken before, and whoever waits
  /// for all arrivals may write in their place.
  __device__ void give(float x, unsigned i) const {
    x = lanes_sum(x);
    Turn& turn = turn_[i % turns];
    if (thread_ % warp_size == 0) reinterpret_cast<float*>(turn.of_warp)[thread_ / warp_size] = x;
    ptx::mbarrier_arrive(ptx::shared_address(&turn.given));
  }
  /// The sum of row i, in an order that depends on the block's size alone.
  __device__ float take(unsigned i) const {
    const Turn& turn = turn_[i % turns];
    ptx::mbarrier_wait(ptx::shared_address(&turn.given), static_cast<int>(i / turns % 2));
    float total = 0;
#pragma unroll
    for (int place = 0; place < places / 4; ++place) {
      const float4 four = turn.of_warp[place];
      total += (four.x + four.y) + (four.z + four.w);
    }
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
  float g[R][N];  ///< rstd dy (1 + w)
  float rstd;
};

/// Bytes of a block's shared memory: the rows' sums, 1 + w, the ring.
template <class T, int N, int R, bool with_dsum, bool shallow>
constexpr size_t backward_shared() {
  using Rows = Ring<T, N, R, with_dsum ? 3 : 2, shallow>;
  return RowSums::bytes + Weights<N, R>::elements * sizeof(float) + Rows::elements * sizeof(T);
}

/// Rows blockIdx.x, + gridDim.x, ..., of which there is one at least.
template <class T, int N, int R, bool with_dsum, bool shallow>
__global__ __launch_bounds__(Tile::threads,
                             min_blocks<N, R>) void norm_backward(const __grid_constant__ Backward<T> call) {
  using Rows = Ring<T, N, R, with_dsum ? 3 : 2, shallow>;
  const Own<N, R> own(call.width);
  unsigned char* const memory = dynamic_shared<unsigned char>();
  float* const of_weights = reinterpret_cast<float*>(memory + RowSums::bytes);
  const RowSums sums(memory, own.thread);
  const Weights<N, R> weights{own, reinterpret_cast<Pack<float, Weights<N, R>::wide>*>(of_weights)};
  const Rows ring{own, reinterpret_cast<T*>(of_weights + Weights<N, R>::elements)};
  const int64_t step = static_cast<int64_t>(gridDim.x) * call.width,
                begin = static_cast<int64_t>(blockIdx.x) * call.width + own.first();
  const unsigned rows = static_cast<unsigned>((call.tokens - 1 - blockIdx.x) / gridDim.x + 1);
  // The thread's first element in the row that is started, read or written next.
  int64_t to_start = begin, to_read = begin, to_write = begin;
  unsigned started = 0;
  const auto start = [&](int slot) {
    if (started < rows) {
      ring.start(call.dy + to_start, slot, 0);
      ring.start(call.x + to_start, slot, 1);
      if (with_dsum) ring.start(call.dsum + to_start, slot, 2);
      to_start += step;
    }
    ++started;
    ptx::cp_async_commit();
  };
  for (int i = 0; i < Rows::depth - 1; ++i) start(i);
  weights.fill(call.w);
  const float inverse_width = 1.0f / static_cast<float>(call.width);
  float dw[R][N] = {};
  const float* rstd = call.rstd + blockIdx.x;
  float next_rstd = *rstd;
  int slot = 0;  // of the row that is read next
  const auto read = [&](RowPair<T, N, R>& row, unsigned i) {
    ptx::cp_async_wait<Rows::depth - 2>();
    const RowWords<T, N, R> gradient = ring.get(call.dy + to_read, slot, 0);
    row.x = ring.get(call.x + to_read, slot, 1);
    to_read += step;
    row.rstd = next_rstd;
    rstd += gridDim.x;
    if (i + 1 < rows) next_rstd = *rstd;
    float inner = 0;  // sum of rstd g x
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float d[N], in[N];
      gradient.widen(d, r);
      row.x.widen(in, r);
      weights.read(row.g[r], r);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        d[i] *= row.rstd;
        dw[r][i] += d[i] * in[i];
        row.g[r][i] *= d[i];
        inner += row.g[r][i] * in[i];
      }
    }
    if (call.dx) sums.give(inner, i);
  };
  // Row i, which was read before, while the row behind it is read.
  const auto turn = [&](const RowPair<T, N, R>& row, RowPair<T, N, R>& next, unsigned i) {
    RowWords<T, N, R> residual;
    if (with_dsum) residual = ring.get(call.dsum + to_write, slot, 2);
    start(slot == 0 ? Rows::depth - 1 : slot - 1);
    slot = Rows::after(slot);
    if (i + last_rows >= rows) ptx::let_next_kernel_start();
    if (i + 1 < rows) read(next, i + 1);
    if (call.dx) {
      // dx = rstd g - x rstd^2 mean(g u) + dsum, g = dy (1 + w)
      const float along = row.rstd * row.rstd * (sums.take(i) * inverse_width);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        float d[N], in[N], rest[N];
        row.x.widen(in, r);
        if (with_dsum) residual.widen(rest, r);
#pragma unroll
        for (int i = 0; i < N; ++i) d[i] = (with_dsum ? row.g[r][i] + rest[i] : row.g[r][i]) - along * in[i];
        if (own.inside(r)) store_pack(call.dx + to_write + r * own.leap, narrow<T>(d));
      }
    }
    to_write += step;
  };
  // Two rows change places, so that none is carried from register to register.
  RowPair<T, N, R> even, odd;
  read(even, 0);
  for (unsigned i = 0; i < rows; i += 2) {
    turn(even, odd, i);
    if (i + 1 < rows) turn(odd, even, i + 1);
  }
  if (!call.partial) return;
  float* const out = call.partial + static_cast<int64_t>(blockIdx.x) * call.width + own.first();
  constexpr int wide = Weights<N, R>::wide;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    if (!own.inside(r)) continue;
#pragma unroll
    for (int i = 0; i < N; i += wide) {
      Pack<float, wide> some;
#pragma unroll
      for (int j = 0; j < wide; ++j) some.v[j] = dw[r][i + j];
      store_pack(out + r * own.leap + i, some);
    }
  }
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
      constexpr int N = decltype(n)::value, R = decltype(r)::value;
      const auto with = [&](auto dsum, auto less) {
        constexpr bool with_dsum = decltype(dsum)::value, shallow = decltype(less)::value;
        launch_shared(stream, {op, x_TD}, norm_backward<T, N, R, with_dsum, shallow>,
                      static_cast<unsigned>(blocks), threads, backward_shared<T, N, R, with_dsum, shallow>(),
                      call);
      };
      const auto by_depth = [&](auto dsum) {
        constexpr size_t whole = backward_shared<T, N, R, decltype(dsum)::value, false>();
        if constexpr (whole > least_shared_limit) {
          if (whole > shared_limit()) return with(dsum, std::true_type{});
        }
        with(dsum, std::false_type{});
      };
      if (dsum_TD.empty()) return by_depth(std::false_type{});
      by_depth(std::true_type{});
    });
    add_partials(stream, {op, x_TD}, {wanted<float>(dw_D), partial, width, width, blocks});
  });
}

}  // namespace

void rmsnorm_backward(Stream& stream, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor x_TD, CTensor w_D,
                      CTensor rstd_T) {
  backward(stream, "rmsnorm_backward", dx_TD, dw_D, dy_TD, {}, x_TD, w_D, rstd_T);
}

void add_rmsnorm_backward(Stream& stream, Tensor dx_TD, Tensor dw_D, CTensor dy_TD, CTensor dsum_TD,
                          CTensor sum_TD, CTensor w_D, CTensor rstd_T) {
  backward(stream, "add_rmsnorm_backward", dx_TD, dw_D, dy_TD, dsum_TD, sum_TD, w_D, rstd_T);
}

}  // namespace deltatune::cuda
