// The tanh or erf of GELU of bf16 gates, from a table in shared memory: to evaluate them takes longer than to load the gates. Both are
// odd, bit for bit, so magnitudes suffice: from 2^-25, below which 1 + odd(gate) is 1, to 8, from where on it is 2 or 0. The
// entries are made by the very function that they stand for, so the bits do not depend on whether a gate was looked up.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <type_traits>

#include "coding/activation.cuh"

namespace gemmill::quant {

template <class In, class Activation>
inline constexpr bool kHasTable = std::is_same_v<In, __nv_bfloat16> && (std::is_same_v<Activation, GeluTanh> || std::is_same_v<Activation, GeluErf>);

// In its place where gates need no table.
struct NoTable {};

template <class Activation>
struct GeluTable {
  static constexpr uint32_t kFirst = 0x3300, kLast = 0x4100;  // bits of 2^-25 and of 8
  static constexpr uint32_t kEntries = kLast - kFirst + 1;
  float entries[kEntries];

  // Every thread of the CTA calls it; they may look up after the next barrier.
  __device__ __forceinline__ void fill(bool contracted = false) {
    for (uint32_t i = threadIdx.x; i < kEntries; i += blockDim.x) entries[i] = Activation::odd(__uint_as_float((kFirst + i) << 16), contracted);
  }

  // Replaces two gates, which `pair` has as they were loaded, by activation(gate).
  __device__ __forceinline__ void activate(uint32_t pair, float& low, float& high) const {
    uint32_t const magnitudes = __vminu2(__vmaxu2(pair & 0x7fff7fffu, kFirst * 0x10001u), kLast * 0x10001u);
    uint32_t const offsets = (magnitudes - kFirst * 0x10001u) * sizeof(float);
    low = gelu(low, at(offsets & 0xffffu, low));
    high = gelu(high, at(offsets >> 16, high));
  }

  // The same by activation(gate) * up.
  __device__ __forceinline__ void gate_and_multiply(uint32_t pair, float& low, float& high, float up_low, float up_high) const {
    activate(pair, low, high);
    low = __fmul_rn(low, up_low);
    high = __fmul_rn(high, up_high);
  }

 private:
  __device__ __forceinline__ float at(uint32_t offset, float gate) const {
    static_assert((kEntries - 1) * sizeof(float) <= 0xffff, "offsets have 16 bits");
    float const odd = *reinterpret_cast<float const*>(reinterpret_cast<char const*>(entries) + offset);
    return copysignf(odd, gate);
  }
};

}  // namespace gemmill::quant
