// A warp multiplies 64 rows of weights by the few tokens of a tile, by mma.sync: activations that it has loaded serve four times 16 rows.
// Warps share nothing but stages, so each goes at its own pace. Hopper's mma.sync has no e4m3: with such activations both operands become
// f16, which holds them exactly.
#pragma once

#include <type_traits>

#include "cute/arch/util.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/cutlass.h"
#include "cutlass/numeric_types.h"
#include "gemm/pipeline.cuh"

namespace gemmill::blockscaled {

// Four matrices of 8 rows of 16 bytes; a lane gives the address of one row.
__device__ inline void load_matrices(uint32_t (&x)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}

template <class X>
__device__ void multiply_warp(float (&d)[4], uint32_t const* a, uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<X, cutlass::bfloat16_t>) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// The same of bf16, which the compiler may move.
__device__ __forceinline__ void mma_bf16(float* d, uint32_t const* a, uint32_t const (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
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

// A block has one or two parts of 64 columns. Of a stage with `parts` along K, a warp multiplies `each`. `grouped`: scales of tokens and
// bases of rows, which the stage has, multiply sums of a part, which then join f32 sums.
template <class Part, int parts, int each, int tile_m, int stages, bool grouped>
struct WarpProducts {
  using Block = Part;
  using Input = typename Part::Input;
  using X = typename Part::Widened;

  static constexpr int kThreads = 32;
  static constexpr int kParts = parts, kBlocks = parts / Part::kOfBlock, kEach = each, kTileM = tile_m, kStages = stages;
  static constexpr bool kGrouped = grouped, kWide = false;
  static constexpr int kEights = tile_m / 8;  // of tokens

  static_assert(tile_m % 8 == 0 && tile_m <= 32, "sums of more than 32 tokens do not fit in a warp's registers");
  static_assert(parts % Part::kOfBlock == 0, "a stage has whole blocks");

  struct Sums {
    float of[4][kEights][4];  // 16 rows each
  };
  using Tokens = uint32_t[kEights][4][2];  // operand B of four steps of 16 columns

  // The sums of `count` stages, in the warp's registers: from `turn` on every `turns`-th. `first_part` of each is its first. `Products` is
  // this class, or one that multiplies parts otherwise.
  template <int turns, class Products, class Storage>
  __device__ static Sums consume(Storage& storage, uint32_t told, PipelineState<stages>& ring, int count, int row_group, int first_part, int turn) {
    static_assert(turns <= stages, "a stage of each turn is there");
    Sums sums{};
    int const lane = threadIdx.x % 32;
    uint32_t const weights = cute::cast_smem_ptr_to_uint(&storage.weights[0][0]) + row_group * kBlocks * Part::kBytes;
    uint32_t const tokens = cute::cast_smem_ptr_to_uint(&storage.tokens[0][0]) + lane % 8 * 128;
    for (int t = turn; t < count; t += turns) {
      int const stage = ring.stage;
      storage.filled[stage].wait(ring.phase);
      CUTLASS_PRAGMA_UNROLL
      for (int p = 0; p < each; ++p) {
        int const block = (first_part + p) / Part::kOfBlock, half = (first_part + p) % Part::kOfBlock;
        Tokens of_tokens;
        load_tokens(of_tokens, tokens + stage * sizeof(storage.tokens[0]) + block * tile_m * 128, half, lane);
        uint32_t const own = weights + stage * sizeof(storage.weights[0]) + block * Part::kBytes;
        float const* factors = nullptr;
        if constexpr (grouped) factors = storage.factors[stage][block];
        Products::multiply_part(sums, told, own, half, of_tokens, factors, row_group * 64, lane);
      }
      __syncwarp();
      if (lane == 0) storage.freed[stage].arrive();
      if constexpr (Storage::kPersistent) {
        ring.next();
      } else {
        if ((ring.stage += turns) >= stages) ring.stage -= stages, ring.phase ^= 1;
      }
    }
    return sums;
  }

  // `row` is that of the lane among the block's first eight tokens. The swizzle spans rows of 128 bytes: piece p of 16 bytes of row r
  // lies at p ^ (r % 8). Of 8-bit numbers a piece is a step, whose columns operand A has in the same order.
  __device__ static void load_tokens(Tokens& x, uint32_t row, int half, int lane) {
    CUTLASS_PRAGMA_UNROLL
    for (int e = 0; e < kEights; ++e) {
      uint32_t pieces[4];
      if constexpr (sizeof(Input) == 1) {
        load_matrices(pieces, row + e * 1024 + (((lane / 8 + 4 * half) ^ (lane % 8)) << 4));
        CUTLASS_PRAGMA_UNROLL
        for (int step = 0; step < 4; ++step) Part::widen_tokens(pieces[step], x[e][step]);
      } else {
        CUTLASS_PRAGMA_UNROLL
        for (int step = 0; step < 4; step += 2) {
          load_matrices(pieces, row + e * 1024 + (((lane / 8 + 2 * step) ^ (lane % 8)) << 4));
          x[e][step][0] = pieces[0], x[e][step][1] = pieces[1], x[e][step + 1][0] = pieces[2], x[e][step + 1][1] = pieces[3];
        }
      }
    }
  }

  __device__ static void multiply_part(Sums& sums, uint32_t told, uint32_t weights, int half, Tokens const& tokens, float const* factors,
                                       int row, int lane) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      Part part;
      part.load(weights, half, i * 32 + lane);
      uint32_t operand[8];
      if constexpr (grouped) {
        float of_part[kEights][4] = {};
        part.template operand<0>(told, operand);
        multiply_steps<0>(of_part, operand, tokens);
        part.template operand<1>(told, operand);
        multiply_steps<2>(of_part, operand, tokens);
        add_scaled(sums.of[i], of_part, factors, factors + tile_m + row + i * 16, lane);
      } else {
        part.template operand<0>(told, operand);
        multiply_steps<0>(sums.of[i], operand, tokens);
        part.template operand<1>(told, operand);
        multiply_steps<2>(sums.of[i], operand, tokens);
      }
    }
  }

  // Two steps of 16 columns.
  template <int first>
  __device__ static void multiply_steps(float (&sums)[kEights][4], uint32_t const (&operand)[8], Tokens const& tokens) {
    CUTLASS_PRAGMA_UNROLL
    for (int step = 0; step < 2; ++step) {
      CUTLASS_PRAGMA_UNROLL
      for (int e = 0; e < kEights; ++e) multiply_warp<X>(sums[e], operand + 4 * step, tokens[e][first + step][0], tokens[e][first + step][1]);
    }
  }

  // A part's sums by the scale of its tokens and the base of its rows.
  __device__ static void add_scaled(float (&sums)[kEights][4], float const (&part)[kEights][4], float const* of_tokens, float const* of_rows,
                                    int lane) {
    float const bases[2] = {of_rows[lane / 4], of_rows[lane / 4 + 8]};
    CUTLASS_PRAGMA_UNROLL
    for (int e = 0; e < kEights; ++e) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) sums[e][i] += part[e][i] * (of_tokens[e * 8 + lane % 4 * 2 + i % 2] * bases[i / 2]);
    }
  }

  // To shared memory, token by token: rows of `pitch` sums, of which this warp has 64.
  template <int pitch>
  __device__ static void put(Sums const& sums, float* to) {
    put_sums<pitch>(sums.of, to);
  }
  template <int tokens, int pitch, int>
  __device__ static void put_chunk(Sums const& sums, float* to) {
    static_assert(tokens == tile_m, "a warp has all tokens of its rows");
    put_sums<pitch>(sums.of, to);
  }
};

}  // namespace gemmill::blockscaled
