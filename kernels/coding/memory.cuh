// Moving rows between memory and registers in chunks of 16 bytes of input.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

namespace gemmill::quant {

template <class In>
inline constexpr int kChunkElements = 16 / static_cast<int>(sizeof(In));

// No line in L1. Volatile keeps the loads of one thread together, ahead of their first use, and behind
// the wait for the preceding kernel.
__device__ __forceinline__ uint4 load_stream(void const* address) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address)
               : "memory");
  return value;
}

// Through L1. Also volatile: a load through the read-only path could be moved ahead of the wait.
__device__ __forceinline__ uint4 load_reused(void const* address) {
  uint4 value;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address)
               : "memory");
  return value;
}

// Starts to bring a line to L2 while the preceding kernel still runs: safe whichever thread writes it, for L2 is where all writes meet.
// For kernels of few CTAs, which wait longer for memory than for anything else.
__device__ __forceinline__ void fetch_to_l2(void const* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

// The same for a whole row, by one thread. Address and size are multiples of 16.
__device__ __forceinline__ void fetch_row_to_l2(void const* row, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(row), "r"(bytes) : "memory");
}

enum class Beyond { kZero, kFirst };

// A chunk that begins in the row, but may be misaligned or reach beyond it. Elements beyond it read as zero, or as the chunk's first
// element, which leaves any extent as it is.
template <Beyond kBeyond, class In>
__device__ __forceinline__ uint4 load_elements(In const* row, int64_t column, int64_t hidden) {
  union {
    uint4 chunk;
    In elements[kChunkElements<In>];
  };
  chunk = make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kChunkElements<In>; ++i) {
    if (column + i < hidden) {
      elements[i] = row[column + i];
    } else if constexpr (kBeyond == Beyond::kFirst) {
      elements[i] = elements[0];
    }
  }
  return chunk;
}

// kStream: past L1, which shortens the way where latency counts. Where there is much to load, the way through L1 is 2 to 5 % faster
// (measured on an H200, 2026-11-20).
template <bool kAligned, bool kStream, Beyond kBeyond = Beyond::kFirst, class In>
__device__ __forceinline__ uint4 load_chunk(In const* row, int64_t column, int64_t hidden) {
  if constexpr (kAligned) {
    return kStream ? load_stream(row + column) : load_reused(row + column);
  } else {
    return load_elements<kBeyond>(row, column, hidden);
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

__device__ __forceinline__ uint32_t pack_pair(float low, float high, __nv_bfloat16) {
  __nv_bfloat162 const pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<uint32_t const&>(pair);
}

__device__ __forceinline__ uint32_t pack_pair(float low, float high, __half) {
  __half2 const pair = __floats2half2_rn(low, high);
  return reinterpret_cast<uint32_t const&>(pair);
}

// Values of In's precision.
template <class In, int kCount>
__device__ __forceinline__ void round_to(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] = static_cast<float>(static_cast<In>(x[i]));
}

// Values rounded to the chunk's type.
template <class In>
__device__ __forceinline__ uint4 pack(float const (&values)[kChunkElements<In>]) {
  if constexpr (sizeof(In) == 4) {
    return make_uint4(__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]), __float_as_uint(values[3]));
  } else {
    return make_uint4(pack_pair(values[0], values[1], In{}), pack_pair(values[2], values[3], In{}),
                      pack_pair(values[4], values[5], In{}), pack_pair(values[6], values[7], In{}));
  }
}

__device__ __forceinline__ uint32_t multiply_pair(uint32_t a, uint32_t b, __nv_bfloat16) {
  asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}
__device__ __forceinline__ uint32_t multiply_pair(uint32_t a, uint32_t b, __half) {
  asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}
__device__ __forceinline__ uint32_t multiply_pair(uint32_t a, uint32_t b, float) {
  return __float_as_uint(__fmul_rn(__uint_as_float(a), __uint_as_float(b)));
}

// Products of elements, rounded once to their type. (Through f32 a product of two bf16 below 2^-126 could be rounded twice:
// no code or scale is that fine.)
template <class In>
__device__ __forceinline__ uint4 multiply(uint4 a, uint4 b) {
  return make_uint4(multiply_pair(a.x, b.x, In{}), multiply_pair(a.y, b.y, In{}), multiply_pair(a.z, b.z, In{}), multiply_pair(a.w, b.w, In{}));
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
