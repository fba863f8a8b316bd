// Around cuDNN's attention: offsets and lengths of the documents from cu_seqlens, the log-sum-exps between
// our [H, T] and its [T, H], dv from packed rows into the v columns of dproj.
//
// Why dv is copied: cuDNN's backward with grouped heads keeps dv of every query head in its workspace with
// the row length of dv times the heads of a group; at the row length of proj that is gigabytes.
#include "cuda/cudnn/attention.h"
#include "cuda/launch.cuh"

namespace deltatune::cuda {
namespace {

constexpr int threads = 256;
constexpr int tile = 32;

__global__ void __launch_bounds__(threads)
    tables_kernel(AttentionTables tables, const int32_t* __restrict__ starts, int64_t rows, int64_t documents,
                  int64_t q_row, int64_t k_row, int64_t v_row, int64_t heads) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i > documents) return;
  // The starts after the last document of the row are all T.
  const int64_t begin = starts[min(i, rows)];
  tables.q_offsets[i] = begin * q_row;
  tables.k_offsets[i] = begin * k_row;
  tables.v_offsets[i] = begin * v_row;
  tables.h_offsets[i] = begin * heads;
  if (i < documents) tables.lengths[i] = static_cast<int32_t>(starts[min(i + 1, rows)] - begin);
}

__global__ void __launch_bounds__(threads)
    transpose_kernel(float* __restrict__ to, const float* __restrict__ from, int64_t rows, int64_t columns) {
  __shared__ float block[tile][tile + 1];
  const int x = static_cast<int>(threadIdx.x) % tile, y = static_cast<int>(threadIdx.x) / tile;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * tile,
                column0 = static_cast<int64_t>(blockIdx.x) * tile;
  for (int i = y; i < tile; i += threads / tile) {
    if (row0 + i < rows && column0 + x < columns) block[i][x] = from[(row0 + i) * columns + column0 + x];
  }
  __syncthreads();
  for (int i = y; i < tile; i += threads / tile) {
    if (column0 + i < columns && row0 + x < rows) to[(column0 + i) * rows + row0 + x] = block[x][i];
  }
}

}  // namespace

void fill_attention_tables(Stream& stream, const AttentionTables& tables, const Segments& segments,
                           const AttentionShape& shape, int64_t documents) {
  launch(stream, {"attention: tables", segments.cu_seqlens}, tables_kernel,
         dim3(blocks_for(documents + 1, threads)), dim3(threads), 0, tables,
         pointer<int32_t>(segments.cu_seqlens), segments.cu_seqlens.dim(0) - 1, documents,
         shape.query_heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.columns(),
         shape.query_heads);
}

void transpose_f32(Stream& stream, float* to, const float* from, int64_t rows, int64_t columns) {
  launch(stream, {"attention: log-sum-exps", Shape{rows, columns}}, transpose_kernel,
         dim3(blocks_for(columns, tile), blocks_for(rows, tile)), dim3(threads), 0, to, from, rows, columns);
}

}  // namespace deltatune::cuda
