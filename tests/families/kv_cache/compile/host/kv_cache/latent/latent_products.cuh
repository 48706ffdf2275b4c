// In place of kernels/kv_cache/latent/latent_products.cuh, as wgmma.cuh here.
#pragma once

#include <cuda_bf16.h>

#include "kv_cache/shared/wgmma.cuh"

namespace gemmill::kv_cache {

inline unsigned __umulhi(unsigned x, unsigned y) { return static_cast<unsigned>(static_cast<uint64_t>(x) * y >> 32); }
inline uint32_t permuted(uint32_t x, uint32_t y, uint32_t selectors) {
  uint64_t const bytes = x | static_cast<uint64_t>(y) << 32;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    uint32_t const selector = selectors >> 4 * i, byte = static_cast<uint32_t>(bytes >> 8 * (selector & 7)) & 0xFF;
    result |= (selector & 8 ? byte >> 7 ? 0xFFu : 0u : byte) << 8 * i;
  }
  return result;
}

// Reads what the kernel asks for, so that a tool which watches memory sees it.
inline void ask_for_bytes(uint8_t const* from, int bytes) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0 || bytes % 16 != 0) fprintf(stderr, "a prefetch of odd bytes\n"), exit(1);
  uint8_t volatile last = from[bytes - 1];
  (void)last;
}

template <class Element>
struct ColumnProducts {
  template <int kSums>
  static void begin(float (&d)[kSums], uint32_t const (&a)[4], uint64_t b, bool adds) { multiply<Element, false>(d, a, b, adds); }
};

template <int kSums>
void begin_product_along_rows(float (&d)[kSums], uint64_t a, uint64_t b) {
  if (a >> 62 != 1 || b >> 62 != 1) fprintf(stderr, "rows of a product are not swizzled by 128 bytes\n"), exit(1);
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, t = lane % 4;
  for (int half = 0; half < 2; ++half) {
    for (int j = 0; j < kSums / 4; ++j) {
      for (int i = 0; i < 2; ++i) {
        double sum = d[4 * j + 2 * half + i];
        for (int k = 0; k < 16; ++k) {
          sum += static_cast<double>(of_b<__half, true>(a, k, 16 * warp + g + 8 * half)) * of_b<__half, false>(b, k, 8 * j + 2 * t + i);
        }
        d[4 * j + 2 * half + i] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace gemmill::kv_cache
