// The epilogues written out, for kernels that do not use CUTLASS's visitor trees. The order of operations is the same:
// integers first, then b_scales, then a_scales, with the bias added in one fused operation.
#pragma once

#include <cuda_runtime.h>

namespace gemmill {

enum class EpilogueKind { scaled, scaledbias, scaledazp, scaledazppertoken };

// Scales, bias and zero points of a call, as the kernel takes them.
struct EpilogueVectors {
  float const* a_scales;
  float const* b_scales;
  void const* bias;
  int32_t const* azp_adj;
  int32_t const* azp;
  int32_t a_stride;  // 0 where there is one value
  int32_t b_stride;

  // Of scales alone.
  EpilogueVectors(float const* a_scales, float const* b_scales, int32_t a_stride, int32_t b_stride)
      : a_scales(a_scales), b_scales(b_scales), bias(nullptr), azp_adj(nullptr), azp(nullptr), a_stride(a_stride), b_stride(b_stride) {}
  // Of a call's arguments.
  template <class Args>
  explicit EpilogueVectors(Args const& x)
      : a_scales(x.a_scales), b_scales(x.b_scales), bias(x.bias), azp_adj(x.azp_adj), azp(x.azp),
        a_stride(x.a_scale_per_row), b_stride(x.b_scale_per_column) {}
};

template <EpilogueKind kind, class Output, class Accumulator>
__device__ Output finish(EpilogueVectors const& v, Accumulator sum, int64_t m, int64_t n) {
  if constexpr (kind == EpilogueKind::scaledazp) sum -= v.azp_adj[n];
  if constexpr (kind == EpilogueKind::scaledazppertoken) {
    sum -= v.azp_adj[n] * (v.azp != nullptr ? v.azp[m] : 1);
  }
  float scaled = static_cast<float>(sum) * v.b_scales[n * v.b_stride];
  float a_scale = v.a_scales[m * v.a_stride];
  if constexpr (kind == EpilogueKind::scaled) {
    return Output(a_scale * scaled);
  } else {
    float bias = v.bias != nullptr ? static_cast<float>(static_cast<Output const*>(v.bias)[n]) : 0.0f;
    return Output(fmaf(a_scale, scaled, bias));
  }
}

}  // namespace gemmill
