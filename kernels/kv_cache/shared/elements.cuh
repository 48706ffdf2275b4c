// bf16 and f16 elements, two in a word.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace gemmill::kv_cache {

template <class Element>
__device__ __forceinline__ uint32_t two_elements(float low, float high) {
  uint32_t word;
  if constexpr (std::is_same_v<Element, __half>) {
    __half2 const pair = __floats2half2_rn(low, high);
    memcpy(&word, &pair, sizeof word);
  } else {
    __nv_bfloat162 const pair = __floats2bfloat162_rn(low, high);
    memcpy(&word, &pair, sizeof word);
  }
  return word;
}

template <class Element>
__device__ __forceinline__ Element to_element(float x) {
  if constexpr (std::is_same_v<Element, __half>) return __float2half_rn(x);
  else return __float2bfloat16_rn(x);
}

__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// Of the bits of an f16.
__device__ __forceinline__ float of_half(uint32_t bits) {
  uint16_t const own = static_cast<uint16_t>(bits);
  __half value;
  memcpy(&value, &own, sizeof value);
  return to_float(value);
}

}  // namespace gemmill::kv_cache
