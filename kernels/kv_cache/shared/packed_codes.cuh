// Streams of codes of 1 to 4 bits, of which two at a time index a table.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace gemmill::kv_cache {

// A lane's part of a row of codes: `kElements` of them, two a pair. A pair comes to the low bits of a byte by a shift at most; the byte's
// other bits are those of its neighbours, so tables do not depend on them.
template <int kBits, int kElements>
struct PackedCodes {
  static_assert(kBits >= 1 && kBits <= 4, "Codes have 1 to 4 bits.");
  static_assert(kElements % 2 == 0, "Codes are looked up in pairs.");
  static constexpr int kPairs = kElements / 2;
  static constexpr int kStreamBits = kBits * kElements;
  static constexpr int kWords = (kStreamBits + 31) / 32;
  uint32_t words[kWords];

  // Part `which` of a row that begins at a multiple of 4 bytes, and of as many bytes as a part of whole words is loaded by.
  __device__ __forceinline__ void load(uint8_t const* row, int which) {
    if constexpr (kStreamBits % 32 == 0) {
      constexpr int kBytes = kStreamBits / 8, kPiece = kBytes % 16 == 0 ? 16 : kBytes % 8 == 0 ? 8 : 4;
      using Piece = std::conditional_t<kPiece == 16, uint4, std::conditional_t<kPiece == 8, uint2, uint32_t>>;
#pragma unroll
      for (int i = 0; i < kBytes / kPiece; ++i) {
        Piece const piece = reinterpret_cast<Piece const*>(row + which * kBytes)[i];
        memcpy(words + i * kPiece / 4, &piece, kPiece);
      }
    } else {
      constexpr int kGrain = kStreamBits & -kStreamBits;  // parts begin at multiples of it
      constexpr int kTouched = (32 - kGrain + kStreamBits + 31) / 32;
      int const shift = which * kStreamBits % 32;
      uint32_t const* const from = reinterpret_cast<uint32_t const*>(row) + which * kStreamBits / 32;
      uint32_t touched[kTouched + 1];
#pragma unroll
      for (int i = 0; i < kTouched; ++i) touched[i] = from[i];
      touched[kTouched] = 0;
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = __funnelshift_r(touched[i], touched[i + 1], shift);
    }
  }

  // The word in whose byte byte_of(pair) the pair is.
  __device__ __forceinline__ uint32_t word_of(int pair) const {
    int const bit = 2 * kBits * pair, word = bit / 32, place = bit % 32;
    if (place + 2 * kBits > 32) return __funnelshift_r(words[word], words[(word + 1) % kWords], place);
    return words[word] >> (place % 8);
  }
  // For 3 bits, where a table also has entries of pairs that begin at bit 2 of a byte: odd pairs begin there. Eight codes are 24 bits:
  // pairs 0 and 3 are in bytes 0 and 2 of them, 1 and 2 in bytes 0 and 1 of them without their first four bits. So one shift is enough
  // for eight codes, where three bring each pair to bit 0.
  __device__ __forceinline__ uint32_t stepped_word_of(int pair) const {
    int const word = stepped_place(pair) / 4;
    if (pair % 4 == 0 || pair % 4 == 3) return words[word];
    return __funnelshift_r(words[word], word + 1 < kWords ? words[(word + 1) % kWords] : 0, 4);
  }
  static __device__ __forceinline__ int stepped_byte_of(int pair) { return stepped_place(pair) % 4; }
  static __device__ __forceinline__ int stepped_place(int pair) { return 3 * (pair / 4) + pair % 4 / 2 + pair % 4 / 3; }

  static __device__ __forceinline__ int byte_of(int pair) {
    int const place = 2 * kBits * pair % 32;
    return place + 2 * kBits > 32 ? 0 : place / 8;
  }
};

}  // namespace gemmill::kv_cache
