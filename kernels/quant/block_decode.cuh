// Values of block-scaled codes, for host and device: a test holds all of it against gemmill.formats on the host.
#pragma once

#include "quant/block_code.cuh"

namespace gemmill::quant {

// A float type of 8 bits or fewer with a sign. Where it has a NaN, that is its last code.
template <int kBits, int kMantissaBits, int kBias, bool kHasNan>
struct SmallFloat {
  static constexpr uint32_t kMagnitude = (1u << (kBits - 1)) - 1;
  // Put where a float has exponent and mantissa, a code is 2^(127 - bias) too small, subnormal ones too.
  __host__ __device__ static float value(uint32_t code) {
    if (kHasNan && (code & kMagnitude) == kMagnitude) return float_of(0x7fffffffu);
    float const magnitude = float_of((code & kMagnitude) << (23 - kMantissaBits)) * two_to(127 - kBias);
    return float_of(bits_of(magnitude) | (code >> (kBits - 1) & 1u) << 31);
  }
};

template <class Format>
struct CodeOf;
template <>
struct CodeOf<NvFp4> : SmallFloat<4, 1, 1, false> {};
template <>
struct CodeOf<MxFp4> : SmallFloat<4, 1, 1, false> {};
template <>
struct CodeOf<MxFp6> : SmallFloat<6, 2, 3, false> {};
template <>
struct CodeOf<MxFp8> : SmallFloat<8, 3, 7, true> {};

// NaN for bytes of NaN.
template <class Format>
__host__ __device__ inline float scale_value(uint8_t byte) {
  if constexpr (Format::kHasGlobalScale) {
    return SmallFloat<8, 3, 7, true>::value(byte < 0x7f ? byte : 0x7f);
  } else {
    return byte == 255 ? float_of(0x7fffffffu) : two_to(static_cast<int>(byte) - 127);
  }
}

// value / divisor for products of an nvfp4 code and scale, correctly rounded: those have 6 bits, and a test tries them with every
// mantissa.
struct GlobalQuotient {
  float divisor, reciprocal;
  bool is_plain;
  __host__ __device__ explicit GlobalQuotient(float global_scale)
      : divisor(usable_global_scale(global_scale)), is_plain(divisor >= 0x1p-60f && divisor <= 0x1p60f) {
    reciprocal = is_plain ? inverse(divisor) : 0.0f;
  }
  __host__ __device__ float operator()(float value) const {
    if (!is_plain) return value / divisor;
    float const guess = value * reciprocal;
    return fmaf(fmaf(guess, divisor, -value), -reciprocal, guess);  // this way round a negative zero stays one
  }
};

// The values of a run: code * scale, which is exact or beyond float, by the global scale if there is one.
template <class Format>
__host__ __device__ inline void decode(uint32_t const (&words)[Format::kBits * kRun / 32], float scale, float global_scale, float (&values)[kRun]) {
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    int const bit = i * Format::kBits, word = bit / 32;
    uint32_t code = words[word] >> bit % 32;
    if (bit % 32 + Format::kBits > 32) code |= words[word + 1] << (32 - bit % 32);
    values[i] = CodeOf<Format>::value(code & ((1u << Format::kBits) - 1)) * scale;
  }
  if constexpr (Format::kHasGlobalScale) {
    GlobalQuotient const by_global(global_scale);
#pragma unroll
    for (float& value : values) value = by_global(value);
  }
}

}  // namespace gemmill::quant
