// In place of kernels/kv_cache/slots/words.cuh. A nibble's highest bit would repeat a byte's.
#pragma once

#include "block.h"

namespace gemmill::kv_cache {

inline uint32_t permute(uint32_t low, uint32_t high, uint32_t selectors) {
  if ((selectors & 0x8888u) != 0) fprintf(stderr, "a selector of a permutation has its highest bit\n"), exit(1);
  return __byte_perm(low, high, selectors);
}
inline uint32_t masked_xor(uint32_t x, uint32_t mask, uint32_t flips) { return (x & mask) ^ flips; }
inline uint32_t masked_or(uint32_t x, uint32_t mask, uint32_t more) { return x & mask | more; }
inline uint32_t merged(uint32_t x, uint32_t mask, uint32_t y) { return x & mask | y & ~mask; }

}  // namespace gemmill::kv_cache
