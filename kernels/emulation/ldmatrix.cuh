// `ldmatrix` of 4-bit and 6-bit elements in device code, as PTX ISA 9.1 says in "Warp-level matrix load instruction: ldmatrix".
// A row of 16 elements begins at an address of 16 bytes: 12 or 8 bytes of codes, packed from the lowest bit on, then padding. A code
// comes into the low bits of a byte.
#pragma once

#include "emulation/warp.cuh"

namespace gemmill::emulation {

// Four elements of a row, from `column` on, as the bytes of a register.
template <int kBits>
GEMMILL_EMULATED_INLINE uint32_t widened(uint32_t row, int column) {
  static_assert(kBits == 4 || kBits == 6);
  int const first = kBits * column;
  uint64_t codes = shared_word(row + first / 32 * 4);
  if (first % 32 + 4 * kBits > 32) codes |= static_cast<uint64_t>(shared_word(row + first / 32 * 4 + 4)) << 32;
  codes >>= first % 32;
  uint32_t result = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) result |= static_cast<uint32_t>(codes >> (kBits * i) & ((1u << kBits) - 1)) << (8 * i);
  return result;
}

// ldmatrix.sync.aligned.m8n16.xN.shared.b8x16.{b6x16_p32, b4x16_p64}: lane 8 * i + r has the address of row r of matrix i, and lane l
// gets columns l % 4 * 4 and three more of row l / 4 of each.
template <int kBits, int kMatrices>
GEMMILL_EMULATED_INLINE void ldmatrix_m8n16(uint32_t (&result)[kMatrices], uint32_t row_address) {
  int const lane = lane_of_warp();
#pragma unroll
  for (int i = 0; i < kMatrices; ++i) result[i] = widened<kBits>(of_lane(row_address, 8 * i + lane / 4), lane % 4 * 4);
}

}  // namespace gemmill::emulation
