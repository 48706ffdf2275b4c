// From the extent of some values (a row, a group, a tensor) to their scale, and with it to their codes. A coding names the
// reduction that makes the extent, is built from it, and encodes.
#pragma once

#include <type_traits>

#include "coding/activation.cuh"
#include "coding/code.cuh"
#include "coding/reduce.cuh"

namespace gemmill::quant {

// Symmetric codes of values whose largest absolute value is the extent.
template <class Out, class Activation>
struct SymmetricCoding {
  static constexpr bool kSymmetric = true;
  using Codes = Out;
  using Reduction = Max;
  using Extent = float;
  // vLLM's s8 op multiplies by 127 / amax and leaves the scale of a zero row zero.
  static constexpr bool kByReciprocal = std::is_same_v<Out, S8> && !Activation::kGated;

  float amax, scale, reciprocal;

  __device__ __forceinline__ SymmetricCoding(float extent, float scale_ub, float = 0.0f) : amax(extent), reciprocal(0.0f) {
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

// Of rows whose codes a GEMM multiplies along all of `hidden`: |x / scale| times 128 times hidden stays below 2^31 - 2^27, so that
// the sums without the zero point's share fit 32 bits. Rows that reach down to zero never meet it below 61,000 columns.
inline float least_step_of(int64_t hidden) { return static_cast<float>(hidden) * (1.0f / 15728640.0f); }

// s8 codes over a range, with the zero point such that its low end is -128. A range of one value has symmetric codes, which keep the
// value; the formula would divide by zero. The scale is at least `least_step` of the largest absolute value: see least_step_of.
struct AsymmetricCoding {
  static constexpr bool kSymmetric = false;
  static constexpr int32_t kLargestPlainZeroPoint = 1 << 24;
  using Reduction = WidenRange;
  using Extent = Range;

  float scale, reciprocal;
  int32_t azp;
  bool is_plain;  // no sum of a code and the zero point leaves 32 bits

  __device__ __forceinline__ AsymmetricCoding(Range range, float, float least_step = 0.0f) {
    if (range.low == range.high) {
      float const amax = fabsf(range.low);
      scale = __fdiv_rn(amax, 127.0f);
      reciprocal = amax == 0.0f ? 0.0f : __fdiv_rn(127.0f, amax);
      azp = 0;
    } else {
      float const amax = fmaxf(fabsf(range.low), fabsf(range.high));
      scale = fmaxf(quotient_of<255>(__fsub_rn(range.high, range.low)), __fmul_rn(amax, least_step));
      reciprocal = gemmill::quant::is_plain(scale) ? reciprocal_of_normal(scale) : __fdiv_rn(1.0f, scale);
      azp = __float2int_rn(__fsub_rn(-128.0f, __fdiv_rn(range.low, scale)));
    }
    is_plain = reciprocal <= FLT_MAX && azp >= -kLargestPlainZeroPoint && azp <= kLargestPlainZeroPoint;
  }
  __device__ __forceinline__ void store(float* scales, int32_t* azps, int64_t index) const {
    scales[index] = scale;
    azps[index] = azp;
  }
  template <int kElements>
  __device__ __forceinline__ void encode(float (&values)[kElements], uint32_t (&words)[kElements / 4]) const {
    if (is_plain) [[likely]] {
      encode_with(values, words, [azp = azp](float value) { return __float2int_rn(value) + azp; });
    } else {
      encode_with(values, words, ZeroPoint(azp));
    }
  }

 private:
  template <int kElements, class AddZeroPoint>
  __device__ __forceinline__ void encode_with(float const (&values)[kElements], uint32_t (&words)[kElements / 4], AddZeroPoint add) const {
#pragma unroll
    for (int i = 0; i < kElements; i += 4) {
      words[i / 4] = pack_s8(add(__fmul_rn(values[i], reciprocal)), add(__fmul_rn(values[i + 1], reciprocal)),
                             add(__fmul_rn(values[i + 2], reciprocal)), add(__fmul_rn(values[i + 3], reciprocal)));
    }
  }
};

// By vLLM's formula: a range of one value has scale 0, and a range of nothing is that from the largest to the lowest number.
// Sums of a code and the zero point wrap.
struct VllmAsymmetricCoding {
  static constexpr bool kSymmetric = false;
  using Reduction = WidenRange;
  using Extent = Range;

  float scale, reciprocal;
  int32_t azp;

  __device__ __forceinline__ VllmAsymmetricCoding(Range range, float, float) {
    float const low = fminf(range.low, FLT_MAX), high = fmaxf(range.high, -FLT_MAX);
    scale = quotient_of<255>(__fsub_rn(high, low));
    reciprocal = reciprocal_of(scale);
    azp = __float2int_rn(__fsub_rn(-128.0f, __fdiv_rn(low, scale)));
  }
  __device__ __forceinline__ void store(float* scales, int32_t* azps, int64_t index) const {
    scales[index] = scale;
    azps[index] = azp;
  }
  template <int kElements>
  __device__ __forceinline__ void encode(float (&values)[kElements], uint32_t (&words)[kElements / 4]) const {
    WrappingZeroPoint const add(azp);
#pragma unroll
    for (int i = 0; i < kElements; i += 4) {
      words[i / 4] = pack_s8(add(__fmul_rn(values[i], reciprocal)), add(__fmul_rn(values[i + 1], reciprocal)),
                             add(__fmul_rn(values[i + 2], reciprocal)), add(__fmul_rn(values[i + 3], reciprocal)));
    }
  }
};

// Rows with the sum of their s8 codes.
template <class Coding>
struct WithRowSums : Coding {
  using Coding::Coding;
};
template <class Coding>
inline constexpr bool kHasRowSums = false;
template <class Coding>
inline constexpr bool kHasRowSums<WithRowSums<Coding>> = true;

// The sum of s8 codes, four a word, of which `left` belong to the row; all of them where kWhole.
template <bool kWhole, int kWords>
__device__ __forceinline__ int32_t sum_of_codes(uint32_t const (&words)[kWords], int64_t left, int32_t sum) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    int64_t const missing = kWhole ? 0 : 4 * i + 4 - left;
    uint32_t const ones = missing <= 0 ? 0x01010101u : missing >= 4 ? 0u : 0x01010101u >> (8 * missing);
    sum = __dp4a(static_cast<int32_t>(words[i]), static_cast<int32_t>(ones), sum);
  }
  return sum;
}

// Symmetric codes of a whole tensor: the scale is at least the smallest, which vLLM has not, and its reciprocal multiplies values.
template <class Out>
struct TensorCoding {
  static constexpr bool kSymmetric = true;
  static constexpr float kSmallestScale = Out::kAsVllm ? 0.0f : Out::kSmallestScale;
  using Reduction = Max;
  using Extent = float;
  float scale, reciprocal;

  __device__ __forceinline__ TensorCoding(float amax, float, float = 0.0f)
      : scale(fmaxf(scale_of<Out>(amax), kSmallestScale)), reciprocal(reciprocal_of(scale)) {}
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
