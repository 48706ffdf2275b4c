// A lane's codes of two bits to centroids by one byte permutation for each pair, without a look-up in shared memory.
#pragma once

#include "kv_cache/slot_codes.cuh"
#include "kv_cache/words.cuh"

namespace gemmill::kv_cache {

// Low and high bytes of four centroids, from the table of pairs: a byte of codes 0 and 1, and one of codes 2 and 3, index it.
struct FourCentroids {
  uint32_t low, high;
  __device__ __forceinline__ explicit FourCentroids(uint32_t table) {
    uint32_t const first = load_shared(table + 256 * 0b0100), second = load_shared(table + 256 * 0b1110);
    low = __byte_perm(first, second, 0x6420), high = __byte_perm(first, second, 0x7531);
  }
};

// Codes of a lane, half a word of a vector at a time, of lanes in turn. A pair is codes i and i + 4 of such eight.
template <int kLanes, int kShare>
struct TwoBitCodes {
  static constexpr int kUnit = 8, kUnits = kShare / kLanes / kUnit;
  static_assert(kUnits % 2 == 0, "Words have two units.");
  uint32_t words[kUnits / 2];

  static __device__ __forceinline__ int element(int lane, int n) {
    return (n / kUnit * kLanes + lane) * kUnit + n % kUnit / 2 + n % 2 * 4;
  }
  __device__ __forceinline__ void load(uint8_t const* shared, int row, int lane) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      uint32_t const half = half_word(shared, row + (i * kLanes + lane) * 2);
      words[i / 2] = i % 2 == 0 ? half : words[i / 2] | half << 16;
    }
  }
  // The centroids of its elements 2 p and 2 p + 1. Of each a nibble selects the low byte, and the next the high one.
  __device__ __forceinline__ uint32_t pair(FourCentroids const& centroids, int p) const {
    uint32_t const word = words[p / 8];  // of each byte a nibble comes twice, and has two codes
    uint32_t const twice = p % 4 / 2 == 0 ? merged(word, 0x0F0F0F0Fu, word << 4) : merged(word >> 4, 0x0F0F0F0Fu, word);
    uint32_t const selectors = masked_or(twice >> (2 * (p % 2)), 0x33333333u, 0x40404040u);
    return permute(centroids.low, centroids.high, p / 4 % 2 == 0 ? selectors : selectors >> 16);
  }
};

}  // namespace gemmill::kv_cache
