// What the RMS norm kernels are given, and the arithmetic that they share.
#pragma once

#include "quant/code.cuh"
#include "quant/extent.cuh"
#include "quant/launch.cuh"
#include "quant/memory.cuh"
#include "quant/reduce.cuh"

namespace gemmill::quant {

struct RmsNormParams {
  void const* in;
  void const* weight;
  void* residual;
  uint8_t* out;
  float* scales;
  float const* scale_ub;
  int64_t hidden, in_stride, out_stride, residual_stride, scale_stride_m, scale_stride_g;
  uint32_t chunks;         // of a row
  double inverse_hidden, epsilon;
  uint32_t rows, stages;   // where rows are staged
};

template <int kElements>
__device__ __forceinline__ double sum_of_squares(float const (&x)[kElements]) {
  double sum = 0.0;
#pragma unroll
  for (int i = 0; i < kElements; i += 4) {
    sum += static_cast<double>(__fadd_rn(__fadd_rn(__fmul_rn(x[i], x[i]), __fmul_rn(x[i + 1], x[i + 1])),
                                         __fadd_rn(__fmul_rn(x[i + 2], x[i + 2]), __fmul_rn(x[i + 3], x[i + 3]))));
  }
  return sum;
}

// Values of s8 are multiplied by the scale's reciprocal, those of e4m3 divided by it.
template <class Out, int kElements>
__device__ __forceinline__ void encode_normed(float const (&y)[kElements], float scale, float amax, uint32_t (&words)[kElements / 4]) {
  if constexpr (std::is_same_v<Out, S8>) {
    float const reciprocal = reciprocal_of(scale);
#pragma unroll
    for (int i = 0; i < kElements; i += 4) {
      words[i / 4] = encode4(__fmul_rn(y[i], reciprocal), __fmul_rn(y[i + 1], reciprocal), __fmul_rn(y[i + 2], reciprocal),
                             __fmul_rn(y[i + 3], reciprocal), Out{});
    }
  } else {
    encode_scaled<Out>(y, scale, amax, words);
  }
}

// The inverse of the root of the mean square.
__device__ __forceinline__ float inverse_rms_of(double sum, RmsNormParams const& p) {
  return __frsqrt_rn(static_cast<float>(__dadd_rn(__dmul_rn(sum, p.inverse_hidden), p.epsilon)));
}

template <class Out>
__device__ __forceinline__ float normed_scale(float amax, float scale_ub) {
  return fmaxf(scale_of<Out>(fminf(amax, scale_ub)), Out::kSmallestScale);
}

}  // namespace gemmill::quant
