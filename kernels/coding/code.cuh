// Codes, scales, and exact division by a scale.
#pragma once

#include <cfloat>
#include <cstdint>
#include <type_traits>

namespace gemmill::quant {

struct E4M3 {
  static constexpr bool kAsVllm = false;
  static constexpr float kMax = 448.0f;
  static constexpr float kSmallestScale = 1.0f / (448.0f * 512.0f);
};

struct S8 {
  static constexpr bool kAsVllm = false;
  static constexpr float kMax = 127.0f;
  static constexpr float kSmallestScale = FLT_EPSILON;
};

// Scales and codes as vLLM's kernels make them, where ours are others: docs/quant.md lists how.
struct VllmE4M3 : E4M3 {
  static constexpr bool kAsVllm = true;
};
struct VllmS8 : S8 {
  static constexpr bool kAsVllm = true;
};

// Four codes, round to nearest even, saturating. NaN becomes 0x7f in e4m3 and 0 in s8.
__device__ __forceinline__ uint32_t encode4(float a, float b, float c, float d, E4M3) {
  uint32_t word;
  asm("{\n .reg .b16 low, high;\n"
      " cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      " cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      " mov.b32 %0, {low, high};\n}"
      : "=r"(word)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return word;
}

// NaN becomes 448.
__device__ __forceinline__ uint32_t encode4(float a, float b, float c, float d, VllmE4M3) {
  constexpr float most = E4M3::kMax;
  return encode4(fminf(a, most), fminf(b, most), fminf(c, most), fminf(d, most), E4M3{});
}

// Four integers, each saturated to 8 bits.
__device__ __forceinline__ uint32_t pack_s8(int32_t a, int32_t b, int32_t c, int32_t d) {
  uint32_t word;
  asm("{\n .reg .b32 high;\n"
      " cvt.pack.sat.s8.s32.b32 high, %4, %3, 0;\n"
      " cvt.pack.sat.s8.s32.b32 %0, %2, %1, high;\n}"
      : "=r"(word)
      : "r"(a), "r"(b), "r"(c), "r"(d));
  return word;
}

__device__ __forceinline__ uint32_t encode4(float a, float b, float c, float d, S8) {
  return pack_s8(__float2int_rn(a), __float2int_rn(b), __float2int_rn(c), __float2int_rn(d));
}

// rint(value) + azp, saturated to 32 bits at each step.
struct ZeroPoint {
  int32_t azp, low, high;
  __device__ __forceinline__ explicit ZeroPoint(int32_t value)
      : azp(value), low(value < 0 ? INT32_MIN - value : INT32_MIN), high(value > 0 ? INT32_MAX - value : INT32_MAX) {}
  __device__ __forceinline__ int32_t operator()(float value) const { return min(max(__float2int_rn(value), low), high) + azp; }
};

// The same, but that the sum wraps.
struct WrappingZeroPoint {
  int32_t azp;
  __device__ __forceinline__ explicit WrappingZeroPoint(int32_t value) : azp(value) {}
  __device__ __forceinline__ int32_t operator()(float value) const {
    return static_cast<int32_t>(static_cast<uint32_t>(__float2int_rn(value)) + static_cast<uint32_t>(azp));
  }
};

// 1 / x, correctly rounded, for x and 1 / x normal: the hardware's approximation and one Newton step.
__device__ __forceinline__ float reciprocal_of_normal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return __fmaf_rn(y, __fmaf_rn(-x, y, 1.0f), y);
}

// 1 / x, correctly rounded, for every x.
__device__ __forceinline__ float reciprocal_of(float x) { return __frcp_rn(x); }

// Between these bounds no step of Quotient overflows, and any underflow is far below the smallest code.
inline constexpr float kSmallestPlain = 0x1p-60f;
inline constexpr float kLargestPlain = 0x1p60f;

__device__ __forceinline__ bool is_plain(float value) { return value >= kSmallestPlain && value <= kLargestPlain; }

// value / divisor where is_plain(divisor): one residual correction of the product with the reciprocal. The code of the
// result is that of the correctly rounded quotient: checked for every divisor against every boundary between codes by
// tests/families/quant/test_division.py.
struct Quotient {
  float divisor;
  float reciprocal;
  __device__ __forceinline__ explicit Quotient(float plain) : divisor(plain), reciprocal(reciprocal_of_normal(plain)) {}
  __device__ __forceinline__ Quotient(float plain, float inverse) : divisor(plain), reciprocal(inverse) {}
  // |value| <= kLargestPlain, or NaN. The residual is taken as guess * divisor - value: that way round a negative zero
  // stays one.
  __device__ __forceinline__ float operator()(float value) const { return corrected(__fmul_rn(value, reciprocal), value); }
  // Any value: a clamp keeps the guess finite so that the correction has the right sign.
  __device__ __forceinline__ float bounded(float value) const {
    return corrected(fminf(fmaxf(__fmul_rn(value, reciprocal), -1024.0f), 1024.0f), value);
  }

 private:
  __device__ __forceinline__ float corrected(float guess, float value) const {
    return __fmaf_rn(-__fmaf_rn(guess, divisor, -value), reciprocal, guess);
  }
};

// value / divisor for values of 16 bits and divisors from 2^-60 to infinity, in two operations: the reciprocal is kept in two
// parts. The first is not above it, so that both products have the sign of a zero; the second is one unit too large, so that
// no rounding of its own is felt. Codes of the results are those of the correctly rounded quotients, see Quotient.
struct ShortQuotient {
  static constexpr float kShrink = 0x1p-64f;
  float high, low;
  bool shrinks;
  __device__ __forceinline__ explicit ShortQuotient(float divisor) : shrinks(divisor > kLargestPlain) {
    float const plain = shrinks ? __fmul_rn(divisor, kShrink) : divisor;
    high = reciprocal_of_normal(plain);
    if (__fmaf_rn(-plain, high, 1.0f) < 0.0f) high = __uint_as_float(__float_as_uint(high) - 1);
    low = __uint_as_float(__float_as_uint(__fmul_rn(__fmaf_rn(-plain, high, 1.0f), high)) + 1);
    if (divisor > FLT_MAX) high = low = 0.0f;
  }
  // Replaces values by their quotients.
  template <int kElements>
  __device__ __forceinline__ void divide(float (&values)[kElements]) const {
    if (shrinks) [[unlikely]] {
#pragma unroll
      for (int i = 0; i < kElements; ++i) values[i] = __fmul_rn(values[i], kShrink);
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) values[i] = __fmaf_rn(values[i], high, __fmul_rn(values[i], low));
  }
};

// vLLM's codes of groups: values times 1 / scale, s8 cut off towards zero. NaN becomes the lowest code.
template <class Out, int kElements>
__device__ __forceinline__ void encode_group_as_vllm(float const (&values)[kElements], float scale, uint32_t (&words)[kElements / 4]) {
  float const reciprocal = reciprocal_of(scale);
  if constexpr (std::is_base_of_v<S8, Out>) {
    auto const code = [reciprocal](float value) { return __float2int_rz(fminf(fmaxf(__fmul_rn(value, reciprocal), -128.0f), 127.0f)); };
#pragma unroll
    for (int i = 0; i < kElements; i += 4) words[i / 4] = pack_s8(code(values[i]), code(values[i + 1]), code(values[i + 2]), code(values[i + 3]));
  } else {
    auto const scaled = [reciprocal](float value) { return fmaxf(__fmul_rn(value, reciprocal), -E4M3::kMax); };
#pragma unroll
    for (int i = 0; i < kElements; i += 4) {
      words[i / 4] = encode4(scaled(values[i]), scaled(values[i + 1]), scaled(values[i + 2]), scaled(values[i + 3]), E4M3{});
    }
  }
}

// Codes of values / scale, where no |value| but NaN exceeds amax.
template <class Out, int kElements>
__device__ __forceinline__ void encode_scaled(float const (&values)[kElements], float scale, float amax, uint32_t (&words)[kElements / 4]) {
  if (is_plain(scale) && amax <= kLargestPlain) [[likely]] {
    Quotient const by_scale(scale);
#pragma unroll
    for (int i = 0; i < kElements; i += 4) {
      words[i / 4] = encode4(by_scale(values[i]), by_scale(values[i + 1]), by_scale(values[i + 2]), by_scale(values[i + 3]), Out{});
    }
  } else {
#pragma unroll
    for (int i = 0; i < kElements; i += 4) {
      words[i / 4] = encode4(__fdiv_rn(values[i], scale), __fdiv_rn(values[i + 1], scale), __fdiv_rn(values[i + 2], scale),
                             __fdiv_rn(values[i + 3], scale), Out{});
    }
  }
}

// value / kDivisor, correctly rounded, for the divisors in use: 127, 255 and 448.
template <int kDivisor>
__device__ __forceinline__ float quotient_of(float value) {
  constexpr float divisor = kDivisor;
  if (is_plain(value)) [[likely]] return Quotient(divisor, 1.0f / divisor)(value);
  return __fdiv_rn(value, divisor);
}

template <class Out>
__device__ __forceinline__ float scale_of(float amax) {
  return quotient_of<static_cast<int>(Out::kMax)>(amax);
}

// The biased exponent of the power of two that is at least `scale`; 255 for infinity.
__device__ __forceinline__ uint32_t ue8m0_above(float scale) {
  return (__float_as_uint(fmaxf(scale, 1e-10f)) + 0x007fffffu) >> 23;
}

// vLLM's of f32 rows: the power of two below, where the logarithm of a scale just above it rounds to its exponent.
__device__ __forceinline__ float power_of_two_by_logarithm(float scale) { return exp2f(ceilf(log2f(fmaxf(scale, 1e-10f)))); }

}  // namespace gemmill::quant
