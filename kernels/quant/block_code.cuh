// Codes and scales of block-scaled formats, for host and device: a test holds all of it against gemmill.formats on the host.
#pragma once

#include "quant/block_run.cuh"

namespace gemmill::quant {

// A float whose last bit counts ones: an addend rounds to a whole number, ties to even.
inline constexpr float kWhole = 0x1p23f;

// e2m1's code is the least of 2 v, v + 2 and v / 2 + 4, each rounded, and at most 7: for an eighth of v clamped to [0, 1]. It is in the
// low bits, and may be 8.
__host__ __device__ inline uint32_t e2m1_or_eight(float eighth) {
  uint32_t const a = bits_of(fmaf(eighth, 16.0f, kWhole)), b = bits_of(fmaf(eighth, 8.0f, kWhole + 2.0f));
  uint32_t const c = bits_of(fmaf(eighth, 4.0f, kWhole + 4.0f)), least = a < b ? a : b;
  return least < c ? least : c;
}

// Eight codes as a word, the first in the low bits, with signs of bit 7 of bytes where the mask has them.
__host__ __device__ inline uint32_t pack_e2m1(float const (&eighths)[8], uint32_t first_signs, uint32_t last_signs, uint32_t sign_mask) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 3; i >= 0; --i) word = word * 16 + bytes_of(e2m1_or_eight(eighths[i]), e2m1_or_eight(eighths[i + 4]), 0x5410);
  word -= (word & 0x88888888u) >> 3;
  uint32_t const even = bytes_of(first_signs, last_signs, 0x6420), odd = bytes_of(first_signs, last_signs, 0x7531);
  return word | (((even >> 4 & 0x08080808u) | (odd & kSigns)) & sign_mask);
}

// a b + c, rounded up.
__host__ __device__ inline float fma_up(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_ru(a, b, c);
#else
  double const exact = static_cast<double>(a) * b + c;  // for its uses here
  float const near = static_cast<float>(exact);
  return near < exact ? nextafterf(near, INFINITY) : near;
#endif
}

// The same for eighths that lie above a tie that rounds up, and on one that rounds down. So a code is how many ties are exceeded. Seen as
// whole numbers, floats from 1 on and (1 + v) / 2 below have ties at a quarter and three quarters of a code's two bits, whatever the
// exponent.
__host__ __device__ inline uint32_t pack_e2m1_above(float const (&eighths)[8], uint32_t first_signs, uint32_t last_signs, uint32_t sign_mask) {
  constexpr uint32_t kNone = 0x3d800000u, kUp = 0x1fffffu;  // a sixteenth; all but a quarter of a code
  uint32_t top[8];  // a code in the last byte, which may be 8
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    uint32_t const a = bits_of(eighths[i]), b = bits_of(fma_up(eighths[i], 0.5f, 0.0625f));
    top[i] = (a > b ? a : b) * 4 + (kUp - kNone) * 4;
  }
  uint32_t const even = bytes_of(bytes_of(top[0], top[2], 0x0073), bytes_of(top[4], top[6], 0x0073), 0x5410);
  uint32_t const odd = bytes_of(bytes_of(top[1], top[3], 0x0073), bytes_of(top[5], top[7], 0x0073), 0x5410);
  uint32_t word = odd * 16 + even;
  word -= (word & 0x88888888u) >> 3;
  uint32_t const even_signs = bytes_of(first_signs, last_signs, 0x6420), odd_signs = bytes_of(first_signs, last_signs, 0x7531);
  return word | (((even_signs >> 4 & 0x08080808u) | (odd_signs & kSigns)) & sign_mask);
}

// Pairs of elements in their own type, where a whole number's last bit counts ones as in kWhole.
template <class In>
struct Pairs;
template <>
struct Pairs<__nv_bfloat16> {
  static constexpr uint32_t kWhole = 0x4300, kMantissaBits = 7, kBias = 127;  // 128
};
template <>
struct Pairs<__half> {
  static constexpr uint32_t kWhole = 0x6400, kMantissaBits = 10, kBias = 15;  // 1024
};

// a b + c of both, each rounded once.
__host__ __device__ inline uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c, __nv_bfloat16) {
#ifdef __CUDA_ARCH__
  asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(a) : "r"(b), "r"(c));
  return a;
#else
  return host_fma_pairs(a, b, c, __nv_bfloat16{});
#endif
}
__host__ __device__ inline uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c, __half) {
#ifdef __CUDA_ARCH__
  asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(a) : "r"(b), "r"(c));
  return a;
#else
  return host_fma_pairs(a, b, c, __half{});
#endif
}

// a b of both, for powers of two b without a rounding that a code would feel.
__host__ __device__ inline uint32_t multiply_pairs(uint32_t a, uint32_t b) { return fma_pairs(a, b, 0x80008000u, __nv_bfloat16{}); }

// The smaller of each 16 bits, as whole numbers.
__host__ __device__ inline uint32_t smaller_halves(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  return __vminu2(a, b);
#else
  return ~larger_halves(~a, ~b);
#endif
}

// Elements of 16 bits as they were loaded, but for NaN.
template <class In>
struct PairedRun {
  uint32_t words[kRun / 2];
  float amax;
  bool had_nan;

  __host__ __device__ static PairedRun of_raw(uint32_t const (&words)[kRun / 2], Largest largest, In kind) {
    PairedRun run;
    float nothing;
    run.had_nan = largest.had_nan;
    widen(largest.bits, run.amax, nothing, kind);
#pragma unroll
    for (int i = 0; i < kRun / 2; ++i) run.words[i] = words[i];
    return run;
  }

  // As values of f32.
  __host__ __device__ Run widened() const { return Run::of_raw(words, Largest{}, In{}); }
};

// A byte of each low half of four words, and one of each high half, by the bytes of the first two halves.
__host__ __device__ inline void bytes_of_halves(uint32_t const* words, uint32_t selector, uint32_t& low, uint32_t& high) {
  uint32_t const first = bytes_of(words[0], words[1], selector), last = bytes_of(words[2], words[3], selector);
  low = bytes_of(first, last, 0x5410);
  high = bytes_of(first, last, 0x7632);
}

// The codes of eight elements, of which none is infinite, times 2^(127 - scale_byte); see e2m1_or_eight.
template <class In>
__host__ __device__ inline uint32_t pack_e2m1_pairs(uint32_t const* words, uint32_t scale_byte, bool may_be_eight) {
  using P = Pairs<In>;
  constexpr uint32_t kBoth = 0x10001u, kExponent = kBoth << P::kMantissaBits;
  uint32_t const twice = (128 + P::kBias - scale_byte) * kExponent;
  uint32_t codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t const magnitudes = words[i] & 0x7fff7fffu;
    uint32_t const a = fma_pairs(magnitudes, twice, P::kWhole * kBoth, In{});
    uint32_t const b = fma_pairs(magnitudes, twice - kExponent, (P::kWhole + 2) * kBoth, In{});
    uint32_t const c = fma_pairs(magnitudes, twice - 2 * kExponent, (P::kWhole + 4) * kBoth, In{});
    codes[i] = smaller_halves(smaller_halves(a, b), c);
  }
  uint32_t even, odd;
  bytes_of_halves(codes, 0x6240, even, odd);
  uint32_t word = odd * 16 + even;
  if (may_be_eight) word -= (word & 0x88888888u) >> 3;
  bytes_of_halves(words, 0xfbd9, even, odd);  // signs in all bits of a byte
  return word | (((even & 0x0f0f0f0fu) | (odd & 0xf0f0f0f0u)) & 0x88888888u);
}

// Four magnitudes as bytes.
template <__nv_fp8_interpretation_t kKind>
__host__ __device__ inline uint32_t pack_fp8(float a, float b, float c, float d) {
  uint32_t const low = __nv_cvt_float2_to_fp8x2(float2{a, b}, __NV_SATFINITE, kKind);
  uint32_t const high = __nv_cvt_float2_to_fp8x2(float2{c, d}, __NV_SATFINITE, kKind);
  return low | high << 16;
}

// The mx formats: a scale is a power of two, whose inverse multiplies values.
template <class Format>
struct MxScale {
  uint8_t byte;
  bool rounds_up;
  float factor;  // the inverse, times 2^Format::kShift

  // The scale of a group: rounded up so that none exceeds the largest code, or as the specification has it.
  __host__ __device__ static MxScale of(float amax, float, bool rounds_up) {
    uint32_t const bits = bits_of(amax);
    uint32_t const exponent = (bits + (rounds_up ? 0x7fffffu - Format::kLargestMantissa : 0u)) >> 23;
    uint32_t byte = exponent > Format::kLargestExponent ? exponent - Format::kLargestExponent : 0;
    if (bits == kInfinityBits) byte = 254;
    return {static_cast<uint8_t>(byte), rounds_up, two_to(127 - static_cast<int>(byte) + Format::kShift)};
  }
};

struct NvScale {
  static constexpr uint32_t kNanByte = 0x7f;
  static constexpr float kAbove = 0.73f * 0x1p-24f;
  uint8_t byte;
  float high, low;      // 1 / (8 scale) in two parts, both above zero: infinity times them is no NaN
  uint32_t sign_mask;   // 0 where the scale is: codes are then, too

  // ue4m3(global amax / 6). NaN, with codes of zero, where the global scale is NaN: see usable_global_scale.
  __host__ __device__ static NvScale of(float amax, float global_scale, bool) {
    float const product = smaller_or_nan(global_scale * amax, 0x1p60f);
    float sixth = product * (1.0f / 6.0f);
    sixth = fmaf(-fmaf(sixth, 6.0f, -product), 1.0f / 6.0f, sixth);  // correctly rounded, but where it is too small for a scale
    uint32_t const byte = __nv_cvt_float_to_fp8(sixth, __NV_SATFINITE, __NV_E4M3) & 0x7fu;
    bool const is_usable = byte - 1u < kNanByte - 1u;  // above zero, and a number
    float const eight = 8.0f * __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(byte), __NV_E4M3)));
    float const high = about_inverse(eight) * (1.0f - 0x1p-21f), low = (fmaf(-eight, high, 1.0f) + kAbove) * high;
    return {static_cast<uint8_t>(byte), is_usable ? high : 0.0f, is_usable ? low : 0.0f, is_usable ? 0xffffffffu : 0u};
  }
};

struct NvFp4 {
  using Scale = NvScale;
  static constexpr int kGroup = 16, kBits = 4;
  static constexpr bool kHasNan = false, kHasGlobalScale = true;

  // code(x global / scale): the product rounds, and so does the quotient but where no code feels it.
  __host__ __device__ static void encode(Run const& run, Scale const& scale, float global_scale, uint32_t (&words)[2]) {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      float eighths[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float const product = fabsf(run.values[8 * w + i]) * global_scale;
        eighths[i] = saturated(fmaf(product, scale.high, product * scale.low));
      }
      words[w] = pack_e2m1_above(eighths, run.signs[2 * w], run.signs[2 * w + 1], scale.sign_mask);
    }
  }
};

struct MxFp4 {
  using Scale = MxScale<MxFp4>;
  static constexpr int kGroup = 32, kBits = 4, kShift = -3;
  static constexpr bool kHasNan = false, kHasGlobalScale = false;
  static constexpr uint32_t kLargestMantissa = 0x400000, kLargestExponent = 2;

  __host__ __device__ static void encode(Run const& run, Scale const& scale, float, uint32_t (&words)[2]) {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      float eighths[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) eighths[i] = saturated(fabsf(run.values[8 * w + i]) * scale.factor);
      words[w] = pack_e2m1(eighths, run.signs[2 * w], run.signs[2 * w + 1], 0xffffffffu);
    }
  }

  // In pairs where the type holds half and twice the scale's inverse, and nothing is infinite.
  template <class In>
  __host__ __device__ static void encode(PairedRun<In> const& run, Scale const& scale, float, uint32_t (&words)[2]) {
    constexpr uint32_t kLeast = 128 - Pairs<In>::kBias, kMost = 125 + Pairs<In>::kBias;
    uint32_t const byte = scale.byte;
    if ((byte - kLeast > kMost - kLeast && run.amax != 0.0f) || run.had_nan) [[unlikely]] {
      return encode(run.widened(), scale, 0.0f, words);
    }
#pragma unroll
    for (int w = 0; w < 2; ++w) words[w] = pack_e2m1_pairs<In>(run.words + 4 * w, byte < kLeast ? kLeast : byte, !scale.rounds_up);
  }
};

// e3m2 has e5m2's mantissa: 2^12 below, its codes are those of e5m2.
struct MxFp6 {
  using Scale = MxScale<MxFp6>;
  static constexpr int kGroup = 32, kBits = 6, kShift = -12;
  static constexpr bool kHasNan = false, kHasGlobalScale = false;
  static constexpr uint32_t kLargestMantissa = 0x600000, kLargestExponent = 4;

  __host__ __device__ static void encode(Run const& run, Scale const& scale, float, uint32_t (&words)[3]) {
    constexpr float kMost = 28.0f * 0x1p-12f;
    uint32_t quads[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      float const* x = run.values + 4 * q;
      auto const scaled = [&scale](float value) { return fminf(fabsf(value) * scale.factor, kMost); };
      uint32_t const bytes =
          pack_fp8<__NV_E5M2>(scaled(x[0]), scaled(x[1]), scaled(x[2]), scaled(x[3])) | (run.signs[q] & kSigns) >> 2;
      uint32_t const pairs = (bytes & 0x003f003fu) | (bytes & 0x3f003f00u) >> 2;
      quads[q] = (pairs & 0xfffu) | (pairs >> 4 & 0xfff000u);
    }
    words[0] = quads[0] | quads[1] << 24;
    words[1] = quads[1] >> 8 | quads[2] << 16;
    words[2] = quads[2] >> 16 | quads[3] << 8;
  }

  // In pairs of bf16, which hold scaled values exactly; signs go through the conversion.
  __host__ __device__ static void encode(PairedRun<__nv_bfloat16> const& run, Scale const& scale, float, uint32_t (&words)[3]) {
    constexpr uint32_t kExponent = 0x800080u, kMost = 241;
    if (scale.byte > kMost || run.had_nan) [[unlikely]] return encode(run.widened(), scale, 0.0f, words);
    uint32_t const factor = (kMost + 1 - scale.byte) * kExponent;
    uint32_t quads[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      float x[4];
      widen(multiply_pairs(run.words[2 * q], factor), x[0], x[1], __nv_bfloat16{});
      widen(multiply_pairs(run.words[2 * q + 1], factor), x[2], x[3], __nv_bfloat16{});
      uint32_t bytes = pack_fp8<__NV_E5M2>(x[0], x[1], x[2], x[3]);
      if (!scale.rounds_up) bytes -= (bytes & 0x20202020u) >> 5;  // 32 becomes 28
      uint32_t const codes = (bytes & 0x1f1f1f1fu) | (bytes >> 2 & 0x20202020u);
      uint32_t const pairs = (codes & 0x003f003fu) + ((codes & 0x3f003f00u) >> 2);
      quads[q] = (pairs & 0xfffu) | (pairs >> 4 & ~0xfffu);
    }
    words[0] = quads[0] | quads[1] << 24;
    words[1] = quads[1] >> 8 | quads[2] << 16;
    words[2] = quads[2] >> 16 | quads[3] << 8;
  }
};

struct MxFp8 {
  using Scale = MxScale<MxFp8>;
  static constexpr int kGroup = 32, kBits = 8, kShift = 0;
  static constexpr bool kHasNan = true, kHasGlobalScale = false;
  static constexpr uint32_t kLargestMantissa = 0x600000, kLargestExponent = 8;

  __host__ __device__ static void encode(Run const& run, Scale const& scale, float, uint32_t (&words)[4]) {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      float const* x = run.values + 4 * q;
      auto const scaled = [&scale](float value) { return fabsf(value) * scale.factor; };
      words[q] = pack_fp8<__NV_E4M3>(scaled(x[0]), scaled(x[1]), scaled(x[2]), scaled(x[3])) | (run.signs[q] & kSigns);
    }
  }
};

// The formats as vLLM's kernels code them (csrc of vLLM 0.33.0, quantization/fp4), in the same operations. A factor by which every
// number's code is zero stands for none: infinity and a former NaN have the largest code by it, too.
inline constexpr float kNoFactor = 0x1p-149f;

// The power of two by the largest magnitude rounded to a bit behind its first: from 1.75 on it is the next one's.
struct VllmMxScale : MxScale<MxFp4> {
  __host__ __device__ static VllmMxScale of(float amax, float, bool) {
    uint32_t const exponent = (bits_of(amax) + 0x200000u) >> 23;
    uint32_t const byte = exponent > MxFp4::kLargestExponent ? exponent - MxFp4::kLargestExponent : 0;
    return {{static_cast<uint8_t>(byte), false, byte == 0 ? kNoFactor : two_to(127 - static_cast<int>(byte) + MxFp4::kShift)}};
  }
};

struct VllmMxFp4 : MxFp4 {
  using Scale = VllmMxScale;
};

struct VllmNvScale {
  uint8_t byte;
  float factor;  // an eighth of 1 / (scale / global)

  __host__ __device__ static VllmNvScale of(float amax, float global_scale, bool) {
    float const value = global_scale * (amax * about_inverse(6.0f));
    uint32_t const byte = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3) & 0x7fu;
    float const scale = __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(byte), __NV_E4M3)));
    bool const is_usable = byte - 1u < NvScale::kNanByte - 1u;
    float const factor = fminf(about_inverse(scale * about_inverse(global_scale)), FLT_MAX) * 0.125f;
    return {static_cast<uint8_t>(byte), is_usable ? factor : kNoFactor};
  }
};

struct VllmNvFp4 {
  using Scale = VllmNvScale;
  static constexpr int kGroup = 16, kBits = 4;
  static constexpr bool kHasNan = false, kHasGlobalScale = true;

  __host__ __device__ static void encode(Run const& run, Scale const& scale, float, uint32_t (&words)[2]) {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      float eighths[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) eighths[i] = saturated(fabsf(run.values[8 * w + i]) * scale.factor);
      words[w] = pack_e2m1(eighths, run.signs[2 * w], run.signs[2 * w + 1], 0xffffffffu);
    }
  }
};

template <class Format>
inline constexpr bool kIsVllms = std::is_same_v<Format, VllmNvFp4> || std::is_same_v<Format, VllmMxFp4>;

// The coding of runs of packed elements: in pairs where the format knows how, else in f32.
template <class Format, class In>
struct RunOf {
  using Type = Run;
};
template <class In>
struct RunOf<MxFp4, In> {
  using Type = PairedRun<In>;
};
template <class In>
struct RunOf<VllmMxFp4, In> {
  using Type = PairedRun<In>;
};
template <>
struct RunOf<MxFp6, __nv_bfloat16> {
  using Type = PairedRun<__nv_bfloat16>;
};

// x * (1 + scale) + shift
struct Modulate {
  static constexpr bool kGated = false;
  __host__ __device__ static float of(float x, float scale, float shift) {
#ifdef __CUDA_ARCH__
    return __fadd_rn(__fmul_rn(x, __fadd_rn(1.0f, scale)), shift);
#else
    return x * (1.0f + scale) + shift;
#endif
  }
};

// A global scale is finite and above zero. Another becomes NaN, and with it every scale and decoded value: the call does not wait
// for the device to refuse it.
__host__ __device__ inline float usable_global_scale(float x) { return x > 0.0f && x <= FLT_MAX ? x : float_of(0x7fffffffu); }

// Which of `experts` a row belongs to, by the first row of each and the end of the last: the last that begins at the row or before; -1
// where it lies outside of all.
__host__ __device__ inline int32_t expert_of(int32_t const* offsets, int32_t experts, int64_t row) {
  int32_t const place = row < INT32_MAX ? static_cast<int32_t>(row) : INT32_MAX;
  uint32_t expert = 0;
  for (uint32_t left = experts; left > 1;) {
    uint32_t const half = left / 2;
    expert = offsets[expert + half] <= place ? expert + half : expert;
    left -= half;
  }
  return offsets[expert] <= place && place < offsets[expert + 1] ? static_cast<int32_t>(expert) : -1;
}

// Where the scale of a row and a group lies in tiles of 128 rows x 4 scales, `tiles` of them along a row (docs/formats.md).
template <class Offset = int64_t>
__host__ __device__ inline Offset swizzled_offset(uint32_t row, uint32_t group, uint32_t tiles) {
  return (Offset{row / 128} * tiles + group / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + group % 4;
}

}  // namespace gemmill::quant
