// The extent of raw chunks, before they are unpacked: elements of 16 bits compare two at a time. NaN elements do not count, as
// everywhere.
#pragma once

#include <type_traits>

#include "coding/memory.cuh"
#include "coding/reduce.cuh"

namespace gemmill::quant {

// The larger absolute values, with signs that say nothing.
__device__ __forceinline__ uint32_t larger_absolute_pair(uint32_t a, uint32_t b, __nv_bfloat16) {
  asm("max.xorsign.abs.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}
__device__ __forceinline__ uint32_t larger_absolute_pair(uint32_t a, uint32_t b, __half) {
  asm("max.xorsign.abs.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}
__device__ __forceinline__ uint32_t larger_pair(uint32_t a, uint32_t b, __nv_bfloat16) {
  asm("max.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}
__device__ __forceinline__ uint32_t larger_pair(uint32_t a, uint32_t b, __half) {
  asm("max.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}
__device__ __forceinline__ uint32_t smaller_pair(uint32_t a, uint32_t b, __nv_bfloat16) {
  asm("min.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}
__device__ __forceinline__ uint32_t smaller_pair(uint32_t a, uint32_t b, __half) {
  asm("min.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}

// Extent is float (largest absolute value) or Range.
template <class In, class Extent>
struct RawExtent;

template <class In>
struct RawExtent<In, float> {
  uint32_t pair = 0;
  __device__ __forceinline__ void extend(uint4 chunk) {
    uint32_t const a = larger_absolute_pair(chunk.x, chunk.y, In{}), b = larger_absolute_pair(chunk.z, chunk.w, In{});
    pair = larger_absolute_pair(pair, larger_absolute_pair(a, b, In{}), In{});
  }
  __device__ __forceinline__ float value() const {
    float low, high;
    unpack_pair(pair & 0x7fff7fffu, low, high, In{});
    return fmaxf(low, high);
  }
};

template <>
struct RawExtent<float, float> {
  float amax = 0.0f;
  __device__ __forceinline__ void extend(uint4 chunk) {
    float values[4];
    unpack<float>(chunk, values);
#pragma unroll
    for (int i = 0; i < 4; ++i) amax = fmaxf(amax, fabsf(values[i]));
  }
  __device__ __forceinline__ float value() const { return amax; }
};

template <class In>
struct RawExtent<In, Range> {
  static constexpr bool kBf16 = std::is_same_v<In, __nv_bfloat16>;
  uint32_t low = kBf16 ? 0x7f807f80u : 0x7c007c00u;
  uint32_t high = kBf16 ? 0xff80ff80u : 0xfc00fc00u;
  __device__ __forceinline__ void extend(uint4 chunk) {
    low = smaller_pair(low, smaller_pair(smaller_pair(chunk.x, chunk.y, In{}), smaller_pair(chunk.z, chunk.w, In{}), In{}), In{});
    high = larger_pair(high, larger_pair(larger_pair(chunk.x, chunk.y, In{}), larger_pair(chunk.z, chunk.w, In{}), In{}), In{});
  }
  __device__ __forceinline__ Range value() const {
    float a, b, c, d;
    unpack_pair(low, a, b, In{});
    unpack_pair(high, c, d, In{});
    return {fminf(a, b), fmaxf(c, d)};
  }
};

template <>
struct RawExtent<float, Range> {
  Range range = WidenRange::identity();
  __device__ __forceinline__ void extend(uint4 chunk) {
    float values[4];
    unpack<float>(chunk, values);
#pragma unroll
    for (int i = 0; i < 4; ++i) range = WidenRange{}(range, {values[i], values[i]});
  }
  __device__ __forceinline__ Range value() const { return range; }
};

// The largest absolute value of f32 values; NaN where all are.
template <int kElements>
__device__ __forceinline__ float absolute_maximum_or_nan(float const (&values)[kElements]) {
  float amax = fabsf(values[0]);
#pragma unroll
  for (int i = 1; i < kElements; ++i) amax = fmaxf(amax, fabsf(values[i]));
  return amax;
}

template <int kElements>
__device__ __forceinline__ float absolute_maximum(float const (&values)[kElements]) {
  return fmaxf(absolute_maximum_or_nan(values), 0.0f);
}

}  // namespace gemmill::quant
