// Codes of e2m1 and their scales in registers, to e4m3: by a table of the eight magnitudes times a scale, two words that PRMT
// looks up four codes at a time. The order in memory is that of gemmill/formats/folded_blocks.py, which names every bit's place.
#pragma once

#include <cstdint>
#include <cuda_fp8.h>

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
};

// nvfp4, rounded: a byte for each 16 codes of a row, five bits of exponent and three of mantissa relative to the row's fold:
// 2^(exponent - 22) * 1.mantissa. What is beyond e4m3 is of codes that the group has not. All tables come from shared memory.
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
};

// What a thread has of a block of 64 rows and 128 columns: codes of four steps of 32 columns of its two rows, and their scales.
template <class Format>
struct FoldedBlock {
  static constexpr int kCodeBytes = 64 * 64;
  static constexpr int kBytes = kCodeBytes + 64 * 128 / Format::kGroup;

  uint32_t codes[4][2];
  Format scales;

  __device__ void load(uint32_t address, int thread) {
    for (int half = 0; half < 2; ++half) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(codes[2 * half][0]), "=r"(codes[2 * half][1]), "=r"(codes[2 * half + 1][0]), "=r"(codes[2 * half + 1][1])
                   : "r"(address + half * kCodeBytes / 2 + thread * 16));
    }
    scales.load(address + kCodeBytes, thread);
  }

  // Two steps, the first half of the block's or the second, as operand A of m64n*k32: registers of the upper and the lower row
  // in turn, then those of the columns 16 further.
  template <int half>
  __device__ void operand(uint32_t tables, uint32_t* out) const {
    scales.template fold_step<2 * half>(codes[2 * half], tables, out);
    scales.template fold_step<2 * half + 1>(codes[2 * half + 1], tables, out + 4);
  }
};

}  // namespace gemmill::blockscaled
