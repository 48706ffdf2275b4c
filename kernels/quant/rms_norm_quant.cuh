// RMS norm and quantisation of a row by one CTA:
//
//     x    = in, or in + residual in f32, which rounded replaces the residual
//     y    = round(round(x * 1/rms) * weight), rounded to the input's type as the unfused ops would
//     code = y by the scale of its row or group
//
// The sum of squares is made in f32 over runs of four elements, ((0 + 1) + (2 + 3)), and in f64 across runs: exact enough
// that the order across runs does not show in f32.
#pragma once

#include "quant/code.cuh"
#include "quant/launch.cuh"
#include "quant/memory.cuh"
#include "quant/reduce.cuh"

namespace gemmill::quant {

inline constexpr int kMostRmsNormThreads = 1024;

struct RmsNormParams {
  void const* in;
  void const* weight;
  void* residual;
  uint8_t* out;
  float* scales;
  float const* scale_ub;
  int64_t hidden, in_stride, out_stride, residual_stride, scale_stride_m, scale_stride_g;
  uint32_t chunks;  // of a row
  double inverse_hidden, epsilon;
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

// kGroup 0: one scale a row. kResident: the row stays in registers; else it is read again (from L2) for each step.
template <class In, class Out, int kGroup, int kChunks, bool kAligned, bool kResident, bool kResidual>
__global__ void __launch_bounds__(kMostRmsNormThreads) rms_norm_quant_kernel(RmsNormParams const p) {
  constexpr int kElements = kChunkElements<In>;
  constexpr int kLanes = kGroup == 0 ? 32 : kGroup / kElements;
  __shared__ RowReduction<double, false> sum_reduction;
  __shared__ RowReduction<float, false> max_reduction;

  int64_t const row = blockIdx.x;
  In const* const in = static_cast<In const*>(p.in) + row * p.in_stride;
  In const* const weight = static_cast<In const*>(p.weight);
  In* const residual = kResidual ? static_cast<In*>(p.residual) + row * p.residual_stride : nullptr;
  uint32_t const step = blockDim.x;
  uint32_t const rounds = kResident ? 1 : (p.chunks + step * kChunks - 1) / (step * kChunks);

  float x[kChunks][kElements];
  // With four chunks the weights would not fit beside the row; they are loaded when they are used.
  constexpr bool kKeepWeights = kResident && kChunks < 4;
  uint4 weights[kKeepWeights ? kChunks : 1];
  auto const index_of = [&](uint32_t round, int c) { return (round * kChunks + c) * step + threadIdx.x; };
  auto const load_x = [&](uint32_t round) {
    uint4 chunks[kChunks], others[kResidual ? kChunks : 1];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t const index = index_of(round, c);
      chunks[c] = make_uint4(0, 0, 0, 0);
      if constexpr (kResidual) others[c] = make_uint4(0, 0, 0, 0);
      if (index < p.chunks) {
        chunks[c] = load_chunk<kAligned>(in, int64_t{index} * kElements, p.hidden);
        if constexpr (kResidual) others[c] = load_chunk<kAligned>(static_cast<In const*>(residual), int64_t{index} * kElements, p.hidden);
      }
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      unpack<In>(chunks[c], x[c]);
      if constexpr (kResidual) {
        float other[kElements];
        unpack<In>(others[c], other);
#pragma unroll
        for (int i = 0; i < kElements; ++i) x[c][i] = __fadd_rn(x[c][i], other[i]);
      }
    }
  };
  auto const load_weight = [&](uint32_t index) {
    if (index >= p.chunks) return make_uint4(0, 0, 0, 0);
    if constexpr (kAligned) return load_reused(weight + int64_t{index} * kElements);
    return load_elements(weight, int64_t{index} * kElements, p.hidden);
  };
  auto const store_residual = [&](uint32_t round) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t const index = index_of(round, c);
      if (index < p.chunks) store_chunk<kAligned>(residual, int64_t{index} * kElements, p.hidden, pack<In>(x[c]));
    }
  };

  wait_for_predecessor();
  double sum = 0.0;
  for (uint32_t round = 0; round < rounds; ++round) {
    load_x(round);
    if constexpr (kKeepWeights) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) weights[c] = load_weight(index_of(0, c));
    }
    if constexpr (kResident && kResidual) store_residual(round);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) sum += sum_of_squares(x[c]);
  }
  float const scale_ub = p.scale_ub == nullptr ? __int_as_float(0x7f800000) : *p.scale_ub;
  sum = sum_reduction(sum, Sum{});
  float const mean = static_cast<float>(__dadd_rn(__dmul_rn(sum, p.inverse_hidden), p.epsilon));
  float const inverse_rms = __frsqrt_rn(mean);

  auto const normalise = [&](uint32_t round, int c) {
    float w[kElements];
    if constexpr (kKeepWeights) {
      unpack<In>(weights[c], w);
    } else {
      unpack<In>(load_weight(index_of(round, c)), w);
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      float const normed = static_cast<float>(round_to<In>(__fmul_rn(x[c][i], inverse_rms)));
      x[c][i] = static_cast<float>(round_to<In>(__fmul_rn(normed, w[i])));
    }
  };
  auto const chunk_maximum = [&](int c) {
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < kElements; ++i) amax = fmaxf(amax, fabsf(x[c][i]));
    return amax;
  };
  auto const scale_from = [&](float amax) { return fmaxf(scale_of<Out>(fminf(amax, scale_ub)), Out::kSmallestScale); };
  auto const store = [&](uint32_t index, int c, float scale, float amax) {
    uint32_t words[kElements / 4];
    encode_normed<Out>(x[c], scale, amax, words);
    if (index < p.chunks) store_codes<kAligned, kElements>(p.out + row * p.out_stride, int64_t{index} * kElements, p.hidden, words);
  };

  float amax = 0.0f;
  if constexpr (kGroup == 0) {
    for (uint32_t round = 0; round < rounds; ++round) {
      if constexpr (!kResident) load_x(round);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        normalise(round, c);
        amax = fmaxf(amax, chunk_maximum(c));
      }
    }
    amax = max_reduction(amax, Max{});
    if (threadIdx.x == 0) p.scales[row * p.scale_stride_m] = scale_from(amax);
  }
  for (uint32_t round = 0; round < rounds; ++round) {
    if constexpr (!kResident) {
      load_x(round);
      if constexpr (kResidual) store_residual(round);
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t const index = index_of(round, c);
      if constexpr (!kResident || kGroup != 0) normalise(round, c);
      if constexpr (kGroup != 0) {
        amax = reduce_lanes<kLanes>(chunk_maximum(c), Max{});
        if (threadIdx.x % kLanes == 0 && index < p.chunks) {
          p.scales[row * p.scale_stride_m + index / kLanes * p.scale_stride_g] = scale_from(amax);
        }
      }
      store(index, c, scale_from(amax), amax);
    }
  }
}

template <class In, class Out, int kGroup, int kChunks, bool kAligned, bool kResident>
int32_t launch_rms_norm_quant(RmsNormParams const& p, int64_t rows, int threads, gemmill_quant_launch const& how) {
  if (p.residual != nullptr) {
    return launch(&rms_norm_quant_kernel<In, Out, kGroup, kChunks, kAligned, kResident, true>, p, rows, threads, how);
  }
  return launch(&rms_norm_quant_kernel<In, Out, kGroup, kChunks, kAligned, kResident, false>, p, rows, threads, how);
}

template <class In, class Out, int kGroup>
int32_t rms_norm_quant(gemmill_rms_norm_quant_args const& x) {
  if (x.rows == 0 || x.hidden == 0) return cudaSuccess;
  if constexpr (kGroup != 0) {
    if (x.hidden % kGroup != 0) return GEMMILL_CANNOT_IMPLEMENT;
  }
  constexpr int64_t kElements = kChunkElements<In>;
  int64_t const chunks = ceil_divide(x.hidden, kElements);
  if (chunks > kMostChunks) return GEMMILL_CANNOT_IMPLEMENT;
  bool aligned = rows_are_aligned<In>(x.in, x.in_stride, x.out, x.out_stride, x.hidden) && is_aligned(x.weight, 16);
  if (x.residual != nullptr) aligned = aligned && is_aligned(x.residual, 16) && x.residual_stride % kElements == 0;
  for (int64_t row = 0; row < x.rows; row += kMostChunks) {
    int64_t const rows = x.rows - row < kMostChunks ? x.rows - row : kMostChunks;
    RmsNormParams const p{
        static_cast<In const*>(x.in) + row * x.in_stride,
        x.weight,
        x.residual == nullptr ? nullptr : static_cast<In*>(x.residual) + row * x.residual_stride,
        static_cast<uint8_t*>(x.out) + row * x.out_stride,
        x.scales + row * x.scale_stride_m,
        x.scale_ub,
        x.hidden, x.in_stride, x.out_stride, x.residual_stride, x.scale_stride_m, x.scale_stride_g,
        static_cast<uint32_t>(chunks),
        1.0 / static_cast<double>(x.hidden), static_cast<double>(x.epsilon),
    };
    int per_thread = x.launch.chunks_hint;
    if (per_thread == 0) per_thread = rows > x.launch.sm_count && chunks > 128 ? 2 : 1;
    if (per_thread > 2) per_thread = 4;
    while (per_thread < 4 && chunks > int64_t{per_thread} * kMostRmsNormThreads) per_thread *= 2;
    int64_t const threads = ceil_divide(ceil_divide(chunks, per_thread), 32) * 32;
    bool const resident = threads <= kMostRmsNormThreads;
    int const ctas_threads = resident ? static_cast<int>(threads) : kMostRmsNormThreads;
    int32_t const error =
        !aligned          ? launch_rms_norm_quant<In, Out, kGroup, 1, false, false>(p, rows, ctas_threads, x.launch)
        : !resident       ? launch_rms_norm_quant<In, Out, kGroup, 2, true, false>(p, rows, kMostRmsNormThreads, x.launch)
        : per_thread == 1 ? launch_rms_norm_quant<In, Out, kGroup, 1, true, true>(p, rows, ctas_threads, x.launch)
        : per_thread == 2 ? launch_rms_norm_quant<In, Out, kGroup, 2, true, true>(p, rows, ctas_threads, x.launch)
                          : launch_rms_norm_quant<In, Out, kGroup, 4, true, true>(p, rows, ctas_threads, x.launch);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace gemmill::quant
