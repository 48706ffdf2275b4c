// Operations on words by one instruction each, where a compiler takes two or three.
#pragma once

#include <cstdint>

namespace gemmill::kv_cache {

// Bytes of two words by the four lowest nibbles of a third, of which none has its highest bit: __byte_perm would clear it first.
__device__ __forceinline__ uint32_t permute(uint32_t low, uint32_t high, uint32_t selectors) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selectors));
  return bytes;
}

// (x & mask) ^ flips, (x & mask) | more, and x where the mask is set, y elsewhere. Of two constants one stays in a register.
__device__ __forceinline__ uint32_t masked_xor(uint32_t x, uint32_t mask, uint32_t flips) {
  uint32_t word;
  asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(word) : "r"(x), "r"(mask), "r"(flips));
  return word;
}
__device__ __forceinline__ uint32_t masked_or(uint32_t x, uint32_t mask, uint32_t more) {
  uint32_t word;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(word) : "r"(x), "r"(mask), "r"(more));
  return word;
}
__device__ __forceinline__ uint32_t merged(uint32_t x, uint32_t mask, uint32_t y) {
  uint32_t word;
  asm("lop3.b32 %0, %1, %2, %3, 0xE2;" : "=r"(word) : "r"(x), "r"(mask), "r"(y));
  return word;
}

}  // namespace gemmill::kv_cache
