// WGMMA with operand A in registers: 64 rows of weights by any multiple of 8 rows of activations, which a descriptor of shared memory names.
// cute has those of 64, 96, 128, 192 and 256 rows alone, and all of them in a file of 56,000 lines.
#pragma once

#include <cstdint>

#include "cutlass/numeric_types.h"

namespace gemmill {

// Of rows of 128 bytes, swizzled by as many, which begin at a multiple of 1024: 8 rows are 1024 bytes.
__device__ __forceinline__ uint64_t describe_shared_rows(uint32_t address) { return uint64_t{address} >> 4 & 0x3FFF | 0x4000004000010000; }

// D += A B. A thread has half as many sums as there are rows, and four words of A.
template <class Input, int rows>
struct Wgmma;
// The same of 2:4 sparse weights of bf16. `selector`: the lanes whose metadata the instruction reads.
template <int rows, int selector>
struct SparseWgmma;

#define GEMMILL_SUMS_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define GEMMILL_SUMS_32 GEMMILL_SUMS_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define GEMMILL_SUMS_40 GEMMILL_SUMS_32 ", %16, %17, %18, %19"
#define GEMMILL_SUMS_48 GEMMILL_SUMS_40 ", %20, %21, %22, %23"
#define GEMMILL_SUMS_64 GEMMILL_SUMS_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define GEMMILL_SUMS_80 GEMMILL_SUMS_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define GEMMILL_SUMS_96 GEMMILL_SUMS_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define GEMMILL_SUMS_112 GEMMILL_SUMS_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define GEMMILL_SUMS_128 GEMMILL_SUMS_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define GEMMILL_SUMS_176                                                                                                                          \
  GEMMILL_SUMS_128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87"
#define GEMMILL_SUMS_192 GEMMILL_SUMS_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define GEMMILL_SUMS_208 GEMMILL_SUMS_192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define GEMMILL_SUMS_224 GEMMILL_SUMS_208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define GEMMILL_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GEMMILL_KEPT_16 GEMMILL_FOUR(0), GEMMILL_FOUR(4)
#define GEMMILL_KEPT_32 GEMMILL_KEPT_16, GEMMILL_FOUR(8), GEMMILL_FOUR(12)
#define GEMMILL_KEPT_40 GEMMILL_KEPT_32, GEMMILL_FOUR(16)
#define GEMMILL_KEPT_48 GEMMILL_KEPT_40, GEMMILL_FOUR(20)
#define GEMMILL_KEPT_64 GEMMILL_KEPT_48, GEMMILL_FOUR(24), GEMMILL_FOUR(28)
#define GEMMILL_KEPT_80 GEMMILL_KEPT_64, GEMMILL_FOUR(32), GEMMILL_FOUR(36)
#define GEMMILL_KEPT_96 GEMMILL_KEPT_80, GEMMILL_FOUR(40), GEMMILL_FOUR(44)
#define GEMMILL_KEPT_112 GEMMILL_KEPT_96, GEMMILL_FOUR(48), GEMMILL_FOUR(52)
#define GEMMILL_KEPT_128 GEMMILL_KEPT_112, GEMMILL_FOUR(56), GEMMILL_FOUR(60)
#define GEMMILL_KEPT_176 GEMMILL_KEPT_128, GEMMILL_FOUR(64), GEMMILL_FOUR(68), GEMMILL_FOUR(72), GEMMILL_FOUR(76), GEMMILL_FOUR(80), GEMMILL_FOUR(84)
#define GEMMILL_KEPT_192 GEMMILL_KEPT_176, GEMMILL_FOUR(88), GEMMILL_FOUR(92)
#define GEMMILL_KEPT_208 GEMMILL_KEPT_192, GEMMILL_FOUR(96), GEMMILL_FOUR(100)
#define GEMMILL_KEPT_224 GEMMILL_KEPT_208, GEMMILL_FOUR(104), GEMMILL_FOUR(108)
#define GEMMILL_A "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
#define GEMMILL_WGMMA(rows, instruction, operands, end)                                                                     \
  "{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async." instruction " {" GEMMILL_SUMS_##rows "}, " operands ", p, 1, 1" end ";}"

// `operands`: numbers of the operands A and B, and with sparse weights of metadata and its selector.
#define GEMMILL_E4M3(rows, operands)                                                                                        \
  template <>                                                                                                               \
  struct Wgmma<cutlass::float_e4m3_t, rows> {                                                                               \
    template <int count>                                                                                                    \
    __device__ __forceinline__ static void add(float (&d)[count], uint32_t const* a, uint64_t b) {                          \
      static_assert(count >= rows / 2, "a thread has half as many sums as there are rows");                                 \
      asm volatile(GEMMILL_WGMMA(rows, "sync.aligned.m64n" #rows "k32.f32.e4m3.e4m3", operands, "") : GEMMILL_KEPT_##rows : GEMMILL_A); \
    }                                                                                                                       \
  };
#define GEMMILL_BF16(rows, operands)                                                                                        \
  template <>                                                                                                               \
  struct Wgmma<cutlass::bfloat16_t, rows> {                                                                                 \
    template <int count>                                                                                                    \
    __device__ __forceinline__ static void add(float (&d)[count], uint32_t const* a, uint64_t b) {                          \
      static_assert(count >= rows / 2, "a thread has half as many sums as there are rows");                                 \
      asm volatile(GEMMILL_WGMMA(rows, "sync.aligned.m64n" #rows "k16.f32.bf16.bf16", operands, ", 0") : GEMMILL_KEPT_##rows : GEMMILL_A); \
    }                                                                                                                       \
  };
#define GEMMILL_SPARSE_BF16(rows, operands)                                                                                 \
  template <int selector>                                                                                                   \
  struct SparseWgmma<rows, selector> {                                                                                      \
    __device__ __forceinline__ static void add(float (&d)[32], uint32_t const* a, uint64_t b, uint32_t metadata) {          \
      asm volatile(GEMMILL_WGMMA(rows, "sp.sync.aligned.m64n" #rows "k32.f32.bf16.bf16", operands, ", 0")                   \
                   : GEMMILL_KEPT_##rows                                                                                    \
                   : GEMMILL_A, "r"(metadata), "n"(selector));                                                              \
    }                                                                                                                       \
  };
GEMMILL_E4M3(16, "{%8, %9, %10, %11}, %12")
GEMMILL_E4M3(32, "{%16, %17, %18, %19}, %20")
GEMMILL_E4M3(48, "{%24, %25, %26, %27}, %28")
GEMMILL_E4M3(64, "{%32, %33, %34, %35}, %36")
GEMMILL_E4M3(80, "{%40, %41, %42, %43}, %44")
GEMMILL_E4M3(96, "{%48, %49, %50, %51}, %52")
GEMMILL_E4M3(112, "{%56, %57, %58, %59}, %60")
GEMMILL_E4M3(128, "{%64, %65, %66, %67}, %68")
GEMMILL_E4M3(176, "{%88, %89, %90, %91}, %92")
GEMMILL_E4M3(192, "{%96, %97, %98, %99}, %100")
GEMMILL_E4M3(208, "{%104, %105, %106, %107}, %108")
GEMMILL_E4M3(224, "{%112, %113, %114, %115}, %116")
GEMMILL_BF16(32, "{%16, %17, %18, %19}, %20")
GEMMILL_BF16(40, "{%20, %21, %22, %23}, %24")
GEMMILL_BF16(48, "{%24, %25, %26, %27}, %28")
GEMMILL_BF16(64, "{%32, %33, %34, %35}, %36")
GEMMILL_BF16(96, "{%48, %49, %50, %51}, %52")
GEMMILL_BF16(128, "{%64, %65, %66, %67}, %68")
GEMMILL_SPARSE_BF16(32, "{%16, %17, %18, %19}, %20, %21, %22")
GEMMILL_SPARSE_BF16(40, "{%20, %21, %22, %23}, %24, %25, %26")
GEMMILL_SPARSE_BF16(48, "{%24, %25, %26, %27}, %28, %29, %30")
GEMMILL_SPARSE_BF16(64, "{%32, %33, %34, %35}, %36, %37, %38")

}  // namespace gemmill
