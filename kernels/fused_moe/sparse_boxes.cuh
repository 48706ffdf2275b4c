// The product of 2:4 sparse weights and rows in boxes (boxed_experts.cuh): an instruction takes 32 columns, and 16 kept codes.
#pragma once

#include "gemm/sparse_e2m1.cuh"
#include "fused_moe/boxed_experts.cuh"

namespace gemmill::fused_moe {

// D += A B of a group's 64 rows of weights: a thread's part of 32 of their columns by `rows` rows, which B describes. `selector`: whose places.
template <int rows, int selector>
__device__ __forceinline__ void multiply_sparse_group(float (&d)[32], uint32_t const* a, uint64_t b, uint32_t places) {
  static_assert(rows == 32 || rows == 40 || rows == 48 || rows == 64, "there are four instructions");
#define GEMMILL_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GEMMILL_OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(places), "n"(selector)
  if constexpr (rows == 32) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sp.sync.aligned.m64n32k32.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%16, %17, %18, %19}, %20, %21, %22, p, 1, 1, 0;}"
        : GEMMILL_FOUR(0), GEMMILL_FOUR(4), GEMMILL_FOUR(8), GEMMILL_FOUR(12)
        : GEMMILL_OPERANDS);
  } else if constexpr (rows == 40) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sp.sync.aligned.m64n40k32.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19}, "
        "{%20, %21, %22, %23}, %24, %25, %26, p, 1, 1, 0;}"
        : GEMMILL_FOUR(0), GEMMILL_FOUR(4), GEMMILL_FOUR(8), GEMMILL_FOUR(12), GEMMILL_FOUR(16)
        : GEMMILL_OPERANDS);
  } else if constexpr (rows == 48) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sp.sync.aligned.m64n48k32.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23}, {%24, %25, %26, %27}, %28, %29, %30, p, 1, 1, 0;}"
        : GEMMILL_FOUR(0), GEMMILL_FOUR(4), GEMMILL_FOUR(8), GEMMILL_FOUR(12), GEMMILL_FOUR(16), GEMMILL_FOUR(20)
        : GEMMILL_OPERANDS);
  } else {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sp.sync.aligned.m64n64k32.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, %37, %38, p, 1, 1, 0;}"
        : GEMMILL_FOUR(0), GEMMILL_FOUR(4), GEMMILL_FOUR(8), GEMMILL_FOUR(12), GEMMILL_FOUR(16), GEMMILL_FOUR(20), GEMMILL_FOUR(24), GEMMILL_FOUR(28)
        : GEMMILL_OPERANDS);
  }
#undef GEMMILL_OPERANDS
#undef GEMMILL_FOUR
}

// The last word has places.
template <int group>
struct BoxedProducts<blockscaled::SparseFp4Block<group>> {
  using Block = blockscaled::SparseFp4Block<group>;
  static constexpr int kWords = 9;

  __device__ static void make(Block const& block, uint32_t told, uint32_t (&words)[kWords]) {
    block.operands(told, words);
    words[8] = block.places;
  }
  template <int rows>
  __device__ static void multiply_many(float (&sums)[32], uint32_t const (&words)[kWords], uint64_t at) {
    multiply_sparse_group<rows, 0>(sums, words, at, words[8]);
    multiply_sparse_group<rows, 1>(sums, words + 4, at + 4, words[8]);
  }
  template <int eights, int count>
  __device__ static void multiply_few(float (&sums)[count], Block const& block, uint32_t told, uint32_t const (&tokens)[eights][4][2]) {
    uint32_t words[kWords];
    make(block, told, words);
    CUTLASS_PRAGMA_UNROLL
    for (int e = 0; e < eights; ++e) {
      auto& d = *reinterpret_cast<float (*)[4]>(sums + 4 * e);
      blockscaled::multiply_sparse<0>(d, words, tokens[e][0], tokens[e][1], block.places);
      blockscaled::multiply_sparse<1>(d, words + 4, tokens[e][2], tokens[e][3], block.places);
    }
  }
};

}  // namespace gemmill::fused_moe
