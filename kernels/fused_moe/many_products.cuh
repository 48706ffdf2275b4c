// Products of e4m3 on the tensor core whose rows of activations are any multiple of 16: 64 rows of weights from registers, by rows that
// shared memory has, 32 columns of both. cute has those of 64, 96, 128, 192 and 256 rows alone, and all of them in a file of 56,000 lines.
#pragma once

#include <cstdint>

namespace gemmill::fused_moe {

// Of rows of 128 bytes, swizzled by as many, which begin at a multiple of 1024: 8 rows are 1024 bytes.
__device__ __forceinline__ uint64_t describe_shared_rows(uint32_t address) { return uint64_t{address} >> 4 & 0x3FFF | 0x4000004000010000; }

template <int rows>
struct RowsProduct;

#define GEMMILL_SUMS_1 "%0, %1, %2, %3, %4, %5, %6, %7"
#define GEMMILL_SUMS_2 GEMMILL_SUMS_1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define GEMMILL_SUMS_3 GEMMILL_SUMS_2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define GEMMILL_SUMS_4 GEMMILL_SUMS_3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define GEMMILL_SUMS_5 GEMMILL_SUMS_4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define GEMMILL_SUMS_6 GEMMILL_SUMS_5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define GEMMILL_SUMS_7 GEMMILL_SUMS_6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define GEMMILL_SUMS_8 GEMMILL_SUMS_7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define GEMMILL_SUMS_9 GEMMILL_SUMS_8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define GEMMILL_SUMS_10 GEMMILL_SUMS_9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define GEMMILL_SUMS_11 GEMMILL_SUMS_10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define GEMMILL_SUMS_12 GEMMILL_SUMS_11 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define GEMMILL_SUMS_13 GEMMILL_SUMS_12 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define GEMMILL_SUMS_14 GEMMILL_SUMS_13 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define GEMMILL_SUMS_15 GEMMILL_SUMS_14 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define GEMMILL_EIGHT(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define GEMMILL_KEPT_1 GEMMILL_EIGHT(d, 0)
#define GEMMILL_KEPT_2 GEMMILL_KEPT_1, GEMMILL_EIGHT(d, 8)
#define GEMMILL_KEPT_3 GEMMILL_KEPT_2, GEMMILL_EIGHT(d, 16)
#define GEMMILL_KEPT_4 GEMMILL_KEPT_3, GEMMILL_EIGHT(d, 24)
#define GEMMILL_KEPT_5 GEMMILL_KEPT_4, GEMMILL_EIGHT(d, 32)
#define GEMMILL_KEPT_6 GEMMILL_KEPT_5, GEMMILL_EIGHT(d, 40)
#define GEMMILL_KEPT_7 GEMMILL_KEPT_6, GEMMILL_EIGHT(d, 48)
#define GEMMILL_KEPT_8 GEMMILL_KEPT_7, GEMMILL_EIGHT(d, 56)
#define GEMMILL_KEPT_9 GEMMILL_KEPT_8, GEMMILL_EIGHT(d, 64)
#define GEMMILL_KEPT_10 GEMMILL_KEPT_9, GEMMILL_EIGHT(d, 72)
#define GEMMILL_KEPT_11 GEMMILL_KEPT_10, GEMMILL_EIGHT(d, 80)
#define GEMMILL_KEPT_12 GEMMILL_KEPT_11, GEMMILL_EIGHT(d, 88)
#define GEMMILL_KEPT_13 GEMMILL_KEPT_12, GEMMILL_EIGHT(d, 96)
#define GEMMILL_KEPT_14 GEMMILL_KEPT_13, GEMMILL_EIGHT(d, 104)
#define GEMMILL_KEPT_15 GEMMILL_KEPT_14, GEMMILL_EIGHT(d, 112)
#define GEMMILL_ROWS_PRODUCT(rows, sixteens, a0, a1, a2, a3, tokens, one)                                                        \
  template <>                                                                                                                    \
  struct RowsProduct<rows> {                                                                                                     \
    template <int count>                                                                                                         \
    __device__ __forceinline__ static void add(float (&d)[count], uint32_t const* a, uint64_t from) {                            \
      static_assert(count >= rows / 2, "a thread has half as many sums as there are rows");                                      \
      asm volatile("{.reg .pred p; setp.ne.b32 p, " one ", 0; wgmma.mma_async.sync.aligned.m64n" #rows "k32.f32.e4m3.e4m3 {"     \
                   GEMMILL_SUMS_##sixteens "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " tokens ", p, 1, 1;}"                          \
                   : GEMMILL_KEPT_##sixteens                                                                                     \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(from), "n"(1));                                             \
    }                                                                                                                            \
  };
GEMMILL_ROWS_PRODUCT(16, 1, "%8", "%9", "%10", "%11", "%12", "%13")
GEMMILL_ROWS_PRODUCT(32, 2, "%16", "%17", "%18", "%19", "%20", "%21")
GEMMILL_ROWS_PRODUCT(48, 3, "%24", "%25", "%26", "%27", "%28", "%29")
GEMMILL_ROWS_PRODUCT(64, 4, "%32", "%33", "%34", "%35", "%36", "%37")
GEMMILL_ROWS_PRODUCT(80, 5, "%40", "%41", "%42", "%43", "%44", "%45")
GEMMILL_ROWS_PRODUCT(96, 6, "%48", "%49", "%50", "%51", "%52", "%53")
GEMMILL_ROWS_PRODUCT(112, 7, "%56", "%57", "%58", "%59", "%60", "%61")
GEMMILL_ROWS_PRODUCT(128, 8, "%64", "%65", "%66", "%67", "%68", "%69")
GEMMILL_ROWS_PRODUCT(144, 9, "%72", "%73", "%74", "%75", "%76", "%77")
GEMMILL_ROWS_PRODUCT(160, 10, "%80", "%81", "%82", "%83", "%84", "%85")
GEMMILL_ROWS_PRODUCT(176, 11, "%88", "%89", "%90", "%91", "%92", "%93")
GEMMILL_ROWS_PRODUCT(192, 12, "%96", "%97", "%98", "%99", "%100", "%101")
GEMMILL_ROWS_PRODUCT(208, 13, "%104", "%105", "%106", "%107", "%108", "%109")
GEMMILL_ROWS_PRODUCT(224, 14, "%112", "%113", "%114", "%115", "%116", "%117")
GEMMILL_ROWS_PRODUCT(240, 15, "%120", "%121", "%122", "%123", "%124", "%125")
#undef GEMMILL_ROWS_PRODUCT
#undef GEMMILL_EIGHT
#undef GEMMILL_SUMS_1
#undef GEMMILL_KEPT_1
#undef GEMMILL_SUMS_2
#undef GEMMILL_KEPT_2
#undef GEMMILL_SUMS_3
#undef GEMMILL_KEPT_3
#undef GEMMILL_SUMS_4
#undef GEMMILL_KEPT_4
#undef GEMMILL_SUMS_5
#undef GEMMILL_KEPT_5
#undef GEMMILL_SUMS_6
#undef GEMMILL_KEPT_6
#undef GEMMILL_SUMS_7
#undef GEMMILL_KEPT_7
#undef GEMMILL_SUMS_8
#undef GEMMILL_KEPT_8
#undef GEMMILL_SUMS_9
#undef GEMMILL_KEPT_9
#undef GEMMILL_SUMS_10
#undef GEMMILL_KEPT_10
#undef GEMMILL_SUMS_11
#undef GEMMILL_KEPT_11
#undef GEMMILL_SUMS_12
#undef GEMMILL_KEPT_12
#undef GEMMILL_SUMS_13
#undef GEMMILL_KEPT_13
#undef GEMMILL_SUMS_14
#undef GEMMILL_KEPT_14
#undef GEMMILL_SUMS_15
#undef GEMMILL_KEPT_15

}  // namespace gemmill::fused_moe
