// Copies of rows by index: the embedding lookup, gather_rows and scatter_rows. Nothing is rounded, so rows
// are bytes, moved in the widest unit that divides them.
#include <algorithm>

#include "cuda/cuda_ops.h"
#include "cuda/launch.cuh"

namespace deltatune::cuda {
namespace {

constexpr int threads = 256;
constexpr int64_t units_per_block = 4 * threads;

/// Row blockIdx.x: to[n] = from[index[n]], or (scatter) to[index[n]] = from[n]; `width` units a row.
template <class U, bool scatter>
__global__ __launch_bounds__(threads) void copy_rows(U* __restrict__ to, const U* __restrict__ from,
                                                     const int32_t* __restrict__ index, int64_t width) {
  const int64_t n = blockIdx.x;
  const int64_t other = index[n];
  U* out = to + (scatter ? other : n) * width;
  const U* in = from + (scatter ? n : other) * width;
  const int64_t begin = blockIdx.y * units_per_block;
  const int64_t end = begin + units_per_block < width ? begin + units_per_block : width;
  for (int64_t j = begin + threadIdx.x; j < end; j += threads) out[j] = in[j];
}

template <bool scatter>
void copy(Stream& stream, const char* op, Tensor to, CTensor from, CTensor index_N) {
  const int64_t rows = index_N.dim(0);
  const size_t row_bytes = static_cast<size_t>(to.dim(1)) * size_of(to.dtype);
  if (rows == 0 || row_bytes == 0) return;
  const auto as = [&](auto unit) {
    using U = decltype(unit);
    const auto width = static_cast<int64_t>(row_bytes / sizeof(U));
    const dim3 grid(static_cast<unsigned>(rows), blocks_for(width, units_per_block));
    launch(stream, {op, to}, copy_rows<U, scatter>, grid, threads, 0, pointer<U>(to), pointer<U>(from),
           pointer<int32_t>(index_N), width);
  };
  const auto address = reinterpret_cast<uintptr_t>(to.data) | reinterpret_cast<uintptr_t>(from.data);
  const auto fits = [&](size_t unit) { return row_bytes % unit == 0 && address % unit == 0; };
  if (fits(16)) return as(uint4{});
  if (fits(4)) return as(uint32_t{});
  if (fits(2)) return as(uint16_t{});
  return as(uint8_t{});
}

}  // namespace

void embedding_forward(Stream& stream, Tensor y_TD, CTensor tokens_T, CTensor weight_VD) {
  copy<false>(stream, "embedding_forward", y_TD, weight_VD, tokens_T);
}

void gather_rows(Stream& stream, Tensor y_ND, CTensor x_TD, CTensor rows_N) {
  copy<false>(stream, "gather_rows", y_ND, x_TD, rows_N);
}

void scatter_rows(Stream& stream, Tensor dx_TD, CTensor dy_ND, CTensor rows_N) {
  if (dx_TD.bytes() == 0) return;
  check(cudaMemsetAsync(dx_TD.data, 0, dx_TD.bytes(), native(stream)), "scatter_rows");
  copy<true>(stream, "scatter_rows", dx_TD, dy_ND, rows_N);
}

}  // namespace deltatune::cuda
