// 2:4 sparse weights of e2m1 in registers, for Hopper's sparse tensor core: of each four columns two codes, and where they were. A kept
// code becomes bf16 as a dense one does (widen_e2m1.cuh); zeros are never made. The order in memory is that of
// gemmill/formats/sparse_blocks.py, which names every byte's place.
//
// An instruction takes 16 rows and 32 columns, of which 16 are kept. Kept columns are operand A of m16n8k16, and places of one row's
// 16 columns are 16 bits of one of four lanes: lanes 0 and 1 of four have those of the first instruction of a block, 2 and 3 those of
// the second, which is the instruction's selector.
#pragma once

#include "gemm/warp_products.cuh"
#include "gemm/widen_e2m1.cuh"

namespace gemmill::blockscaled {

// A thread's part of a block of 64 rows and 64 columns: kept codes of two instructions, places, and scales of its two rows. `group`
// columns share a scale.
template <int group>
struct SparseFp4Block {
  using Input = cutlass::bfloat16_t;  // activations
  using Widened = Input;              // operands of a warp
  static constexpr int kOfBlock = 1;  // parts of 64 columns
  static constexpr int kEvenTokens = 128;  // whose sums leave a thread that multiplies the registers it needs
  static constexpr int kEntries = 0;       // of tables in shared memory
  static constexpr uint32_t kSpread = NvFp4::kSpread;
  static constexpr float kShort = NvFp4::kShort;
  static constexpr int kCodeBytes = 64 * 16, kPlaceBytes = 64 * 8;
  static constexpr int kBytes = kCodeBytes + kPlaceBytes + 64 * 64 / group;

  static_assert(group == 16 || group == 8, "a lane has four columns of each 16, so it has one of their scales");

  uint32_t codes[2], places;
  NvFp4::Scales scales;

  __device__ void load(uint32_t address, int thread) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(codes[0]), "=r"(codes[1]) : "r"(address + thread * 8));
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(places) : "r"(address + kCodeBytes + thread * 4));
    uint32_t const from = address + kCodeBytes + kPlaceBytes;
    if constexpr (group == 16) {
      scales.load(from, thread);
    } else {  // lanes 0 and 1 of four have the first 8 of 16 columns, 2 and 3 the last
      scales.load(from + thread / 2 % 2 * 256, thread);
    }
  }
  __device__ void load(uint32_t address, int, int thread) { load(address, thread); }

  // Operand A of both instructions: registers of the upper and the lower row in turn, then those of the columns 16 further.
  __device__ void operands(uint32_t spread, uint32_t* out) const {
    uint32_t x[4], y[4];
    widen(codes[0], codes[1], x, y);
    scale<0>(x, spread, out);
    scale<1>(y, spread, out + 4);
  }

 private:
  template <int step>
  __device__ void scale(uint32_t const (&pairs)[4], uint32_t spread, uint32_t* out) const {
    uint32_t const upper = NvFp4::factors(two_bytes<step>(scales.above), spread), lower = NvFp4::factors(two_bytes<step>(scales.below), spread);
    out[0] = multiply_pair<0>(pairs[0], upper);
    out[1] = multiply_pair<0>(pairs[1], lower);
    out[2] = multiply_pair<1>(pairs[2], upper);
    out[3] = multiply_pair<1>(pairs[3], lower);
  }
};

// 16 rows of 32 columns by eight tokens. `first` and `last` are a token's pairs of columns, as two instructions for dense operands take
// them.
template <int selector>
__device__ void multiply_sparse(float (&d)[4], uint32_t const* a, uint32_t const (&first)[2], uint32_t const (&last)[2], uint32_t places) {
  asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, "
      "{%0, %1, %2, %3}, %12, %13;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(first[0]), "r"(first[1]), "r"(last[0]), "r"(last[1]), "r"(places), "n"(selector));
}

}  // namespace gemmill::blockscaled
