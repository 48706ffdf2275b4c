// A warp multiplies 64 rows of weights by the few tokens of a tile, by mma.sync: activations that it has loaded serve four
// times 16 rows. Nothing is shared between warps but stages, so each goes at its own pace.
#pragma once

#include "blockscaled/widen_e2m1.cuh"
#include "cute/arch/util.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/cutlass.h"
#include "cutlass/numeric_types.h"

namespace gemmill::blockscaled {

// Four matrices of 8 rows of 16 bytes; a lane gives the address of one row.
__device__ inline void load_matrices(uint32_t (&x)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}

__device__ inline void multiply_warp(float (&d)[4], uint32_t const* a, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A warp's sums of 64 rows and some tokens to shared memory, token by token: rows of `pitch` sums.
template <int pitch, int eights>
__device__ void put_sums(float const (&sums)[4][eights][4], float* to) {
  int const row = threadIdx.x % 32 / 4, token = threadIdx.x % 4 * 2;
  CUTLASS_PRAGMA_UNROLL
  for (int rows = 0; rows < 4; ++rows) {
    CUTLASS_PRAGMA_UNROLL
    for (int e = 0; e < eights; ++e) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) to[(e * 8 + token + i % 2) * pitch + rows * 16 + row + i / 2 * 8] = sums[rows][e][i];
    }
  }
}

// Of a stage with `blocks` blocks of 64 columns along K, a warp multiplies `each`.
template <class Format_, int blocks, int each, int tile_m, int stages>
struct WarpProducts {
  using X = cutlass::bfloat16_t;
  using Format = Format_;
  using Block = Fp4Block<Format>;

  static constexpr int kThreads = 32;
  static constexpr int kBlocks = blocks, kEach = each, kTileM = tile_m, kStages = stages;
  static constexpr int kEights = tile_m / 8;  // of tokens

  static_assert(tile_m % 8 == 0 && tile_m <= 32, "sums of more than 32 tokens do not fit in a warp's registers");

  struct Sums {
    float of[4][kEights][4];  // 16 rows each
  };

  // The sums of `count` stages, in the warp's registers. `first_block` of each is its first.
  template <class Storage>
  __device__ static Sums consume(Storage& storage, uint32_t spread, int count, int row_group, int first_block) {
    Sums sums{};
    int const lane = threadIdx.x % 32;
    uint32_t const own = cute::cast_smem_ptr_to_uint(&storage.weights[0][0]) + (row_group * blocks + first_block) * Block::kBytes;
    // Rows of 128 bytes are swizzled: piece p of 16 bytes of row r lies at p ^ (r % 8).
    uint32_t const tokens = cute::cast_smem_ptr_to_uint(&storage.tokens[0][0]) + first_block * tile_m * 128 + lane % 8 * 128;
    uint32_t const pieces[2] = {static_cast<uint32_t>((lane / 8) ^ (lane % 8)) << 4, static_cast<uint32_t>((lane / 8 + 4) ^ (lane % 8)) << 4};
    int stage = 0, phase = 0;
    for (int t = 0; t < count; ++t) {
      storage.filled[stage].wait(phase);
      CUTLASS_PRAGMA_UNROLL
      for (int b = 0; b < each; ++b) {
        multiply_block(sums, spread, own + stage * sizeof(storage.weights[0]) + b * Block::kBytes,
                       tokens + stage * sizeof(storage.tokens[0]) + b * tile_m * 128, pieces, lane);
      }
      __syncwarp();
      if (lane == 0) storage.freed[stage].arrive();
      if (++stage == stages) stage = 0, phase ^= 1;
    }
    return sums;
  }

  __device__ static void multiply_block(Sums& sums, uint32_t spread, uint32_t weights, uint32_t tokens, uint32_t const (&pieces)[2], int lane) {
    uint32_t of_token[2][kEights][4];
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      CUTLASS_PRAGMA_UNROLL
      for (int e = 0; e < kEights; ++e) load_matrices(of_token[half][e], tokens + e * 1024 + pieces[half]);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      Block block;
      block.load(weights, i * 32 + lane);
      uint32_t operand[8];
      block.template operand<0>(spread, operand);
      multiply_half(sums.of[i], operand, of_token[0]);
      block.template operand<1>(spread, operand);
      multiply_half(sums.of[i], operand, of_token[1]);
    }
  }

  // Two steps of 16 columns.
  __device__ static void multiply_half(float (&sums)[kEights][4], uint32_t const (&operand)[8], uint32_t const (&of_token)[kEights][4]) {
    CUTLASS_PRAGMA_UNROLL
    for (int step = 0; step < 2; ++step) {
      CUTLASS_PRAGMA_UNROLL
      for (int e = 0; e < kEights; ++e) multiply_warp(sums[e], operand + 4 * step, of_token[e][2 * step], of_token[e][2 * step + 1]);
    }
  }

  // To shared memory, token by token: rows of `pitch` sums, of which this warp has 64.
  template <int pitch>
  __device__ static void put(Sums const& sums, float* to) {
    put_sums<pitch>(sums.of, to);
  }
};

}  // namespace gemmill::blockscaled
