// Tensor-core and asynchronous-copy instructions of sm_80 and later, one function each.
//
// Fragments of mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"), lane l of a warp, g = l / 4,
// t = l % 4:
//   A (row-major 16 x 16): a0 (g, 2t..2t+1)  a1 (g+8, 2t..)  a2 (g, 2t+8..)  a3 (g+8, 2t+8..)
//   B (column-major 16 x 8): b0 (k = 2t..2t+1, n = g)  b1 (k = 2t+8.., n = g)
//   C (16 x 8, f32): c0 c1 (g, 2t..2t+1)  c2 c3 (g+8, 2t..)
// So two neighbouring C tiles, packed to bf16, are an A fragment: {c0c1, c2c3} of the left tile and of the
// right one are a0 a1 a2 a3.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace deltatune::cuda::ptx {

/// The 32-bit shared-memory address that ldmatrix and cp.async take.
__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8 (16-byte
/// aligned). _trans: each matrix is transposed on the way.
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// c += a b, bf16 operands, f32 accumulator.
__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// The same with fp16 operands: three more bits of mantissa, for values known to stay below 65,504.
__device__ inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Transposes an 8 x 8 matrix of 16-bit elements held by a warp: lane l has the elements 2t, 2t+1 of row g
/// before and after.
__device__ inline uint32_t transpose_8x8(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
/// Stores 4 bytes at a shared-memory address.
__device__ inline void store_shared(uint32_t to, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
/// The same for 16 bytes.
__device__ inline void store_shared_16(uint32_t to, const uint32_t (&x)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}
/// Loads 4 bytes from a shared-memory address.
__device__ inline uint32_t load_shared(uint32_t from) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}

/// Loads 16 bytes from a shared-memory address that is a multiple of 16.
__device__ inline uint4 load_shared_16(uint32_t from) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from)
               : "memory");
  return x;
}
/// x, but the compiler takes it for a new value at each call: what is computed from it is not moved ahead.
__device__ inline int computed_here(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// Two floats rounded to nearest even, `low` in the lower half.
__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// The same as fp16.
__device__ inline uint32_t pack_f16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// Copies 16 bytes from global to shared memory without waiting; where `valid` is false writes zeros and
/// reads nothing.
__device__ inline void cp_async_16(uint32_t to, const void* from, bool valid = true) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
/// The same for 4 bytes.
__device__ inline void cp_async_4(uint32_t to, const void* from, bool valid = true) {
  const int bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most N groups of this thread are in flight; the block still needs a barrier.
template <int N>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

}  // namespace deltatune::cuda::ptx
