// In place of kernels/kv_cache/shared/mma.cuh: the products of a tensor core instruction, summed in f64 and rounded once.
#pragma once

#include "block.h"
#include "kv_cache/shared/elements.cuh"

namespace gemmill::kv_cache {

template <class Element>
void mma_16x8x16(float (&d)[4], uint32_t const (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operands {
    Element a[8], b[4];
  } own;
  memcpy(own.a, a, sizeof own.a);
  memcpy(own.b, &b0, 4), memcpy(own.b + 2, &b1, 4);
  int const lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  on_host::exchange(own, [&](auto of) {
    for (int i = 0; i < 4; ++i) {
      double sum = d[i];
      int const row = g + 8 * (i / 2), column = 2 * t + i % 2;
      for (int k = 0; k < 16; ++k) {
        Operands const x = of(row % 8 * 4 + k % 8 / 2), y = of(column * 4 + k % 8 / 2);
        sum += static_cast<double>(to_float(x.a[k % 2 + 2 * (row / 8) + 4 * (k / 8)])) * to_float(y.b[k % 2 + 2 * (k / 8)]);
      }
      d[i] = static_cast<float>(sum);
    }
    return 0;
  });
}

inline void mma_16x8x8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  uint32_t const a[4] = {a0, a1, 0, 0};
  mma_16x8x16<__half>(d, a, b, 0);
}

inline uint32_t transpose_8x8(uint32_t two) {
  int const lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  return on_host::exchange(two, [&](auto of) {
    uint32_t const low = of(8 * t + g / 2), high = of(8 * t + 4 + g / 2);
    return (low >> (16 * (g % 2)) & 0xFFFF) | (high >> (16 * (g % 2)) << 16);
  });
}

template <bool kTransposed>
void load_matrices(uint32_t (&words)[4], void const* row) {
  int const lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  if (reinterpret_cast<uintptr_t>(row) % 16) fprintf(stderr, "a row of a matrix is not aligned\n"), exit(1);
  on_host::exchange(static_cast<uint16_t const*>(row), [&](auto of) {
    for (int m = 0; m < 4; ++m) {
      uint32_t const low = kTransposed ? of(8 * m + 2 * t)[g] : of(8 * m + g)[2 * t];
      uint32_t const high = kTransposed ? of(8 * m + 2 * t + 1)[g] : of(8 * m + g)[2 * t + 1];
      words[m] = low | high << 16;
    }
    return 0;
  });
  on_host::meet(on_host::warp().meeting, 32);  // no thread goes on and overwrites data that another reads
}

inline float power_of_two(float x) { return exp2f(x); }
inline float inverse_root(float x) { return 1.0f / sqrtf(x); }

inline uint32_t two_of_e4m3(uint32_t codes) {
  uint32_t two = 0;
  for (int i = 0; i < 2; ++i) {
    uint32_t const code = codes >> 8 * i & 0xFF, magnitude = code & 0x7F, exponent = magnitude >> 3, mantissa = magnitude & 7;
    float const value = exponent == 0 ? ldexpf(mantissa, -9) : ldexpf(8 + mantissa, static_cast<int>(exponent) - 10);
    __half const x = __float2half_rn(magnitude == 0x7F ? NAN : code & 0x80 ? -value : value);
    uint16_t bits;
    memcpy(&bits, &x, sizeof bits);
    two |= static_cast<uint32_t>(bits) << 16 * i;
  }
  return two;
}

}  // namespace gemmill::kv_cache
