// Codes of 3 and 4 bits to centroids in f16 by byte permutations, eight at a time: two tables of eight bytes in registers, of centroids'
// low and high bytes. No shared memory takes part, which the tensor core reads all the time.
//
// Of 4 bits the codebook is odd: codes 8 to 15 are its positive half, and code 7 - m is code 8 + m's negative. So the tables have the
// positive half, and a code without its highest bit is complemented and gets a sign.
#pragma once

#include <cstdint>

namespace gemmill::kv_cache {

// Low and high bytes of eight centroids.
struct CentroidBytes {
  uint32_t low[2] = {}, high[2] = {};

  __device__ __forceinline__ explicit CentroidBytes(uint16_t const* centroids) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      low[i / 4] |= static_cast<uint32_t>(centroids[i] & 0xFF) << (i % 4 * 8);
      high[i / 4] |= static_cast<uint32_t>(centroids[i] >> 8) << (i % 4 * 8);
    }
  }
  // The bytes of the indices in the four lowest nibbles of a word.
  __device__ __forceinline__ uint32_t lows(uint32_t indices) const { return __byte_perm(low[0], low[1], indices); }
  __device__ __forceinline__ uint32_t highs(uint32_t indices) const { return __byte_perm(high[0], high[1], indices); }
};

// A lane's 32 codes of a vector, in four units of eight. `element(i)`: which of a unit's elements is the i-th that it becomes.
template <int kBits>
struct TileCodes;

template <>
struct TileCodes<4> {
  static constexpr int kFirst = 8;  // of the tables' centroids
  uint32_t units[4];

  static __device__ __forceinline__ int element(int place) { return place / 2 + place % 2 * 4; }

  __device__ __forceinline__ explicit TileCodes(uint8_t const* from) {
    uint4 const words = *reinterpret_cast<uint4 const*>(from);
    units[0] = words.x, units[1] = words.y, units[2] = words.z, units[3] = words.w;
  }
  static __device__ __forceinline__ uint4 centroids(CentroidBytes const& table, uint32_t unit) {
    uint32_t const negative = ~unit & 0x88888888u, indices = (unit ^ (negative - (negative >> 3))) & 0x77777777u;
    uint32_t const first = __byte_perm(indices, 0, 0x4420), second = __byte_perm(indices, 0, 0x4431);  // codes 0, 1, 4, 5 and 2, 3, 6, 7
    uint32_t const low[2] = {table.lows(first), table.lows(second)}, high[2] = {table.highs(first), table.highs(second)};
    auto const pair = [&](int k) {  // codes k and k + 4
      uint32_t const magnitudes = __byte_perm(low[k / 2], high[k / 2], k % 2 == 0 ? 0x6240 : 0x7351);
      return magnitudes | negative << (12 - 4 * k) & 0x80008000u;
    };
    return make_uint4(pair(0), pair(1), pair(2), pair(3));
  }
};

template <>
struct TileCodes<3> {
  static constexpr int kFirst = 0;
  uint32_t units[4];  // in the 24 lowest bits

  static __device__ __forceinline__ int element(int place) { return place; }

  __device__ __forceinline__ explicit TileCodes(uint8_t const* from) {
    uint32_t words[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) words[i] = reinterpret_cast<uint32_t const*>(from)[i];
    units[0] = words[0], units[1] = __funnelshift_r(words[0], words[1], 24);
    units[2] = __funnelshift_r(words[1], words[2], 16), units[3] = words[2] >> 8;
  }
  static __device__ __forceinline__ uint4 centroids(CentroidBytes const& table, uint32_t unit) {
    uint32_t const halves = unit & 0xFFFu | unit << 4 & 0x0FFF0000u;                 // four codes each
    uint32_t const bytes = halves & 0x003F003Fu | halves << 2 & 0x3F003F00u;         // two codes each
    uint32_t const first = bytes & 0x07070707u | bytes << 1 & 0x70707070u, second = first >> 16;
    uint32_t const low[2] = {table.lows(first), table.lows(second)}, high[2] = {table.highs(first), table.highs(second)};
    return make_uint4(__byte_perm(low[0], high[0], 0x5140), __byte_perm(low[0], high[0], 0x7362), __byte_perm(low[1], high[1], 0x5140),
                      __byte_perm(low[1], high[1], 0x7362));
  }
};

}  // namespace gemmill::kv_cache
