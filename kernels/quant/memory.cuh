// Moving rows between memory and registers in chunks of 16 bytes of input.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

namespace gemmill::quant {

template <class In>
inline constexpr int kChunkElements = 16 / static_cast<int>(sizeof(In));

// Read once: no line in L1. Volatile keeps the loads of one thread together, ahead of their first use, and behind
// the wait for the preceding kernel.
__device__ __forceinline__ uint4 load_stream(void const* address) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address)
               : "memory");
  return value;
}

// Read by many CTAs. Also volatile: a load through the read-only path could be moved ahead of the wait.
__device__ __forceinline__ uint4 load_reused(void const* address) {
  uint4 value;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address)
               : "memory");
  return value;
}

// A chunk that may be misaligned or reach beyond the row; what lies beyond is zero.
template <class In>
__device__ __forceinline__ uint4 load_elements(In const* row, int64_t column, int64_t hidden) {
  union {
    uint4 chunk;
    In elements[kChunkElements<In>];
  };
  chunk = make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kChunkElements<In>; ++i) {
    if (column + i < hidden) elements[i] = row[column + i];
  }
  return chunk;
}

template <bool kAligned, class In>
__device__ __forceinline__ uint4 load_chunk(In const* row, int64_t column, int64_t hidden) {
  if constexpr (kAligned) {
    return load_stream(row + column);
  } else {
    return load_elements(row, column, hidden);
  }
}

__device__ __forceinline__ void unpack_pair(uint32_t bits, float& low, float& high, __nv_bfloat16) {
  low = __uint_as_float(bits << 16);
  high = __uint_as_float(bits & 0xffff0000u);
}

__device__ __forceinline__ void unpack_pair(uint32_t bits, float& low, float& high, __half) {
  float2 const pair = __half22float2(reinterpret_cast<__half2 const&>(bits));
  low = pair.x;
  high = pair.y;
}

template <class In>
__device__ __forceinline__ void unpack(uint4 chunk, float (&values)[kChunkElements<In>]) {
  if constexpr (sizeof(In) == 4) {
    values[0] = __uint_as_float(chunk.x);
    values[1] = __uint_as_float(chunk.y);
    values[2] = __uint_as_float(chunk.z);
    values[3] = __uint_as_float(chunk.w);
  } else {
    unpack_pair(chunk.x, values[0], values[1], In{});
    unpack_pair(chunk.y, values[2], values[3], In{});
    unpack_pair(chunk.z, values[4], values[5], In{});
    unpack_pair(chunk.w, values[6], values[7], In{});
  }
}

template <class In>
__device__ __forceinline__ In round_to(float value) {
  if constexpr (sizeof(In) == 4) {
    return value;
  } else if constexpr (std::is_same_v<In, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else {
    return __float2half_rn(value);
  }
}

template <class In>
__device__ __forceinline__ uint4 pack(float const (&values)[kChunkElements<In>]) {
  union {
    uint4 chunk;
    In elements[kChunkElements<In>];
  };
#pragma unroll
  for (int i = 0; i < kChunkElements<In>; ++i) elements[i] = round_to<In>(values[i]);
  return chunk;
}

template <bool kAligned, class In>
__device__ __forceinline__ void store_chunk(In* row, int64_t column, int64_t hidden, uint4 chunk) {
  if constexpr (kAligned) {
    *reinterpret_cast<uint4*>(row + column) = chunk;
  } else {
    In const* elements = reinterpret_cast<In const*>(&chunk);
#pragma unroll
    for (int i = 0; i < kChunkElements<In>; ++i) {
      if (column + i < hidden) row[column + i] = elements[i];
    }
  }
}

// The codes of one chunk: one byte an element, in words of four.
template <bool kAligned, int kElements>
__device__ __forceinline__ void store_codes(uint8_t* row, int64_t column, int64_t hidden, uint32_t const (&words)[kElements / 4]) {
  if constexpr (kAligned && kElements == 8) {
    *reinterpret_cast<uint2*>(row + column) = make_uint2(words[0], words[1]);
  } else if constexpr (kAligned) {
    *reinterpret_cast<uint32_t*>(row + column) = words[0];
  } else {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (column + i < hidden) row[column + i] = static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8));
    }
  }
}

}  // namespace gemmill::quant
