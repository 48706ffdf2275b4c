// Instructions of the cache's kernels: D[16 x 8] += A[16 x 16] B[16 x 8] on the tensor core, in f32, and the loads of its operands.
//
// Of lane l, with g = l / 4 and t = l % 4: a0 and a1 are rows g and g + 8 of columns 2t and 2t + 1, a2 and a3 the same of
// columns 2t + 8 and 2t + 9; b0 and b1 are those rows of column g; d0 and d1 are row g, d2 and d3 row g + 8, of columns
// 2t and 2t + 1. The 16 summed places may stand for any 16 elements, if A and B agree: each kernel says which.
#pragma once

#include "kv_cache/shared/elements.cuh"

namespace gemmill::kv_cache {

template <class Element>
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], uint32_t const (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ __forceinline__ void mma_16x8x16<__half>(float (&d)[4], uint32_t const (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma_16x8x16<__nv_bfloat16>(float (&d)[4], uint32_t const (&a)[4], uint32_t b0,
                                                           uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// D[16 x 8] += A[16 x 8] B[8 x 8] in f16: the same without places 2t + 8 and 2t + 9.
__device__ __forceinline__ void mma_16x8x8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b));
}

// Of an 8 x 8 matrix of 16 bits, whose row g is in lanes 4 g to 4 g + 3, two columns each, the transpose in the same way.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t two) {
  uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(two));
  return transposed;
}

// Four 8 x 8 matrices of 16 bits from shared memory: lane 8 m + i gives where row i of matrix m begins. Of each the lane gets the
// two elements of row g from column 2t on; transposed, those of column g from row 2t on.
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], void const* row) {
  uint32_t const address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  }
}

// 2^x within two units in the last place; 0 below 2^-126.
__device__ __forceinline__ float power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// x^-1/2 within two units in the last place.
__device__ __forceinline__ float inverse_root(float x) {
  float root;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
}

// Two e4m3, in the low bits, as f16: every one has its f16.
__device__ __forceinline__ uint32_t two_of_e4m3(uint32_t codes) {
  uint32_t two;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(two) : "h"(static_cast<uint16_t>(codes)));
  return two;
}

}  // namespace gemmill::kv_cache
