// A lane's codes of two bits to centroids, four by one look-up: a byte has two codes of one token and two of another, and its entry of the
// table a pair of registers as the tensor core's operands have them. A load of eight bytes takes two rounds of half the lanes, so entries
// have a copy for each of sixteen.
#pragma once

#include "kv_cache/slots/slot_codes.cuh"
#include "kv_cache/slots/words.cuh"

namespace gemmill::kv_cache {

// As make_table, with both sides of two bits. Keys: the first token's centroids, then the second's. Values: those of both tokens' first
// codes, then of their second. A thread writes two copies at a time.
template <class Shape>
__device__ __forceinline__ void make_table_of_fours(Centroids const& centroids, uint8_t* table) {
  for (int i = threadIdx.x; i < kTableBytes / 16; i += 32 * Shape::kConsumerWarps) {
    int const side = i / 8 % 2, byte = i / 16;
    auto const centroid = [&](int code) { return static_cast<uint32_t>(centroids.bits[side][byte >> 2 * code & 3]); };
    uint32_t const first = centroid(0) | centroid(side == 0 ? 1 : 2) << 16, second = centroid(side == 0 ? 2 : 1) | centroid(3) << 16;
    reinterpret_cast<uint4*>(table)[i] = make_uint4(first, second, first, second);
  }
}

// A lane's codes of two tokens. They come half a word of a vector at a time, of lanes in turn.
template <int kLanes, int kShare>
struct TwoBitTokens {
  static constexpr int kWords = kShare / kLanes / 16;
  static_assert(kWords * kLanes * 16 == kShare, "Words have two units.");
  uint32_t words[2][kWords];  // codes 0 and 1 of each byte, and codes 2 and 3: of the first token in its low half

  // Of a lane's n-th code.
  static __device__ __forceinline__ int element(int lane, int n) { return (n / 8 * kLanes + lane) * 8 + n % 8; }

  __device__ __forceinline__ void load(uint8_t const* shared, int first_row, int second_row, int lane) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      auto const word_of = [&](int row) {
        int const at = row + (2 * i * kLanes + lane) * 2;
        return half_word(shared, at) | half_word(shared, at + 2 * kLanes) << 16;
      };
      uint32_t const first = word_of(first_row), second = word_of(second_row);
      words[0][i] = merged(first, 0x0F0F0F0Fu, second << 4), words[1][i] = merged(first >> 4, 0x0F0F0F0Fu, second);
    }
  }
  // Centroids of codes 2 p and 2 p + 1 of both. `base` is the shared address of the lane's copy of entry 0: its byte 1 is zero.
  __device__ __forceinline__ uint2 pairs(uint32_t base, int p) const {
    return load_shared_8(__byte_perm(words[p % 2][p / 8], base, 0x7604 | p / 2 % 4 << 4));
  }
};

}  // namespace gemmill::kv_cache
