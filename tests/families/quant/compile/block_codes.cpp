// The arithmetic of block-scaled quantisation as the kernels have it, for the host.
#include "quant/block_decode.cuh"

namespace {

using namespace gemmill::quant;

// Groups of bf16 or f16 elements, or of f32 values; codes are packed, scales are one byte a group.
// As a kernel takes them: values of f32 come from an activation.
template <class Format, class In>
struct TakenAs {
  using Run = typename RunOf<Format, In>::Type;
};
template <class Format>
struct TakenAs<Format, float> {
  using Run = gemmill::quant::Run;
};

template <class Format, class In>
void quantise(void const* x, int64_t groups, float global_scale, bool rounds_up, uint8_t* codes, uint8_t* scales) {
  constexpr int kRuns = Format::kGroup / kRun, kWords = Format::kBits * kRun / 32;
  for (int64_t group = 0; group < groups; ++group) {
    using Taken = typename TakenAs<Format, In>::Run;
    Taken runs[kRuns];
    float amax = 0.0f;
    for (int r = 0; r < kRuns; ++r) {
      if constexpr (sizeof(In) == 4) {
        float values[kRun];
        memcpy(values, static_cast<float const*>(x) + group * Format::kGroup + r * kRun, sizeof values);
        runs[r] = Taken::template of_values<Format>(values);
      } else {
        uint32_t words[kRun / 2];
        memcpy(words, static_cast<In const*>(x) + group * Format::kGroup + r * kRun, sizeof words);
        runs[r] = Taken::of_raw(words, Largest::of_numbers<Format, In>(words), In{});
      }
      amax = fmaxf(amax, runs[r].amax);
    }
    auto const scale = Format::Scale::of(amax, usable_global_scale(global_scale), rounds_up);
    scales[group] = scale.byte;
    for (int r = 0; r < kRuns; ++r) {
      uint32_t words[kWords];
      Format::encode(runs[r], scale, usable_global_scale(global_scale), words);
      memcpy(codes + (group * kRuns + r) * sizeof words, words, sizeof words);
    }
  }
}

template <class Format>
void quantise_as(char in, void const* x, int64_t groups, float global_scale, bool rounds_up, uint8_t* codes, uint8_t* scales) {
  switch (in) {
    case 'b': return quantise<Format, __nv_bfloat16>(x, groups, global_scale, rounds_up, codes, scales);
    case 'h': return quantise<Format, __half>(x, groups, global_scale, rounds_up, codes, scales);
    default: return quantise<Format, float>(x, groups, global_scale, rounds_up, codes, scales);
  }
}

template <class Format>
void dequantise(uint8_t const* codes, uint8_t const* scales, int64_t groups, float global_scale, float* values) {
  constexpr int kRuns = Format::kGroup / kRun, kWords = Format::kBits * kRun / 32;
  for (int64_t run = 0; run < groups * kRuns; ++run) {
    uint32_t words[kWords];
    memcpy(words, codes + run * sizeof words, sizeof words);
    float found[kRun];
    decode<Format>(words, scale_value<Format>(scales[run / kRuns]), global_scale, found);
    memcpy(values + run * kRun, found, sizeof found);
  }
}

}  // namespace

extern "C" void dequantise_groups(char format, uint8_t const* codes, uint8_t const* scales, int64_t groups, float global_scale,
                                  float* values) {
  switch (format) {
    case 'n': return dequantise<NvFp4>(codes, scales, groups, global_scale, values);
    case '4': return dequantise<MxFp4>(codes, scales, groups, global_scale, values);
    case '6': return dequantise<MxFp6>(codes, scales, groups, global_scale, values);
    default: return dequantise<MxFp8>(codes, scales, groups, global_scale, values);
  }
}

// How many quotients of what an nvfp4 code and scale may make, by a global scale of every mantissa, are not the correctly rounded
// ones.
extern "C" int64_t wrong_quotients() {
  int64_t wrong = 0;
  for (uint32_t mantissa = 0; mantissa < 1u << 23; ++mantissa) {
    GlobalQuotient const by(float_of(127u << 23 | mantissa));
    for (int code = 1; code <= 3; code += 2) {
      for (int scale = 1; scale <= 15; scale += 2) wrong += by(static_cast<float>(code * scale)) != code * scale / by.divisor;
    }
  }
  return wrong;
}

extern "C" void quantise_groups(char format, char in, void const* x, int64_t groups, float global_scale, int rounds_up, uint8_t* codes,
                                uint8_t* scales) {
  switch (format) {
    case 'n': return quantise_as<NvFp4>(in, x, groups, global_scale, rounds_up, codes, scales);
    case '4': return quantise_as<MxFp4>(in, x, groups, global_scale, rounds_up, codes, scales);
    case 'N': return quantise_as<VllmNvFp4>(in, x, groups, global_scale, rounds_up, codes, scales);
    case 'M': return quantise_as<VllmMxFp4>(in, x, groups, global_scale, rounds_up, codes, scales);
    case '6': return quantise_as<MxFp6>(in, x, groups, global_scale, rounds_up, codes, scales);
    default: return quantise_as<MxFp8>(in, x, groups, global_scale, rounds_up, codes, scales);
  }
}

// How many of 2^23 quotients by six are not the correctly rounded ones.
extern "C" int64_t wrong_sixths(uint32_t exponent) {
  int64_t wrong = 0;
  for (uint32_t mantissa = 0; mantissa < 1u << 23; ++mantissa) {
    float const product = float_of(exponent << 23 | mantissa), sixth = product * (1.0f / 6.0f);
    wrong += fmaf(-fmaf(sixth, 6.0f, -product), 1.0f / 6.0f, sixth) != product / 6.0f;
  }
  return wrong;
}

extern "C" void experts_of(int32_t const* offsets, int32_t experts, int64_t rows, int32_t* out) {
  for (int64_t row = 0; row < rows; ++row) out[row] = expert_of(offsets, experts, row);
}

extern "C" void modulate(float const* x, float const* scale, float const* shift, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = Modulate::of(x[i], scale[i], shift[i]);
}

extern "C" void swizzled_offsets(int64_t rows, int64_t groups, int64_t* out) {
  uint32_t const tiles = static_cast<uint32_t>((groups + 3) / 4);
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t group = 0; group < groups; ++group) *out++ = swizzled_offset(row, group, tiles);
  }
}
