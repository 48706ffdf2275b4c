// A lane's part of a stored vector that may begin at any even byte of shared memory.
//
// A warp takes up to 128 elements of a vector, and four or eight of its lanes share them. Lanes read codes half a word at a time and use
// them where they lie: which elements a lane has is free where both operands of a product agree, so codes need neither alignment nor a
// move to a natural place.
#pragma once

#include <algorithm>

#include "kv_cache/shared/decode_tiles.cuh"

namespace gemmill::kv_cache {

// Elements of a vector that a warp takes. As many warps as take a vector exchange their parts of scores (shares.cuh).
template <int kHeadDim>
constexpr int kSlotShare = std::min(kHeadDim, 128);

__device__ __forceinline__ uint32_t half_word(uint8_t const* shared, int at) {
  return *reinterpret_cast<uint16_t const*>(shared + at);
}
__device__ __forceinline__ float scalar_of(uint8_t const* shared, int at) {
  return to_float(*reinterpret_cast<__half const*>(shared + at));
}
// Four bytes that begin at an even one.
__device__ __forceinline__ uint32_t four_bytes(uint8_t const* shared, int at) {
  return half_word(shared, at) | half_word(shared, at + 2) << 16;
}

// Codes of centroids, looked up in pairs. Element n of a lane is element(lane, n) of the vector. Codes of 3 bits of four lanes are
// three words each, at a shift; others come in units of half a word, or of three, of lanes in turn.
template <int kBits, int kLanes, int kShare>
struct LaneCodes {
  static constexpr int kElements = kShare / kLanes;
  static constexpr int kUnit = kBits == 3 ? kElements : 16 / kBits, kUnits = kElements / kUnit;
  static constexpr int kHalves = kUnit * kBits / 16;  // of a unit
  static_assert(kHalves * 16 == kUnit * kBits, "Units are whole half words.");
  PackedCodes<kBits, kUnit> units[kUnits];

  static __device__ __forceinline__ int element(int lane, int n) { return (n / kUnit * kLanes + lane) * kUnit + n % kUnit; }

  __device__ __forceinline__ void load(uint8_t const* shared, int row, int lane) {
    if constexpr (kHalves == 6) {
      int const first = row + lane * 12, shift = first % 4 * 8;
      uint32_t const* const from = reinterpret_cast<uint32_t const*>(shared + first / 4 * 4);
      uint32_t touched[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) touched[i] = from[i];
#pragma unroll
      for (int i = 0; i < 3; ++i) units[0].words[i] = __funnelshift_r(touched[i], touched[i + 1], shift);
    } else {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        int const first = row + (u * kLanes + lane) * 2 * kHalves;
#pragma unroll
        for (int i = 0; i < kHalves; i += 2) {
          units[u].words[i / 2] = i + 1 < kHalves ? four_bytes(shared, first + 2 * i) : half_word(shared, first + 2 * i);
        }
      }
    }
  }
  // The centroids of its elements 2 p and 2 p + 1.
  __device__ __forceinline__ uint32_t pair(uint32_t table, int p) const {
    return pair_of(table, units[2 * p / kUnit], p % (kUnit / 2));
  }
};

// Codes of two tokens as numbers themselves, in f16: a code at bits b to b + kBits of an f16's mantissa is code 2^(b - 24). Element n of
// a lane, of both tokens, is in one word; by factor(n) it becomes the code.
template <int kBits, int kCodes>
struct TwoTokens {
  static constexpr int kHalves = kBits * kCodes / 16;  // half words of a lane's codes
  static_assert(kHalves * 16 == kBits * kCodes, "Codes are whole half words.");
  static constexpr int kMantissa = 10;
  uint32_t words[kHalves];  // of each token half a word

  __device__ __forceinline__ void load(uint8_t const* shared, int first_row, int second_row, int lane) {
    constexpr int kUnit = kBits == 3 ? 3 : 1;  // as LaneCodes has them
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      int const at = 2 * ((i / kUnit * 8 + lane) * kUnit + i % kUnit);
      words[i] = half_word(shared, first_row + at) | half_word(shared, second_row + at) << 16;
    }
  }
  static __host__ __device__ constexpr int place(int n) { return n * kBits % 16; }
  // The shift of a half word whose codes would reach beyond the mantissa: to its first such code.
  static __host__ __device__ constexpr int shift(int n) {
    if (place(n) + kBits <= kMantissa) return 0;
    int first = n;
    while (first > 0 && (first - 1) * kBits / 16 == n * kBits / 16 && place(first - 1) + kBits > kMantissa) --first;
    return place(first);
  }
  static __host__ __device__ constexpr float factor(int n) {
    int const bit = place(n) + kBits > 16 ? 0 : place(n) - shift(n);
    return 0x1p24f / static_cast<float>(1 << bit);
  }
  __device__ __forceinline__ uint32_t operator[](int n) const {
    constexpr uint32_t kMask = (1u << kBits) - 1;
    int const half = n * kBits / 16, at = place(n);
    if (at + kBits > 16) {  // of two half words
      uint32_t const low = (1u << (16 - at)) - 1, high = kMask & ~low;
      return (words[half] >> at & low * 0x10001u) | (words[(half + 1) % kHalves] << (16 - at) & high * 0x10001u);
    }
    return words[half] >> shift(n) & (kMask << (at - shift(n))) * 0x10001u;
  }
};

}  // namespace gemmill::kv_cache
