// A warp multiplies 64 dense rows of weights by few tokens, as WarpProducts does: products of different rows take turns, so that none
// waits for the one before, and all rows' codes are on their way before the first product. WarpProducts stays as it was timed.
#pragma once

#include "gemm/warp_products.cuh"

namespace gemmill::blockscaled {

template <class Part, int parts, int each, int tile_m, int stages, bool grouped>
struct TurnedWarpProducts : WarpProducts<Part, parts, each, tile_m, stages, grouped> {
  using Dense = WarpProducts<Part, parts, each, tile_m, stages, grouped>;
  static_assert(!grouped && std::is_same_v<typename Part::Widened, cutlass::bfloat16_t>, "tokens are of bf16, without scales");

  __device__ static void multiply_part(typename Dense::Sums& sums, uint32_t told, uint32_t weights, int half, typename Dense::Tokens const& tokens,
                                       float const*, int, int lane) {
    Part of_rows[4];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) of_rows[i].load(weights, half, i * 32 + lane);
    multiply_half<0>(sums, told, of_rows, tokens);
    multiply_half<1>(sums, told, of_rows, tokens);
  }

 private:
  // Two steps of 16 columns.
  template <int half>
  __device__ static void multiply_half(typename Dense::Sums& sums, uint32_t told, Part const (&of_rows)[4], typename Dense::Tokens const& tokens) {
    uint32_t operands[4][8];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) of_rows[i].template operand<half>(told, operands[i]);
    CUTLASS_PRAGMA_UNROLL
    for (int step = 0; step < 2; ++step) {
      CUTLASS_PRAGMA_UNROLL
      for (int e = 0; e < Dense::kEights; ++e) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i) multiply(sums.of[i][e], operands[i] + 4 * step, tokens[e][2 * half + step]);
      }
    }
  }

  __device__ static void multiply(float (&d)[4], uint32_t const* a, uint32_t const (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

}  // namespace gemmill::blockscaled
