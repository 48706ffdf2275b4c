// Codes of 2 to 4 bits in streams, spread to half a byte each: two codes of a byte index a table.
#pragma once

#include <cstdint>

namespace gemmill::kv_cache {

template <int kBits>
struct PackedCodes {
  static_assert(kBits >= 2 && kBits <= 4, "Codes have 2 to 4 bits.");

  static constexpr int bytes(int elements) { return elements * kBits / 8; }

  // So many codes, 16 or 32, from an address that is a multiple of the largest power of two in their bytes, 16 at most: eight a
  // word, the first in the low bits.
  template <int kElements>
  static __device__ __forceinline__ void load(uint32_t (&words)[kElements / 8], uint8_t const* from);
};

// Four bits between two of 16 codes of 2 bits, in two steps of moving the upper half of each part away.
__device__ __forceinline__ uint32_t spread_2_bits(uint32_t codes) {
  codes = (codes & 0x000000FFu) | (codes << 8 & 0x00FF0000u);
  codes = (codes & 0x000F000Fu) | (codes << 4 & 0x0F000F00u);
  return (codes & 0x03030303u) | (codes << 2 & 0x30303030u);
}

// The same of eight codes of 3 bits in the low 24.
__device__ __forceinline__ uint32_t spread_3_bits(uint32_t codes) {
  codes = (codes & 0x00000FFFu) | (codes << 4 & 0x0FFF0000u);
  codes = (codes & 0x003F003Fu) | (codes << 2 & 0x3F003F00u);
  return (codes & 0x07070707u) | (codes << 1 & 0x70707070u);
}

template <>
template <>
__device__ __forceinline__ void PackedCodes<4>::load<32>(uint32_t (&words)[4], uint8_t const* from) {
  uint4 const packed = *reinterpret_cast<uint4 const*>(from);
  words[0] = packed.x, words[1] = packed.y, words[2] = packed.z, words[3] = packed.w;
}

template <>
template <>
__device__ __forceinline__ void PackedCodes<4>::load<16>(uint32_t (&words)[2], uint8_t const* from) {
  uint2 const packed = *reinterpret_cast<uint2 const*>(from);
  words[0] = packed.x, words[1] = packed.y;
}

template <>
template <>
__device__ __forceinline__ void PackedCodes<3>::load<32>(uint32_t (&words)[4], uint8_t const* from) {
  uint32_t const* const packed = reinterpret_cast<uint32_t const*>(from);
  uint32_t const x = packed[0], y = packed[1], z = packed[2];
  words[0] = spread_3_bits(x), words[1] = spread_3_bits(__byte_perm(x, y, 0x6543));
  words[2] = spread_3_bits(__byte_perm(y, z, 0x5432)), words[3] = spread_3_bits(z >> 8);
}

template <>
template <>
__device__ __forceinline__ void PackedCodes<3>::load<16>(uint32_t (&words)[2], uint8_t const* from) {
  uint16_t const* const packed = reinterpret_cast<uint16_t const*>(from);
  uint32_t const low = packed[0] | static_cast<uint32_t>(packed[1]) << 16, high = packed[2];
  words[0] = spread_3_bits(low), words[1] = spread_3_bits(__byte_perm(low, high, 0x6543));
}

template <>
template <>
__device__ __forceinline__ void PackedCodes<2>::load<32>(uint32_t (&words)[4], uint8_t const* from) {
  uint2 const packed = *reinterpret_cast<uint2 const*>(from);
  words[0] = spread_2_bits(packed.x), words[1] = spread_2_bits(packed.x >> 16);
  words[2] = spread_2_bits(packed.y), words[3] = spread_2_bits(packed.y >> 16);
}

template <>
template <>
__device__ __forceinline__ void PackedCodes<2>::load<16>(uint32_t (&words)[2], uint8_t const* from) {
  uint32_t const packed = *reinterpret_cast<uint32_t const*>(from);
  words[0] = spread_2_bits(packed), words[1] = spread_2_bits(packed >> 16);
}

}  // namespace gemmill::kv_cache
