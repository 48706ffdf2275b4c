// Quantisation by given scales, plain or of activation(gate) * up.
#pragma once

#include "coding/activation.cuh"
#include "coding/code.cuh"
#include "quant/launch.cuh"
#include "coding/memory.cuh"

namespace gemmill::quant {

inline constexpr int kStaticQuantThreads = 256;

struct StaticQuantParams {
  void const* in;
  uint8_t* out;
  float const* scales;
  int32_t const* azp;
  int64_t hidden, in_stride, out_stride, scale_stride_m, scale_stride_n;
  uint32_t first_row, chunks;
  FastDivision chunks_per_row, group_m, group_n;
};

// Codes of a chunk. e4m3 multiplies by the scale's reciprocal; so does s8 with a zero point. Symmetric s8 divides.
template <class Out, bool kSymmetric>
struct StaticCoding {
  float scale, reciprocal;
  std::conditional_t<Out::kAsVllm, WrappingZeroPoint, ZeroPoint> azp;
  __device__ __forceinline__ StaticCoding(float s, int32_t zero_point) : scale(s), reciprocal(reciprocal_of(s)), azp(zero_point) {}

  template <int kElements>
  __device__ __forceinline__ void scale_values(float (&values)[kElements]) const {
    if constexpr (std::is_same_v<Out, S8> && kSymmetric) {
      if (is_plain(scale)) [[likely]] {
        Quotient const by_scale(scale, reciprocal);
#pragma unroll
        for (int i = 0; i < kElements; ++i) values[i] = by_scale.bounded(values[i]);
      } else {
#pragma unroll
        for (int i = 0; i < kElements; ++i) values[i] = __fdiv_rn(values[i], scale);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kElements; ++i) values[i] = __fmul_rn(values[i], reciprocal);
    }
  }
  template <int kElements>
  __device__ __forceinline__ void encode(float const (&values)[kElements], uint32_t (&words)[kElements / 4]) const {
#pragma unroll
    for (int i = 0; i < kElements; i += 4) {
      if constexpr (kSymmetric) {
        words[i / 4] = encode4(values[i], values[i + 1], values[i + 2], values[i + 3], Out{});
      } else {
        words[i / 4] = pack_s8(azp(values[i]), azp(values[i + 1]), azp(values[i + 2]), azp(values[i + 3]));
      }
    }
  }
};

// kAligned: every chunk lies within one scale group along the row.
template <class Variant, class In, class Out, class Activation, bool kSymmetric, int kUnroll, bool kAligned>
__global__ void __launch_bounds__(kStaticQuantThreads) static_quant_kernel(StaticQuantParams const p) {
  constexpr int kElements = kChunkElements<In>;
  uint32_t const first = blockIdx.x * (blockDim.x * kUnroll) + threadIdx.x;
  uint32_t rows[kUnroll], columns[kUnroll];
  uint4 chunks[kUnroll], ups[Activation::kGated ? kUnroll : 1];
  constexpr bool kSmall = kUnroll == 1;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    uint32_t const index = min(first + u * blockDim.x, p.chunks - 1);
    rows[u] = p.chunks_per_row(index);
    columns[u] = (index - rows[u] * p.chunks_per_row.divisor) * kElements;
    if constexpr (kSmall) {
      In const* const chunk = static_cast<In const*>(p.in) + rows[u] * p.in_stride + columns[u];
      fetch_to_l2(chunk);
      if constexpr (Activation::kGated) fetch_to_l2(chunk + p.hidden);
    }
  }
  wait_for_predecessor();
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    In const* const row = static_cast<In const*>(p.in) + rows[u] * p.in_stride;
    chunks[u] = load_chunk<kAligned, kSmall>(row, columns[u], p.hidden);
    if constexpr (Activation::kGated) ups[u] = load_chunk<kAligned, kSmall>(row + p.hidden, columns[u], p.hidden);
  }
  int32_t const azp = kSymmetric ? 0 : *p.azp;

#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    float values[kElements];
    unpack<In>(chunks[u], values);
    if constexpr (Activation::kGated) {
      float factors[kElements];
      unpack<In>(ups[u], factors);
      if constexpr (Out::kAsVllm) {
        gate_and_multiply_as_vllm<In>(values, factors);
      } else {
        gate_and_multiply<Activation>(values, factors);
      }
    }
    float const* const scales = p.scales + p.group_m(p.first_row + rows[u]) * p.scale_stride_m;
    StaticCoding<Out, kSymmetric> const of_chunk(scales[p.group_n(columns[u]) * p.scale_stride_n], azp);
    uint32_t words[kElements / 4];
    if constexpr (kAligned) {
      of_chunk.scale_values(values);
    } else {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        if (columns[u] + i >= p.hidden) break;
        float one[1] = {values[i]};
        StaticCoding<Out, kSymmetric>(scales[p.group_n(columns[u] + i) * p.scale_stride_n], azp).scale_values(one);
        values[i] = one[0];
      }
    }
    of_chunk.encode(values, words);
    if (first + u * blockDim.x < p.chunks) {
      store_codes<kAligned, kElements>(p.out + rows[u] * p.out_stride, columns[u], p.hidden, words);
    }
  }
}

template <class Variant, class In, class Out, class Activation, bool kSymmetric, int kUnroll, bool kAligned>
int32_t launch_static_quant_slice(StaticQuantParams const& p, gemmill_launch const& how) {
  int const threads = kUnroll > 1 && is_very_large(p.chunks, how.sm_count) ? kThreadsOfLarge : kStaticQuantThreads;
  return launch<&static_quant_kernel<Variant, In, Out, Activation, kSymmetric, kUnroll, kAligned>>(
      p, ceil_divide(p.chunks, threads * kUnroll), threads, how);
}

template <class Variant, class In, class Out, class Activation, bool kSymmetric>
int32_t static_quant(gemmill_quant_args const& x, gemmill_launch const& how) {
  if (x.rows == 0 || x.hidden == 0) return cudaSuccess;
  if ((x.azp == nullptr) != kSymmetric) return GEMMILL_CANNOT_IMPLEMENT;
  constexpr int64_t kElements = kChunkElements<In>;
  int64_t const per_row = ceil_divide(x.hidden, kElements);
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  if (per_row * kElements > kMost || x.rows > kMost) return GEMMILL_CANNOT_IMPLEMENT;
  auto const division = [](int64_t size) { return FastDivision(static_cast<uint32_t>(size < kMost ? size : kMost)); };
  bool const aligned = rows_are_aligned<In>(x.in, x.in_stride, x.out, x.out_stride, x.hidden) &&
                       (x.scale_stride_n == 0 || x.group_n % kElements == 0);
  int64_t const slice = kMostChunks / per_row;
  for (int64_t row = 0; row < x.rows; row += slice) {
    int64_t const rows = x.rows - row < slice ? x.rows - row : slice;
    StaticQuantParams const p{
        static_cast<In const*>(x.in) + row * x.in_stride,
        static_cast<uint8_t*>(x.out) + row * x.out_stride,
        static_cast<float const*>(x.scales), x.azp,
        x.hidden, x.in_stride, x.out_stride, x.scale_stride_m, x.scale_stride_n,
        static_cast<uint32_t>(row),
        static_cast<uint32_t>(rows * per_row),
        FastDivision(static_cast<uint32_t>(per_row)), division(x.group_m), division(x.group_n),
    };
    bool const small = p.chunks <= int64_t{how.sm_count} * kStaticQuantThreads * 4;
    int32_t const error = !aligned ? launch_static_quant_slice<Variant, In, Out, Activation, kSymmetric, 1, false>(p, how)
                          : small  ? launch_static_quant_slice<Variant, In, Out, Activation, kSymmetric, 1, true>(p, how)
                                   : launch_static_quant_slice<Variant, In, Out, Activation, kSymmetric, 2, true>(p, how);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace gemmill::quant
