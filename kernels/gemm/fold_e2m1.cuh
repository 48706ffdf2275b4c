// Codes of e2m1 and their scales in registers, to e4m3, or to f16 for few tokens: by a table of the eight magnitudes times a scale,
// two words that PRMT looks up four codes at a time. The order in memory is that of gemmill/formats/folded_blocks.py, which names every bit's place.
#pragma once

#include <cstdint>
#include <cuda_fp8.h>

#include "cutlass/numeric_types.h"

namespace gemmill::blockscaled {

// The magnitudes times a scale, rounded to e4m3: bytes of codes 0 to 3 in x, of 4 to 7 in y.
__device__ inline uint2 magnitudes(float scale) {
  uint32_t words[2] = {};
  for (int code = 0; code < 8; ++code) {
    float const values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    words[code / 4] |= uint32_t{__nv_cvt_float_to_fp8(values[code] * scale, __NV_SATFINITE, __NV_E4M3)} << code % 4 * 8;
  }
  return make_uint2(words[0], words[1]);
}

// The first's bits, and the second's where the mask has ones: in one instruction, where the compiler takes two.
__device__ inline uint32_t with_bits(uint32_t first, uint32_t second, uint32_t mask) {
  uint32_t z;
  asm("lop3.b32 %0, %1, %2, %3, 0xF8;" : "=r"(z) : "r"(first), "r"(second), "r"(mask));
  return z;
}

// Eight codes: of columns 4 q to 4 q + 3 of a step, and 16 further. Magnitude of code j in bits 4 j to 4 j + 2; signs of the first
// four in bits 7, 15, 23 and 31, of the others four bits below. `first` and `second` are tables.
__device__ inline void fold(uint32_t codes, uint2 first, uint2 second, uint32_t& low, uint32_t& high) {
  constexpr uint32_t kSigns = 0x80808080u;
  uint32_t const places = codes & 0x77777777u;
  low = with_bits(__byte_perm(first.x, first.y, places), codes, kSigns);
  high = with_bits(__byte_perm(second.x, second.y, places >> 16), codes << 4, kSigns);
}

// Bytes as the high halves of f16: every e5m2 value is the same f16.
__device__ inline void as_high_bytes(uint32_t four, uint32_t& first, uint32_t& last) {
  first = __byte_perm(four, 0, 0x1404), last = __byte_perm(four, 0, 0x3424);
}

// Four numbers of e4m3 as pairs of f16.
__device__ inline void widen_e4m3(uint32_t four, uint32_t& first, uint32_t& last) {
  asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b;}" : "=r"(first), "=r"(last) : "r"(four));
}

__device__ inline uint32_t byte_of(uint32_t word, int i) { return __byte_perm(word, 0, 0x4440 | i); }

// mxfp4: a byte for each 32 codes of a row, 8 (shift + 8) of shifts from -8 to 6. Tables of normal numbers are linear in it.
// Where a block has shifts below -5 all of its bytes have their highest bit set: then tables come from shared memory.
struct MxFp4Folded {
  static constexpr int kGroup = 32;
  static constexpr int kEntries = 15;  // 8 bytes each in shared memory
  static constexpr uint32_t kListed = 0x80;

  __device__ static float scale(int entry) { return exp2f(static_cast<float>(entry - 8)); }

  uint32_t above, below;  // a byte for each step of 32 columns, of a thread's two rows

  __device__ void load(uint32_t address, int thread) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(above), "=r"(below) : "r"(address + thread / 4 * 8));
  }

  __device__ static uint2 table(uint32_t byte, uint32_t listed, uint32_t tables) {
    constexpr uint32_t kLow = 0x3C383000u - 64 * 0x01010100u, kHigh = 0x4C484440u - 64 * 0x01010101u;
    uint2 found = make_uint2(byte * 0x01010100u + kLow, byte * 0x01010101u + kHigh);
    asm("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.shared.v2.u32 {%0, %1}, [%3];}"
        : "+r"(found.x), "+r"(found.y)
        : "r"(listed), "r"(tables - kListed + byte));
    return found;
  }

  template <int step>
  __device__ void fold_step(uint32_t const (&codes)[2], uint32_t tables, uint32_t* out) const {
    uint32_t const listed = above & kListed;
    uint2 const upper = table(byte_of(above, step), listed, tables), lower = table(byte_of(below, step), listed, tables);
    fold(codes[0], upper, upper, out[0], out[2]);
    fold(codes[1], lower, lower, out[1], out[3]);
  }

  // Two steps of 32 columns, for f16: its exponents have room for all shifts, and a code's high byte is all there is of it. Bytes are
  // 4 (shift + 8), two of the upper row, two of the lower: so many quarters of an exponent's bit.
  struct Half {
    static constexpr int kEntries = 0;

    uint32_t bytes;

    __device__ void load(uint32_t address, int half, int thread) {
      uint32_t upper, lower;
      uint32_t const from = address + thread / 4 * 8 + half * 2;
      asm volatile("ld.shared.u16 %0, [%1];" : "=r"(upper) : "r"(from));
      asm volatile("ld.shared.u16 %0, [%1];" : "=r"(lower) : "r"(from + 4));
      bytes = (upper + lower * 0x10000u) >> 1 & 0x3C3C3C3Cu;  // without the bit kListed
    }

    __device__ static void widen(uint32_t codes, uint32_t byte, uint32_t* out) {
      constexpr uint32_t kLow = 0x3E3C3800u - 32 * 0x01010100u, kHigh = 0x46444240u - 32 * 0x01010101u;
      uint2 const table = make_uint2(byte * 0x01010100u + kLow, byte * 0x01010101u + kHigh);
      uint32_t low, high;
      fold(codes, table, table, low, high);
      as_high_bytes(low, out[0], out[2]);
      as_high_bytes(high, out[4], out[6]);
    }

    template <int step>
    __device__ void operand(uint32_t const (&codes)[2], uint32_t, uint32_t* out) const {
      widen(codes[0], byte_of(bytes, step), out);
      widen(codes[1], byte_of(bytes, step + 2), out + 1);
    }
  };
};

// nvfp4, rounded: a byte for each 16 codes of a row, five bits of exponent and three of mantissa relative to the row's fold: 2^(exponent
// - 22) * 1.mantissa. Entries beyond e4m3 belong to codes that the group has not. All tables come from shared memory.
struct NvFp4Rounded {
  static constexpr int kGroup = 16;
  static constexpr int kEntries = 256;

  __device__ static float scale(int entry) { return exp2f(static_cast<float>(entry / 8 - 22)) * (1.0f + 0.125f * (entry % 8)); }

  uint32_t above[2], below[2];  // two bytes for each step of 32 columns

  __device__ void load(uint32_t address, int thread) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(above[0]), "=r"(above[1]), "=r"(below[0]), "=r"(below[1])
                 : "r"(address + thread / 4 * 16));
  }

  __device__ static uint2 table(uint32_t byte, uint32_t tables) {
    uint2 found;
    asm("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(found.x), "=r"(found.y) : "r"(tables + byte * 8));
    return found;
  }

  template <int step>
  __device__ void fold_step(uint32_t const (&codes)[2], uint32_t tables, uint32_t* out) const {
    constexpr int at = step % 2 * 2;
    uint32_t const upper = above[step / 2], lower = below[step / 2];
    fold(codes[0], table(byte_of(upper, at), tables), table(byte_of(upper, at + 1), tables), out[0], out[2]);
    fold(codes[1], table(byte_of(lower, at), tables), table(byte_of(lower, at + 1), tables), out[1], out[3]);
  }

  // Two steps of 32 columns, for f16. Values rounded to e4m3 have more bits than a byte of f16: so tables are those of e4m3.
  struct Half {
    static constexpr int kEntries = NvFp4Rounded::kEntries;

    uint32_t above, below;

    __device__ void load(uint32_t address, int half, int thread) {
      uint32_t const from = address + thread / 4 * 16 + half * 4;
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(above) : "r"(from));
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(below) : "r"(from + 8));
    }

    __device__ static void widen(uint32_t codes, uint2 first, uint2 second, uint32_t* out) {
      uint32_t low, high;
      fold(codes, first, second, low, high);
      widen_e4m3(low, out[0], out[2]);
      widen_e4m3(high, out[4], out[6]);
    }

    template <int step>
    __device__ void operand(uint32_t const (&codes)[2], uint32_t tables, uint32_t* out) const {
      constexpr int at = 2 * step;
      widen(codes[0], table(byte_of(above, at), tables), table(byte_of(above, at + 1), tables), out);
      widen(codes[1], table(byte_of(below, at), tables), table(byte_of(below, at + 1), tables), out + 1);
    }
  };
};

// A block of 64 rows and 128 columns.
template <class Format>
struct FoldedWeights {
  using Input = cutlass::float_e4m3_t;    // activations
  static constexpr int kEvenTokens = 64;  // whose sums leave a thread that multiplies the registers it needs
  static constexpr uint32_t kSpread = 0;
  static constexpr float kShort = 1.0f;
  static constexpr int kCodeBytes = 64 * 64;
  static constexpr int kBytes = kCodeBytes + 64 * 128 / Format::kGroup;

  __device__ static uint2 table(int entry) { return magnitudes(Format::scale(entry)); }
};

// A thread's part of it: codes of four steps of 32 columns of its two rows, and their scales.
template <class Format>
struct FoldedBlock : FoldedWeights<Format> {
  using Weights = FoldedWeights<Format>;
  static constexpr int kEntries = Format::kEntries;  // of tables in shared memory

  uint32_t codes[4][2];
  Format scales;

  __device__ void load(uint32_t address, int thread) {
    for (int half = 0; half < 2; ++half) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(codes[2 * half][0]), "=r"(codes[2 * half][1]), "=r"(codes[2 * half + 1][0]), "=r"(codes[2 * half + 1][1])
                   : "r"(address + half * Weights::kCodeBytes / 2 + thread * 16));
    }
    scales.load(address + Weights::kCodeBytes, thread);
  }

  // Two steps, the first half of the block's or the second, as operand A of m64n*k32: registers of the upper and the lower row
  // in turn, then those of the columns 16 further.
  template <int half>
  __device__ void operand(uint32_t tables, uint32_t* out) const {
    scales.template fold_step<2 * half>(codes[2 * half], tables, out);
    scales.template fold_step<2 * half + 1>(codes[2 * half + 1], tables, out + 4);
  }
};

// A lane's part of half of its columns, for a warp that multiplies f16: two steps of 32 columns.
template <class Format>
struct FoldedHalf : FoldedWeights<Format> {
  using Weights = FoldedWeights<Format>;
  using Widened = cutlass::half_t;    // operands of a warp
  static constexpr int kOfBlock = 2;  // parts of 64 columns
  static constexpr int kEntries = Format::Half::kEntries;

  uint32_t codes[2][2];
  typename Format::Half scales;

  __device__ void load(uint32_t address, int half, int thread) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(codes[0][0]), "=r"(codes[0][1]), "=r"(codes[1][0]), "=r"(codes[1][1])
                 : "r"(address + half * Weights::kCodeBytes / 2 + thread * 16));
    scales.load(address + Weights::kCodeBytes, half, thread);
  }

  // A step as two of 16 columns: a lane's columns 4 q to 4 q + 3 are its part of one, those 16 further of the other.
  template <int step>
  __device__ void operand(uint32_t tables, uint32_t* out) const {
    scales.template operand<step>(codes[step], tables, out);
  }
  __device__ static void widen_tokens(uint32_t four, uint32_t (&out)[2]) { widen_e4m3(four, out[0], out[1]); }
};

}  // namespace gemmill::blockscaled
