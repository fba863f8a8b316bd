// Lookup in a stretch of the embedding's table, and the gradient of that stretch, for the tokens of all
// ranks.
//
// Forward: a block copies (a part of) a row, with zeros where the table's elements are not in the stretch.
// Backward: one sum per distinct token id, without atomics. Every rank's positions come sorted by id, so
// equal ids are a run. One block per (possible start of a run, block of columns), as in embedding.cu; of the
// runs of one id the one of the first rank that has it is in charge: the lanes of a warp look for the others'
// runs, a rank each, by bisection. Each run is added up in order of position, the runs in order of the ranks,
// in fp32, and the result is added once. The grid does not depend on the ids.
#include "cuda/cuda_ops.h"
#include "cuda/kernels/embedding_sum.cuh"

namespace deltatune::cuda {
namespace {

constexpr int copy_threads = 256;
constexpr int64_t units_per_block = 4 * copy_threads;

/// Row blockIdx.x of y, in units; `first` and `count` of the stretch are in units as well.
template <class U>
__global__ __launch_bounds__(copy_threads) void copy_part(U* __restrict__ y, const U* __restrict__ part,
                                                          const int32_t* __restrict__ ids, int64_t tokens,
                                                          int64_t width, int64_t first, int64_t count) {
  const int64_t row = blockIdx.x;
  const int64_t rank = row / tokens;
  const int64_t from = ids[rank * tokens + row] * width - first;  // ids[2 rank tokens + (row - rank tokens)]
  U* const out = y + row * width;
  const int64_t begin = blockIdx.y * units_per_block;
  const int64_t end = begin + units_per_block < width ? begin + units_per_block : width;
  for (int64_t j = begin + threadIdx.x; j < end; j += copy_threads)
    out[j] = from + j >= 0 && from + j < count ? part[from + j] : U{};
}

/// Adds the run of `id` that begins at place `begin` of a rank's order, row by row.
template <class T, int N>
__device__ inline void add_run(float (&sum)[N], const T* from, const int32_t* tokens, const int32_t* order,
                               int64_t count, int64_t width, int64_t begin, int32_t id) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  for (;; begin += warp_size) {
    const int32_t position = begin + lane < count ? order[begin + lane] : -1;
    const unsigned others = ~__ballot_sync(full_warp, position >= 0 && tokens[position] == id);
    const int end = others ? __ffs(static_cast<int>(others)) - 1 : warp_size;
    add_rows_of_lanes(sum, from, width, position, 0, end);
    if (end < warp_size) return;
  }
}

/// The place where a rank's run of `id` begins; -1: it has none.
__device__ inline int find_run(const int32_t* tokens, const int32_t* order, int count, int32_t id) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (tokens[order[middle]] < id) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && tokens[order[low]] == id ? low : -1;
}

template <class T, int N>
__global__ __launch_bounds__(EmbeddingSum::threads) void part_gradient(
    float* __restrict__ dpart, const T* __restrict__ dy, const int32_t* __restrict__ ids, int ranks,
    int64_t count, int64_t width, int64_t first, int64_t part) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const auto leader = static_cast<int>(blockIdx.x / count);
  const int64_t begin = blockIdx.x - leader * count;
  const auto tokens_of = [&](int rank) { return ids + 2 * rank * count; };
  const int32_t* const tokens = tokens_of(leader);
  const int32_t* const order = tokens + count;
  const int32_t id = tokens[order[begin]];
  if (begin > 0 && tokens[order[begin - 1]] == id) return;
  // The block's columns, as elements of the stretch.
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * EmbeddingSum::threads + threadIdx.x) * N;
  const int64_t element = id * width + column - first;
  const bool inside = column < width && element >= 0 && element < part;  // all lanes stay for the shuffles
  if (__syncthreads_or(inside) == 0) return;
  for (int base = 0; base < leader; base += warp_size) {
    const int rank = base + lane;
    const bool has =
        rank < leader && find_run(tokens_of(rank), tokens_of(rank) + count, static_cast<int>(count), id) >= 0;
    if (__any_sync(full_warp, has)) return;
  }
  const T* const from = dy + (inside ? column : 0);
  float total[N] = {};
  for (int base = leader; base < ranks; base += warp_size) {
    const int rank = base + lane;
    const int place =
        rank < ranks ? find_run(tokens_of(rank), tokens_of(rank) + count, static_cast<int>(count), id) : -1;
    for (unsigned found = __ballot_sync(full_warp, place >= 0); found != 0; found &= found - 1) {
      const int which = __ffs(static_cast<int>(found)) - 1;
      const int32_t* const theirs = tokens_of(base + which);
      float sum[N] = {};
      add_run(sum, from + (base + which) * count * width, theirs, theirs + count, count, width,
              __shfl_sync(full_warp, place, which), id);
#pragma unroll
      for (int j = 0; j < N; ++j) total[j] += sum[j];
    }
  }
  if (!inside) return;
  Pack<float, N> out = load_pack<N>(static_cast<const float*>(dpart + element));
#pragma unroll
  for (int j = 0; j < N; ++j) out.v[j] += total[j];
  store_pack(dpart + element, out);
}

}  // namespace

void embedding_part_forward(Stream& stream, Tensor y_RTD, CTensor ids_R2T, CTensor part_N, int64_t first) {
  const int64_t rows = y_RTD.dim(0) * y_RTD.dim(1);
  const size_t size = size_of(y_RTD.dtype);
  const size_t row_bytes = static_cast<size_t>(y_RTD.dim(2)) * size;
  const size_t first_bytes = static_cast<size_t>(first) * size;
  if (rows == 0 || row_bytes == 0) return;
  const auto as = [&](auto unit) {
    using U = decltype(unit);
    const auto units = [](size_t bytes) { return static_cast<int64_t>(bytes / sizeof(U)); };
    const dim3 grid(static_cast<unsigned>(rows), blocks_for(units(row_bytes), units_per_block));
    launch(stream, {"embedding_part_forward", y_RTD}, copy_part<U>, grid, copy_threads, 0, pointer<U>(y_RTD),
           pointer<U>(part_N), pointer<int32_t>(ids_R2T), y_RTD.dim(1), units(row_bytes), units(first_bytes),
           units(part_N.bytes()));
  };
  const auto address = reinterpret_cast<uintptr_t>(y_RTD.data) | reinterpret_cast<uintptr_t>(part_N.data);
  const auto fits = [&](size_t unit) {
    return row_bytes % unit == 0 && first_bytes % unit == 0 && part_N.bytes() % unit == 0 &&
           address % unit == 0;
  };
  if (fits(16)) return as(uint4{});
  if (fits(4)) return as(uint32_t{});
  as(uint16_t{});
}

void embedding_part_backward(Stream& stream, Tensor dpart_N, CTensor dy_RTD, CTensor ids_R2T, int64_t first) {
  const int64_t count = dy_RTD.dim(1);
  const int64_t width = dy_RTD.dim(2);
  const int64_t places = dy_RTD.dim(0) * count;
  if (places == 0 || width == 0) return;
  by_storage(dy_RTD.dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int wide = full_pack<T>;
    const bool whole = width % wide == 0 && first % wide == 0 && dpart_N.count() % wide == 0 &&
                       aligned16(dy_RTD.data, dpart_N.data);
    by_pack<wide>(whole, [&](auto pack) {
      const dim3 grid(static_cast<unsigned>(places), blocks_for(width, EmbeddingSum::threads * pack()));
      launch(stream, {"embedding_part_backward", dy_RTD}, part_gradient<T, pack()>, grid,
             EmbeddingSum::threads, 0, pointer<float>(dpart_N), pointer<T>(dy_RTD), pointer<int32_t>(ids_R2T),
             static_cast<int>(dy_RTD.dim(0)), count, width, first, dpart_N.count());
    });
  });
}

}  // namespace deltatune::cuda
