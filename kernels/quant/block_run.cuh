// Runs of elements as block-scaled formats code them, for host and device (see block_code.cuh). A run is 16 consecutive elements of a
// row: a group of nvfp4, half a group of the mx formats.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <type_traits>

#ifdef __CUDA_ARCH__
#include "coding/code.cuh"
#endif

namespace gemmill::quant {

inline constexpr int kRun = 16;
inline constexpr uint32_t kSigns = 0x80808080u, kInfinityBits = 0x7f800000u;

__host__ __device__ inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

__host__ __device__ inline float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// 2^exponent, from 2^-149 to 2^127.
__host__ __device__ inline float two_to(int exponent) {
  return float_of(exponent < -126 ? 1u << (exponent + 149) : static_cast<uint32_t>(exponent + 127) << 23);
}

// Clamped to [0, 1]; 0 for NaN.
__host__ __device__ inline float saturated(float x) {
#ifdef __CUDA_ARCH__
  return __saturatef(x);
#else
  return x > 0.0f ? fminf(x, 1.0f) : 0.0f;
#endif
}

// 1 / x but for a unit in the last place, where a subnormal number counts as zero. On the host it rounds correctly.
__host__ __device__ inline float about_inverse(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  float const y = 1.0f / (fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x);
  return fabsf(y) < FLT_MIN ? copysignf(0.0f, y) : y;
#endif
}

// The smaller of the two; NaN where one is.
__host__ __device__ inline float smaller_or_nan(float a, float b) {
#ifdef __CUDA_ARCH__
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
#else
  return a != a || b != b ? float_of(0x7fffffffu) : fminf(a, b);
#endif
}

// 1 / x, correctly rounded, for x and 1 / x normal.
__host__ __device__ inline float inverse(float x) {
#ifdef __CUDA_ARCH__
  return reciprocal_of_normal(x);
#else
  return 1.0f / x;
#endif
}

// Bytes of a and b by the nibbles of `selector`: 0 to 3 are a's, 4 to 7 are b's. With 8 more, a byte's sign in all of its bits.
__host__ __device__ inline uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t selector) {
#ifdef __CUDA_ARCH__
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(selector));
  return bytes;
#else
  uint64_t const both = a | static_cast<uint64_t>(b) << 32;
  uint32_t bytes = 0;
  for (int i = 0; i < 4; ++i) {
    uint32_t const byte = static_cast<uint32_t>(both >> (selector >> (4 * i) & 7) * 8 & 0xff);
    bytes |= (selector >> (4 * i) & 8 ? (byte >> 7) * 0xff : byte) << (8 * i);
  }
  return bytes;
#endif
}

// The larger of each 16 bits, as whole numbers.
__host__ __device__ inline uint32_t larger_halves(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  return __vmaxu2(a, b);
#else
  uint32_t const low = (a & 0xffffu) > (b & 0xffffu) ? a : b, high = a > b ? a : b;
  return (low & 0xffffu) | (high & 0xffff0000u);
#endif
}

// Two elements of 16 bits.
__host__ __device__ inline void widen(uint32_t pair, float& low, float& high, __nv_bfloat16) {
  low = float_of(pair << 16);
  high = float_of(pair & 0xffff0000u);
}
__host__ __device__ inline void widen(uint32_t pair, float& low, float& high, __half) {
  __half2 halves;
  memcpy(&halves, &pair, sizeof halves);
  float2 const wide = __half22float2(halves);
  low = wide.x;
  high = wide.y;
}

// On the host: a b + c of two elements, each rounded once to their type, for which rounding to f32 before does no harm here.
template <class In>
inline uint32_t host_fma_pairs(uint32_t a, uint32_t b, uint32_t c, In kind) {
  float low[3], high[3];
  widen(a, low[0], high[0], kind);
  widen(b, low[1], high[1], kind);
  widen(c, low[2], high[2], kind);
  In const pair[2] = {static_cast<In>(fmaf(low[0], low[1], low[2])), static_cast<In>(fmaf(high[0], high[1], high[2]))};
  uint32_t found;
  memcpy(&found, pair, sizeof found);
  return found;
}

template <class In>
inline constexpr uint32_t kInfinityOf = 0x7f80u;
template <>
inline constexpr uint32_t kInfinityOf<__half> = 0x7c00u;

// The largest magnitude of a run of packed elements, as bits.
struct Largest {
  uint32_t bits;
  bool had_nan;

  // NaN counts too, and is the largest.
  template <class In>
  __host__ __device__ static Largest of(uint32_t const (&words)[kRun / 2]) {
    uint32_t most = 0;
#pragma unroll
    for (uint32_t const word : words) most = larger_halves(most, word & 0x7fff7fffu);
    most = (most & 0xffffu) > most >> 16 ? most & 0xffffu : most >> 16;
    return {most, most > kInfinityOf<In>};
  }

  // NaN does not count. It becomes infinite where the format has no NaN, and has no sign.
  template <class Format, class In>
  __host__ __device__ static Largest without_nan(uint32_t (&words)[kRun / 2]) {
    uint32_t most = 0;
    for (uint32_t& word : words) {
      for (int shift = 0; shift < 32; shift += 16) {
        uint32_t const element = word >> shift & 0x7fffu;
        if (element <= kInfinityOf<In>) {
          most = element > most ? element : most;
        } else {
          word = (word & ~(0xffffu << shift)) | (Format::kHasNan ? element : kInfinityOf<In>) << shift;
        }
      }
    }
    return {most, true};
  }

  template <class Format, class In>
  __host__ __device__ static Largest of_numbers(uint32_t (&words)[kRun / 2]) {
    Largest const largest = of<In>(words);
    return largest.had_nan ? without_nan<Format, In>(words) : largest;
  }
};

// Values, their signs in bit 7 of a byte for each, and the largest magnitude; NaN elements do not count. They have no sign there,
// and are infinite where the format has no NaN.
struct Run {
  float values[kRun];
  uint32_t signs[4];
  float amax;

  // From packed elements of 16 bits.
  template <class In>
  __host__ __device__ static Run of_raw(uint32_t const (&words)[kRun / 2], Largest largest, In kind) {
    Run run;
    float nothing;
    widen(largest.bits, run.amax, nothing, kind);
#pragma unroll
    for (int i = 0; i < kRun / 2; ++i) widen(words[i], run.values[2 * i], run.values[2 * i + 1], kind);
#pragma unroll
    for (int i = 0; i < 4; ++i) run.signs[i] = bytes_of(words[2 * i], words[2 * i + 1], 0x7531);
    return run;
  }

  // From values of f32.
  template <class Format>
  __host__ __device__ static Run of_values(float const (&values)[kRun]) {
    Run run;
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      uint32_t const magnitude = bits_of(values[i]) & 0x7fffffffu;
      most = magnitude > most ? magnitude : most;
      run.values[i] = values[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float const* four = values + 4 * i;
      uint32_t const low = bytes_of(bits_of(four[0]), bits_of(four[1]), 0x0073), high = bytes_of(bits_of(four[2]), bits_of(four[3]), 0x0073);
      run.signs[i] = bytes_of(low, high, 0x5410);
    }
    if (most > kInfinityBits) {
      most = 0;
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        uint32_t const magnitude = bits_of(values[i]) & 0x7fffffffu;
        if (magnitude <= kInfinityBits) {
          most = magnitude > most ? magnitude : most;
        } else {
          run.signs[i / 4] &= ~(0x80u << i % 4 * 8);
          if (!Format::kHasNan) run.values[i] = float_of(kInfinityBits);
        }
      }
    }
    run.amax = float_of(most);
    return run;
  }
};

}  // namespace gemmill::quant
