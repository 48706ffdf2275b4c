// In place of kernels/kv_cache/shared/wgmma.cuh: a warp's rows of a warpgroup's product, at once, summed in f64 and rounded once. B is read
// where its descriptor says, swizzled.
#pragma once

#include "block.h"
#include "kv_cache/shared/bulk_copy.cuh"
#include "kv_cache/shared/elements.cuh"

namespace gemmill::kv_cache {

inline uint64_t columns_in_rows(uint32_t address) { return uint64_t{address} >> 4 & 0x3FFF | 0x4000004000010000; }
template <int kChunkBytes>
uint64_t columns_along_rows(uint32_t address) {
  return uint64_t{address} >> 4 & 0x3FFF | uint64_t{kChunkBytes / 16} << 16 | 0x4000004000000000;
}

inline void begin_products() {}
inline void end_group_of_products() {}
template <int kPending>
void wait_for_products() {}
inline void publish_stores() {}
template <int kCount>
void settle(float (&)[kCount]) {}

// Every f16 as a float: a look-up costs less than a conversion in software.
struct Floats {
  float of[1 << 16];
  Floats() {
    for (int i = 0; i < 1 << 16; ++i) {
      uint16_t const bits = static_cast<uint16_t>(i);
      __half element;
      memcpy(&element, &bits, sizeof element);
      of[i] = to_float(element);
    }
  }
};
inline Floats const floats;

template <class Element>
float of_bits(uint16_t bits) {
  if constexpr (__is_same(Element, __half)) return floats.of[bits];
  Element element;
  memcpy(&element, &bits, sizeof element);
  return to_float(element);
}
template <class Element, bool kAlongRows>
float of_b(uint64_t b, int k, int column) {
  uint32_t const leading = (b >> 16 & 0x3FFF) << 4, stride = (b >> 32 & 0x3FFF) << 4;
  uint32_t address = (b & 0x3FFF) << 4;
  address += kAlongRows ? column / 64 * leading + column % 64 * 2 + k / 8 * stride + k % 8 * 128
                        : column / 8 * stride + column % 8 * 128 + k * 2;
  address ^= (address >> 7 & 7) << 4;
  uint16_t bits;
  memcpy(&bits, shared + address - on_host::kReservedBytes, sizeof bits);
  return of_bits<Element>(bits);
}

template <class Element, bool kAlongRows, int kSums>
void multiply(float (&d)[kSums], uint32_t const (&a)[4], uint64_t b, bool adds) {
  if (b >> 62 != 1) fprintf(stderr, "rows of a product are not swizzled by 128 bytes\n"), exit(1);
  struct Fragment {
    uint16_t a[8];
  } own;
  memcpy(own.a, a, sizeof own.a);
  int const lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  on_host::exchange(own, [&](auto of) {
    float rows[2][16];
    for (int k = 0; k < 16; ++k) {
      Fragment const x = of(g * 4 + k % 8 / 2);
      for (int row = 0; row < 2; ++row) rows[row][k] = of_bits<Element>(x.a[k % 2 + 2 * row + 4 * (k / 8)]);
    }
    for (int j = 0; j < kSums / 4; ++j) {
      for (int i = 0; i < 2; ++i) {
        double sums[2] = {adds ? d[4 * j + i] : 0.0, adds ? d[4 * j + 2 + i] : 0.0};
        for (int k = 0; k < 16; ++k) {
          double const factor = of_b<Element, kAlongRows>(b, k, 8 * j + 2 * t + i);
          for (int row = 0; row < 2; ++row) sums[row] += rows[row][k] * factor;
        }
        d[4 * j + i] = static_cast<float>(sums[0]), d[4 * j + 2 + i] = static_cast<float>(sums[1]);
      }
    }
    return 0;
  });
}
template <bool kAlongRows>
void multiply_64(float (&d)[32], uint32_t const (&a)[4], uint64_t b, bool adds) { multiply<__half, kAlongRows>(d, a, b, adds); }
template <bool kAlongRows>
void multiply_128(float (&d)[64], uint32_t const (&a)[4], uint64_t b, bool adds) { multiply<__half, kAlongRows>(d, a, b, adds); }

}  // namespace gemmill::kv_cache
