// Codes of e2m1 and their scales in registers, to bf16. The results are exact: code times scale has six significant bits at most, bf16
// eight. The order in memory is that of gemmill/quantize/fp4_blocks.py, which names every bit's place.
#pragma once

#include <cstdint>

#include "cutlass/numeric_types.h"

namespace gemmill::blockscaled {

// The first's bits where the mask has ones, else the second's: in one instruction, where the compiler takes two.
__device__ inline uint32_t select_bits(uint32_t mask, uint32_t first, uint32_t second) {
  uint32_t z;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(z) : "r"(mask), "r"(first), "r"(second));
  return z;
}

// Sixteen codes of two words to pairs of bf16 that are code * 2^-126: sign in bit 15, magnitude in bits 8 to 6, where code 0.5
// is subnormal. x gets the first word's, y the second's. Bits of each half of a word, sign first:
//   code 0: 15, 8 7 6     code 1: 5 of the other half, 14 13 12     code 2: 11, 4 3 2
// Bits 0, 1, 9 and 10 hold code 3 of both words:
//   the first's: 9; 0 of the second word, 1, 0     the second's: 1 of the other half, 10, 9; 10 of the first word
// So few instructions find them. Shifts to the left are multiplications, which do not run in the logic unit.
__device__ inline void widen(uint32_t first, uint32_t second, uint32_t (&x)[4], uint32_t (&y)[4]) {
  constexpr uint32_t kMask = 0x81C081C0u, kLeft = 0x06030603u;
  uint32_t const rest = select_bits(kLeft, first, second << 2);
  x[0] = first & kMask;
  x[1] = __funnelshift_r(first, first, 6) & kMask;
  x[2] = (first << 4) & kMask;
  x[3] = (rest << 6) & kMask;
  y[0] = second & kMask;
  y[1] = __funnelshift_r(second, second, 6) & kMask;
  y[2] = (second << 4) & kMask;
  y[3] = __funnelshift_r(rest, rest, 4) & kMask;
}

// A pair of codes times one of two scales.
template <int half>
__device__ uint32_t multiply_pair(uint32_t x, uint32_t scales) {
  uint32_t z;
  if constexpr (half == 0) {
    asm("{.reg .b16 a, b; .reg .b32 s; mov.b32 {a, b}, %2; mov.b32 s, {a, a}; mul.rn.bf16x2 %0, %1, s;}" : "=r"(z) : "r"(x), "r"(scales));
  } else {
    asm("{.reg .b16 a, b; .reg .b32 s; mov.b32 {a, b}, %2; mov.b32 s, {b, b}; mul.rn.bf16x2 %0, %1, s;}" : "=r"(z) : "r"(x), "r"(scales));
  }
  return z;
}

// Codes of a step as operand A of m64n*k16 takes them: its registers are those of the upper and the lower row in turn.
template <int upper_half, int lower_half>
__device__ void scale_step(uint32_t const (&pairs)[4], uint32_t upper, uint32_t lower, uint32_t* out) {
  out[0] = multiply_pair<upper_half>(pairs[0], upper);
  out[1] = multiply_pair<lower_half>(pairs[1], lower);
  out[2] = multiply_pair<upper_half>(pairs[2], upper);
  out[3] = multiply_pair<lower_half>(pairs[3], lower);
}

// Bytes 0 and 2 of a word, or 1 and 3, in its halves.
template <int first>
__device__ uint32_t two_bytes(uint32_t word) {
  return __byte_perm(word, 0, first == 0 ? 0x4240 : 0x4341);
}

// A scale for each 16 codes of a row, as a byte: five bits of exponent and three of mantissa, 2^(exponent - 10) * 1.mantissa. Every ue4m3
// scale is such a number, subnormal ones too, but zero, whose codes are zeros.
struct NvFp4 {
  static constexpr int kScaleBytes = 64 * 4;  // of a block of 64 rows and 64 columns
  static constexpr float kShort = 128.0f;      // the factor that code * scale lacks: 2^126 of the code, less 2^119 of the scale
  static constexpr uint32_t kSpread = 1 << 4;  // Params::spread

  // Two scales times 2^119.
  __device__ static uint32_t factors(uint32_t bytes, uint32_t spread) { return bytes * spread + ((119 + 127 - 10) << 7) * 0x10001u; }

  // Those of a thread's two rows in a block, for steps 0, 2, 1 and 3 of 16 columns.
  struct Scales {
    uint32_t above, below;

    __device__ void load(uint32_t address, int thread) {
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(above), "=r"(below) : "r"(address + thread / 4 * 8));
    }
    template <int half>
    __device__ void multiply(uint32_t const (&x)[4], uint32_t const (&y)[4], uint32_t spread, uint32_t* out) const {
      uint32_t const upper = factors(two_bytes<half>(above), spread), lower = factors(two_bytes<half>(below), spread);
      scale_step<0, 0>(x, upper, lower, out);
      scale_step<1, 1>(y, upper, lower, out + 4);
    }
  };
};

// A scale for each 32 codes of a row, ue8m0 relative to the row's base, f32, with which the epilogue multiplies. Bytes are 2 to
// 128, 2^-125 to 2: then products are normal numbers, and the factor of a code, 2^126 times its scale, is a number of bf16.
struct MxFp4 {
  static constexpr int kScaleBytes = 64 * 2;
  static constexpr float kShort = 1.0f;
  static constexpr uint32_t kSpread = 1 << 7;

  // Two scales times 2^126.
  __device__ static uint32_t factors(uint32_t bytes, uint32_t spread) { return bytes * spread + (126 << 7) * 0x10001u; }

  // Two of the upper row, two of the lower.
  struct Scales {
    uint32_t both;

    __device__ void load(uint32_t address, int thread) {
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(both) : "r"(address + thread / 4 * 4));
    }
    template <int half>
    __device__ void multiply(uint32_t const (&x)[4], uint32_t const (&y)[4], uint32_t spread, uint32_t* out) const {
      uint32_t const rows = factors(two_bytes<half>(both), spread);
      scale_step<0, 1>(x, rows, rows, out);
      scale_step<0, 1>(y, rows, rows, out + 4);
    }
  };
};

// A thread's part of a block of 64 rows and 64 columns: codes of four steps of 16 columns, and scales of its two rows.
template <class Format>
struct Fp4Block {
  using Input = cutlass::bfloat16_t;  // activations
  using Widened = Input;              // operands of a warp
  static constexpr int kOfBlock = 1;  // parts of 64 columns
  static constexpr int kEvenTokens = 128;  // whose sums leave a thread that multiplies the registers it needs
  static constexpr int kEntries = 0;       // of tables in shared memory
  static constexpr uint32_t kSpread = Format::kSpread;
  static constexpr float kShort = Format::kShort;
  static constexpr int kCodeBytes = 64 * 32;
  static constexpr int kBytes = kCodeBytes + Format::kScaleBytes;

  uint32_t codes[4];
  typename Format::Scales scales;

  __device__ void load(uint32_t address, int thread) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(codes[0]), "=r"(codes[1]), "=r"(codes[2]), "=r"(codes[3])
                 : "r"(address + thread * 16));
    scales.load(address + kCodeBytes, thread);
  }
  __device__ void load(uint32_t address, int, int thread) { load(address, thread); }

  // Two steps of 16 columns, the first half of the block's or the second, as operand A: short by Format::kShort.
  template <int half>
  __device__ void operand(uint32_t spread, uint32_t* out) const {
    uint32_t x[4], y[4];
    widen(codes[2 * half], codes[2 * half + 1], x, y);
    scales.template multiply<half>(x, y, spread, out);
  }
};

}  // namespace gemmill::blockscaled
