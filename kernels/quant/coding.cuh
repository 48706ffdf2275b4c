// From the extent of some values (a row, a group, a tensor) to their scale, and with it to their codes. A coding names the
// reduction that makes the extent, extends it by values, is built from it, and encodes.
#pragma once

#include <type_traits>

#include "quant/activation.cuh"
#include "quant/code.cuh"
#include "quant/reduce.cuh"

namespace gemmill::quant {

// Symmetric codes of values whose largest absolute value is the extent.
template <class Out, class Activation>
struct SymmetricCoding {
  static constexpr bool kSymmetric = true;
  using Reduction = Max;
  using Extent = float;
  // vLLM's s8 op multiplies by 127 / amax and leaves the scale of a zero row zero.
  static constexpr bool kByReciprocal = std::is_same_v<Out, S8> && !Activation::kGated;

  float amax, scale, reciprocal;

  template <int kElements>
  static __device__ __forceinline__ void extend(float& amax, float const (&values)[kElements], int) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) amax = fmaxf(amax, fabsf(values[i]));
  }
  __device__ __forceinline__ SymmetricCoding(float extent, float scale_ub) : amax(extent), reciprocal(0.0f) {
    float const bounded = fminf(amax, scale_ub);
    if constexpr (kByReciprocal) {
      scale = __fdiv_rn(bounded, Out::kMax);
      reciprocal = bounded == 0.0f ? 0.0f : __fdiv_rn(Out::kMax, bounded);
    } else {
      scale = fmaxf(scale_of<Out>(bounded), Out::kSmallestScale);
    }
  }
  __device__ __forceinline__ void store(float* scales, int32_t*, int64_t index) const { scales[index] = scale; }
  template <int kElements>
  __device__ __forceinline__ void encode(float (&values)[kElements], uint32_t (&words)[kElements / 4]) const {
    if constexpr (kByReciprocal) {
#pragma unroll
      for (int i = 0; i < kElements; i += 4) {
        words[i / 4] = encode4(__fmul_rn(values[i], reciprocal), __fmul_rn(values[i + 1], reciprocal),
                               __fmul_rn(values[i + 2], reciprocal), __fmul_rn(values[i + 3], reciprocal), Out{});
      }
    } else {
      encode_scaled<Out>(values, scale, amax, words);
    }
  }
};

// s8 codes over a range, with the zero point such that its low end is -128. A range of one value is coded
// symmetrically, which keeps the value; the formula would divide by zero.
struct AsymmetricCoding {
  static constexpr bool kSymmetric = false;
  using Reduction = WidenRange;
  using Extent = Range;

  float scale, reciprocal;
  int32_t azp;

  template <int kElements>
  static __device__ __forceinline__ void extend(Range& range, float const (&values)[kElements], int valid) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (i < valid) range = WidenRange{}(range, {values[i], values[i]});
    }
  }
  __device__ __forceinline__ AsymmetricCoding(Range range, float) {
    if (range.low == range.high) {
      float const amax = fabsf(range.low);
      scale = __fdiv_rn(amax, 127.0f);
      reciprocal = amax == 0.0f ? 0.0f : __fdiv_rn(127.0f, amax);
      azp = 0;
    } else {
      scale = __fdiv_rn(__fsub_rn(range.high, range.low), 255.0f);
      reciprocal = __fdiv_rn(1.0f, scale);
      azp = __float2int_rn(__fsub_rn(-128.0f, __fdiv_rn(range.low, scale)));
    }
  }
  __device__ __forceinline__ void store(float* scales, int32_t* azps, int64_t index) const {
    scales[index] = scale;
    azps[index] = azp;
  }
  template <int kElements>
  __device__ __forceinline__ void encode(float (&values)[kElements], uint32_t (&words)[kElements / 4]) const {
#pragma unroll
    for (int i = 0; i < kElements; i += 4) {
      words[i / 4] = encode4_with_azp(__fmul_rn(values[i], reciprocal), __fmul_rn(values[i + 1], reciprocal),
                                      __fmul_rn(values[i + 2], reciprocal), __fmul_rn(values[i + 3], reciprocal), azp);
    }
  }
};

// Symmetric codes of a whole tensor: the scale is held above the smallest, and values multiplied by its reciprocal.
template <class Out>
struct TensorCoding {
  static constexpr bool kSymmetric = true;
  using Reduction = Max;
  using Extent = float;
  float scale, reciprocal;

  template <int kElements>
  static __device__ __forceinline__ void extend(float& amax, float const (&values)[kElements], int valid) {
    SymmetricCoding<Out, Identity>::extend(amax, values, valid);
  }
  __device__ __forceinline__ TensorCoding(float amax, float)
      : scale(fmaxf(scale_of<Out>(amax), Out::kSmallestScale)), reciprocal(reciprocal_of(scale)) {}
  __device__ __forceinline__ void store(float* scales, int32_t*, int64_t index) const { scales[index] = scale; }
  template <int kElements>
  __device__ __forceinline__ void encode(float (&values)[kElements], uint32_t (&words)[kElements / 4]) const {
#pragma unroll
    for (int i = 0; i < kElements; i += 4) {
      words[i / 4] = encode4(__fmul_rn(values[i], reciprocal), __fmul_rn(values[i + 1], reciprocal),
                             __fmul_rn(values[i + 2], reciprocal), __fmul_rn(values[i + 3], reciprocal), Out{});
    }
  }
};

}  // namespace gemmill::quant
