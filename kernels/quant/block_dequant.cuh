// Block-scaled codes and scales back to values. A thread has a run of 16 consecutive elements, whose scale is one byte.
#pragma once

#include <type_traits>

#include "quant/block_decode.cuh"
#include "quant/launch.cuh"
#include "coding/memory.cuh"

namespace gemmill::quant {

// Codes of 6 and 8 bits gain up to 5 % by CTAs of 512 threads, those of 4 lose by them (H200, 2026-11-23).
template <class Format>
inline constexpr int kBlockDequantThreads = Format::kBits > 4 ? 512 : 256;

struct BlockDequantParams {
  uint8_t const* in;
  void* out;
  uint8_t const* scales;
  float const* global_scale;
  int64_t hidden, in_stride, out_stride, scale_stride;  // the last of plain scales
  uint32_t tiles, all_runs;  // tiles along a row, 0: scales are plain
  FastDivision runs_of_row;
};

template <bool kAligned, int kWords>
__device__ __forceinline__ void load_codes(uint8_t const* codes, uint32_t (&words)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if constexpr (kAligned) {
      asm volatile("ld.global.u32 %0, [%1];" : "=r"(words[i]) : "l"(codes + 4 * i) : "memory");
    } else {
      words[i] = 0;
      for (int byte = 0; byte < 4; ++byte) words[i] |= static_cast<uint32_t>(codes[4 * i + byte]) << (8 * byte);
    }
  }
}
template <>
__device__ __forceinline__ void load_codes<true, 4>(uint8_t const* codes, uint32_t (&words)[4]) {
  uint4 const found = load_reused(codes);
  words[0] = found.x, words[1] = found.y, words[2] = found.z, words[3] = found.w;
}

template <bool kAligned, class Out>
__device__ __forceinline__ void store_values(Out* row, int64_t column, int64_t hidden, float const (&values)[kRun]) {
  constexpr int kElements = kChunkElements<Out>;
#pragma unroll
  for (int chunk = 0; chunk < kRun / kElements; ++chunk) {
    float part[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i) part[i] = values[chunk * kElements + i];
    store_chunk<kAligned>(row, column + chunk * kElements, hidden, pack<Out>(part));
  }
}

template <class Variant, class Out, class Format, bool kAligned>
__global__ void __launch_bounds__(kBlockDequantThreads<Format>) block_dequant_kernel(__grid_constant__ BlockDequantParams const p) {
  constexpr int kWords = Format::kBits * kRun / 32;
  wait_for_predecessor();
  uint32_t const index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= p.all_runs) return;
  uint32_t const row = p.runs_of_row(index), column = (index - row * p.runs_of_row.divisor) * kRun;
  uint32_t words[kWords];
  load_codes<kAligned>(p.in + row * p.in_stride + column / 8 * Format::kBits, words);
  uint32_t const group = column / Format::kGroup;
  uint8_t const byte = p.scales[p.tiles == 0 ? row * p.scale_stride + group : swizzled_offset(row, group, p.tiles)];
  float const global_scale = Format::kHasGlobalScale ? *p.global_scale : 1.0f;
  float values[kRun];
  decode<Format>(words, scale_value<Format>(byte), global_scale, values);
  store_values<kAligned>(static_cast<Out*>(p.out) + row * p.out_stride, column, p.hidden, values);
}

template <class Variant, class Out, class Format>
int32_t block_dequant(gemmill_quant_args const& x, gemmill_launch const& how) {
  if (x.rows == 0 || x.hidden == 0) return cudaSuccess;
  if (x.hidden % Format::kGroup != 0) return GEMMILL_CANNOT_IMPLEMENT;
  int64_t const runs_of_row = x.hidden / kRun, tiles = x.is_swizzled ? ceil_divide(x.hidden / Format::kGroup, 4) : 0;
  constexpr int64_t kBytesOfLoad = Format::kBits == 8 ? 16 : 4;
  bool const aligned = x.in_stride % kBytesOfLoad == 0 && is_aligned(x.in, kBytesOfLoad) &&
                       x.out_stride % kChunkElements<Out> == 0 && is_aligned(x.out, 16);
  int64_t const slice = kMostChunks / runs_of_row / 128 * 128;  // of whole tiles
  if (slice == 0) return GEMMILL_CANNOT_IMPLEMENT;
  for (int64_t row = 0; row < x.rows; row += slice) {
    int64_t const rows = x.rows - row < slice ? x.rows - row : slice;
    BlockDequantParams const p{
        static_cast<uint8_t const*>(x.in) + row * x.in_stride,
        static_cast<Out*>(x.out) + row * x.out_stride,
        static_cast<uint8_t const*>(x.scales) + row * (x.is_swizzled ? tiles * 4 : x.scales_stride),
        x.global_scale,
        x.hidden, x.in_stride, x.out_stride, x.scales_stride,
        static_cast<uint32_t>(tiles), static_cast<uint32_t>(rows * runs_of_row),
        FastDivision(static_cast<uint32_t>(runs_of_row)),
    };
    constexpr int kThreads = kBlockDequantThreads<Format>;
    int64_t const ctas = ceil_divide(p.all_runs, kThreads);
    int32_t const error = aligned ? launch<&block_dequant_kernel<Variant, Out, Format, true>>(p, ctas, kThreads, how)
                                  : launch<&block_dequant_kernel<Variant, Out, Format, false>>(p, ctas, kThreads, how);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace gemmill::quant
