// Products of warpgroups in f16: D[64 x n] += A[64 x 16] B[16 x n], A in registers, B in shared memory (PTX: wgmma, sm_90a).
//
// Warp w of the four has rows 16 w to 16 w + 15 of A and D, laid out among its lanes as mma.cuh has them: sums 4 j to 4 j + 3 are of
// columns 8 j to 8 j + 7. Rows of B's tile in shared memory have 128 bytes, swizzled by as many, and begin at multiples of 1024 bytes.
#pragma once

#include "kv_cache/shared/bulk_copy.cuh"

namespace gemmill::kv_cache {

// B whose columns are rows of the tile: eight of them are 1024 bytes.
__device__ __forceinline__ uint64_t columns_in_rows(uint32_t address) { return uint64_t{address} >> 4 & 0x3FFF | 0x4000004000010000; }

// B whose columns lie along the tile's rows, 64 of them in each; the next 64 begin `chunk_bytes` behind.
template <int kChunkBytes>
__device__ __forceinline__ uint64_t columns_along_rows(uint32_t address) {
  return uint64_t{address} >> 4 & 0x3FFF | uint64_t{kChunkBytes / 16} << 16 | 0x4000004000000000;
}

// Registers of operands are ready; products since the last end of a group are a group; all groups but the latest `kPending` ended.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_group_of_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory"); }

// Makes the thread's stores to shared memory known to the tensor core, before a barrier makes them known to its threads.
__device__ __forceinline__ void publish_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Keeps the compiler from moving uses of sums across a wait.
template <int kCount>
__device__ __forceinline__ void settle(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define GEMMILL_EIGHT(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define GEMMILL_32(d, i) GEMMILL_EIGHT(d, i), GEMMILL_EIGHT(d, i + 8), GEMMILL_EIGHT(d, i + 16), GEMMILL_EIGHT(d, i + 24)
#define GEMMILL_NAMES_32                                                                                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, " \
  "%25, %26, %27, %28, %29, %30, %31"
#define GEMMILL_NAMES_64                                                                                                     \
  GEMMILL_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
                   "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// Begins a product. Without `adds` D is none of it. Along rows: B is as columns_along_rows says.
template <bool kAlongRows>
__device__ __forceinline__ void multiply_64(float (&d)[32], uint32_t const (&a)[4], uint64_t b, bool adds) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" GEMMILL_NAMES_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;}"
      : GEMMILL_32(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)), "n"(kAlongRows ? 1 : 0));
}

template <bool kAlongRows>
__device__ __forceinline__ void multiply_128(float (&d)[64], uint32_t const (&a)[4], uint64_t b, bool adds) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" GEMMILL_NAMES_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;}"
      : GEMMILL_32(d, 0), GEMMILL_32(d, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)), "n"(kAlongRows ? 1 : 0));
}

#undef GEMMILL_EIGHT
#undef GEMMILL_32
#undef GEMMILL_NAMES_32
#undef GEMMILL_NAMES_64

}  // namespace gemmill::kv_cache
