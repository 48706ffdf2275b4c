// Products of warpgroups of 64 rows by 16 or 32 columns (PTX: wgmma, sm_90a), as wgmma.cuh has them of 64 and 128. B's columns are rows of
// shared memory (columns_in_rows). A lies in registers, or in shared memory along rows: 64 rows of A in each of its 128 bytes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kv_cache/shared/wgmma.cuh"

namespace gemmill::kv_cache {

__device__ __forceinline__ uint32_t permuted(uint32_t x, uint32_t y, uint32_t selectors) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(x), "r"(y), "r"(selectors));
  return bytes;
}

// Begins to bring bytes to L2: multiples of 16, from such an address on.
__device__ __forceinline__ void ask_for_bytes(uint8_t const* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

#define GEMMILL_EIGHT(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define GEMMILL_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define GEMMILL_NAMES_16 GEMMILL_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"

// Begins D += A B, A in registers as mma.cuh has it; without `adds` D is none of it.
template <class Element>
struct ColumnProducts;

#define GEMMILL_OF_REGISTERS(columns, count, sums, type, a, b, p)                                                                         \
  __device__ __forceinline__ static void begin(float (&d)[count], uint32_t const (&of_a)[4], uint64_t of_b, bool adds) {                  \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " p ", 0;\n"                                                                              \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" GEMMILL_NAMES_##count "}, " a ", " b ", p, 1, 1, 0;}" \
                 : sums                                                                                                                   \
                 : "r"(of_a[0]), "r"(of_a[1]), "r"(of_a[2]), "r"(of_a[3]), "l"(of_b), "r"(static_cast<int>(adds)));                       \
  }
#define GEMMILL_SUMS_8 GEMMILL_EIGHT(0)
#define GEMMILL_SUMS_16 GEMMILL_EIGHT(0), GEMMILL_EIGHT(8)
#define GEMMILL_PRODUCTS(element, type)                                                                         \
  template <>                                                                                                   \
  struct ColumnProducts<element> {                                                                              \
    GEMMILL_OF_REGISTERS(16, 8, GEMMILL_SUMS_8, type, "{%8, %9, %10, %11}", "%12", "%13")                       \
    GEMMILL_OF_REGISTERS(32, 16, GEMMILL_SUMS_16, type, "{%16, %17, %18, %19}", "%20", "%21")                   \
  };
GEMMILL_PRODUCTS(__half, "f16")
GEMMILL_PRODUCTS(__nv_bfloat16, "bf16")

// Begins D += A B in f16, A as columns_along_rows describes it.
#define GEMMILL_OF_SHARED(columns, count, sums, a, b)                                                                                       \
  __device__ __forceinline__ void begin_product_along_rows(float (&d)[count], uint64_t of_a, uint64_t of_b) {                               \
    asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0;\n"                                                                                    \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 {" GEMMILL_NAMES_##count "}, " a ", " b ", p, 1, 1, 1, 0;}"   \
                 : sums                                                                                                                     \
                 : "l"(of_a), "l"(of_b));                                                                                                   \
  }
GEMMILL_OF_SHARED(16, 8, GEMMILL_SUMS_8, "%8", "%9")
GEMMILL_OF_SHARED(32, 16, GEMMILL_SUMS_16, "%16", "%17")

#undef GEMMILL_EIGHT
#undef GEMMILL_NAMES_8
#undef GEMMILL_NAMES_16
#undef GEMMILL_SUMS_8
#undef GEMMILL_SUMS_16
#undef GEMMILL_OF_REGISTERS
#undef GEMMILL_OF_SHARED
#undef GEMMILL_PRODUCTS

}  // namespace gemmill::kv_cache
