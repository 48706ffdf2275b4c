// A lane's part of a row of block-scaled codes in a warp's own stages of shared memory: 32 columns, as pairs of bf16 or f16.
//
// PRMT repeats the sign of a byte above it, so a pair of codes takes PRMT, a shift and a mask. The results are too small by a power of
// two, since the exponent's bits lie at the wider type's lowest.
#pragma once

#include "blockscaled/shared/operands.cuh"
#include "cutlass/cutlass.h"

namespace gemmill::blockscaled {

__device__ inline uint4 load_shared_16(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at));
  return x;
}
__device__ inline uint2 load_shared_8(uint32_t at) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at));
  return x;
}
__device__ inline uint32_t load_shared_2(uint32_t at) {
  uint16_t x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(at));
  return x;
}
__device__ inline uint32_t load_shared_1(uint32_t at) {
  uint32_t x;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(x) : "r"(at));
  return x;
}

// Two bytes, the sign of each repeated above it. 0 to 3 are those of x, 4 to 7 those of y.
template <int first, int second>
__device__ uint32_t spread(uint32_t x, uint32_t y) {
  uint32_t z;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(z) : "r"(x), "r"(y), "n"(first | (first | 8) << 4 | second << 8 | (second | 8) << 12));
  return z;
}

// A half of y in both: an operand that the multiplication reads so, without an instruction.
template <int half>
__device__ uint32_t twice(uint32_t y) {
  uint32_t z;
  if constexpr (half == 0) {
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; mov.b32 %0, {a, a};}" : "=r"(z) : "r"(y));
  } else {
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; mov.b32 %0, {b, b};}" : "=r"(z) : "r"(y));
  }
  return z;
}

// Eight codes of e2m1: of words of both operands as pairs 0 2, 1 3, 4 6, 5 7, which both take in that order; else in order.
template <class X, bool in_order>
__device__ void spread_e2m1(uint32_t word, uint32_t (&x)[4]) {
  uint32_t const low = word << 4;
  if constexpr (in_order) {
    x[0] = spread<0, 4>(low, word), x[1] = spread<1, 5>(low, word), x[2] = spread<2, 6>(low, word), x[3] = spread<3, 7>(low, word);
  } else {
    x[0] = spread<0, 1>(low, low), x[1] = spread<0, 1>(word, word), x[2] = spread<2, 3>(low, low), x[3] = spread<2, 3>(word, word);
  }
  constexpr int shift = X::kMantissa - 5;  // e2m1 has the sign in bit 7, and exponent and mantissa below it
  constexpr uint32_t mask = (0x8000u | 7u << (X::kMantissa - 1)) * 0x10001u;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < 4; ++i) x[i] = x[i] << shift & mask;
}
// Four of e4m3.
template <class X>
__device__ void spread_e4m3(uint32_t word, uint32_t& x, uint32_t& y) {
  constexpr int shift = X::kMantissa - 3;
  constexpr uint32_t mask = (0x8000u | 0x7Fu << (X::kMantissa - 3)) * 0x10001u;
  x = spread<0, 1>(word, word) << shift & mask;
  y = spread<2, 3>(word, word) << shift & mask;
}
// Sixteen of e3m2 in three words.
template <class X>
__device__ void spread_e3m2(uint32_t p, uint32_t q, uint32_t r, uint32_t* x) {
  constexpr int shift = X::kMantissa - 4;
  constexpr uint32_t mask = (0x8000u | 0x1Fu << (X::kMantissa - 2)) * 0x10001u;
  uint32_t const fifth = __funnelshift_r(p, q, 28), tenth = __funnelshift_r(q, r, 26);  // those codes at the top of byte 0
  x[0] = spread<0, 5>(p << 2, p << 4), x[1] = spread<2, 6>(p << 6, p), x[2] = spread<3, 4>(p << 2, fifth), x[3] = spread<1, 5>(q << 6, q);
  x[4] = spread<2, 7>(q << 2, q << 4), x[5] = spread<0, 4>(tenth, r), x[6] = spread<1, 6>(r << 2, r << 4), x[7] = spread<3, 7>(r << 6, r);
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < 8; ++i) x[i] = x[i] << shift & mask;
}

// kCodeBytes and kScaleBytes: of eight rows of 128 columns. kBehind: scales follow the codes of their row, else they are swizzled.
// kSixteens: a lane has columns 16 c and 64 + 16 c, else 32 c and those after it, c its place among the four lanes of a row.

// Two scales of ue4m3 for 32 columns. As f16 times 128 they take code * 2^-14 to code * scale / 128. Byte 127 is NaN.
template <bool behind>
struct NvFp4Piece {
  using X = F16;
  static constexpr int kColumnMultiple = 128, kCodeBytes = 512, kScaleBytes = 128, kCodeBits = 4, kGroup = 16;
  static constexpr bool kBehind = behind, kSixteens = false;
  static constexpr float kShort = 128.0f;

  uint4 codes;
  uint32_t scales;

  __device__ void load(uint32_t code_at, uint32_t scale_at, int lane) {
    take(load_shared_16(code_at + lane * 16), load_shared_2(scale_at + lane * 4 + lane % 2 * 2));
  }
  __device__ void take(uint4 words, uint32_t bytes) { codes = words, scales = X::multiply(X::widen_e4m3(bytes), 0x58005800u); }
  template <int i>
  __device__ void eight(uint32_t (&x)[4]) const {
    uint32_t const words[4] = {codes.x, codes.y, codes.z, codes.w};
    spread_e2m1<X, behind>(words[i], x);
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < 4; ++j) x[j] = X::multiply(x[j], twice<i / 2>(scales));
  }
};

// One of ue8m0.
template <class X_>
struct MxFp4Piece {
  using X = X_;
  static constexpr int kColumnMultiple = 128, kCodeBytes = 512, kScaleBytes = 128, kCodeBits = 4, kGroup = 32;
  static constexpr bool kBehind = false, kSixteens = false;
  static constexpr float kShort = 1.0f;

  uint4 codes;
  uint32_t scale;

  __device__ void load(uint32_t code_at, uint32_t scale_at, int lane) {
    take(load_shared_16(code_at + lane * 16), load_shared_1(scale_at + lane * 4 + lane % 4));
  }
  __device__ void take(uint4 words, uint32_t byte) { codes = words, scale = X::widen_ue8m0(byte); }
  template <int i>
  __device__ void eight(uint32_t (&x)[4]) const {
    uint32_t const words[4] = {codes.x, codes.y, codes.z, codes.w};
    spread_e2m1<X, false>(words[i], x);
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < 4; ++j) x[j] = X::multiply(X::multiply(x[j], E2m1::raised<X>()), twice<0>(scale));
  }
};
template <class X_>
struct MxFp8Piece {
  using X = X_;
  static constexpr int kColumnMultiple = 128, kCodeBytes = 1024, kScaleBytes = 128, kCodeBits = 8, kGroup = 32;
  static constexpr bool kBehind = true, kSixteens = true;
  static constexpr float kShort = 1.0f;
  static constexpr uint32_t kRaised = static_cast<uint32_t>(2 * X::kBias - 7) << X::kMantissa;

  uint4 codes[2];
  uint32_t scales;

  __device__ void load(uint32_t code_at, uint32_t scale_at, int lane) {
    codes[0] = load_shared_16(code_at + lane * 16), codes[1] = load_shared_16(code_at + 512 + lane * 16);
    uint32_t const at = scale_at + lane * 4 + lane % 4 / 2;
    scales = X::widen_ue8m0(load_shared_1(at)) | X::widen_ue8m0(load_shared_1(at + 2)) << 16;
  }
  template <int i>
  __device__ void eight(uint32_t (&x)[4]) const {
    uint4 const& from = codes[i / 2];
    spread_e4m3<X>(i % 2 == 0 ? from.x : from.z, x[0], x[1]);
    spread_e4m3<X>(i % 2 == 0 ? from.y : from.w, x[2], x[3]);
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < 4; ++j) x[j] = X::multiply(X::multiply(x[j], kRaised * 0x10001u), twice<i / 2>(scales));
  }
};
template <class X_>
struct MxFp6Piece {
  using X = X_;
  static constexpr int kColumnMultiple = 128, kCodeBytes = 768, kScaleBytes = 128, kCodeBits = 6, kGroup = 32;
  static constexpr bool kBehind = true, kSixteens = false;
  static constexpr float kShort = 1.0f;

  uint32_t pairs[16];
  uint32_t scale;

  __device__ void load(uint32_t code_at, uint32_t scale_at, int lane) {
    uint2 const p = load_shared_8(code_at + lane * 8), q = load_shared_8(code_at + 256 + lane * 8), r = load_shared_8(code_at + 512 + lane * 8);
    spread_e3m2<X>(p.x, p.y, q.x, pairs);
    spread_e3m2<X>(q.y, r.x, r.y, pairs + 8);
    scale = X::widen_ue8m0(load_shared_1(scale_at + lane * 4 + lane % 4));
  }
  template <int i>
  __device__ void eight(uint32_t (&x)[4]) const {
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < 4; ++j) x[j] = X::multiply(X::multiply(pairs[4 * i + j], E3m2::raised<X>()), twice<0>(scale));
  }
};

}  // namespace gemmill::blockscaled
