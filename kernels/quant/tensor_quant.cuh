// Dynamic quantisation with one scale for the tensor. A tensor that fits into the registers of one cluster is done by
// one kernel, as a single row. Others take two: maxima of slices into the workspace, then codes; the second starts from
// the end, where the first has left the input in L2.
#pragma once

#include "quant/extent.cuh"
#include "quant/token_quant.cuh"

namespace gemmill::quant {

inline constexpr int kTensorQuantThreads = 512;
inline constexpr int kMostTensorQuantCtas = gemmill_tensor_quant_workspace_bytes / sizeof(float);
inline constexpr int kTensorQuantUnroll = 4;
// Chunks that one cluster of 8 CTAs keeps, 4 a thread.
inline constexpr int64_t kMostClusterChunks = 8 * kMostTokenQuantThreads * 4;
// Chunks at the end of the tensor that the first kernel leaves in L2 for the second. An H200 has 50 MB, of which each
// half of the chip sees what is read through its own part.
inline constexpr int64_t kChunksLeftInL2 = (int64_t{24} << 20) / 16;

struct TensorQuantParams {
  void const* in;
  uint8_t* out;
  float* scale;
  float* maxima;
  int64_t hidden, in_stride, out_stride, chunks;
  uint32_t maxima_count, first_maximum;
  FastDivision chunks_per_row;
};

template <class Variant, class In, bool kAligned>
__global__ void __launch_bounds__(kTensorQuantThreads) tensor_maximum_kernel(TensorQuantParams const p) {
  constexpr int kElements = kChunkElements<In>;
  __shared__ RowReduction<float, false> reduction;
  uint32_t const step = gridDim.x * kTensorQuantThreads;
  uint64_t const read_once = evict_first(), read_again = evict_normal();
  RawExtent<In, float> extent;
  wait_for_predecessor();
  for (int64_t base = blockIdx.x * kTensorQuantThreads + threadIdx.x; base < p.chunks; base += int64_t{step} * kTensorQuantUnroll) {
    uint4 chunks[kTensorQuantUnroll];
#pragma unroll
    for (int u = 0; u < kTensorQuantUnroll; ++u) {
      uint32_t const index = static_cast<uint32_t>(base + u * int64_t{step} < p.chunks ? base + u * int64_t{step} : base);
      uint32_t const row = p.chunks_per_row(index);
      int64_t const column = int64_t{index - row * p.chunks_per_row.divisor} * kElements;
      uint64_t const policy = p.chunks - index > kChunksLeftInL2 ? read_once : read_again;
      chunks[u] = load_chunk<kAligned>(static_cast<In const*>(p.in) + row * p.in_stride, column, p.hidden, policy);
    }
#pragma unroll
    for (int u = 0; u < kTensorQuantUnroll; ++u) extent.extend(chunks[u]);
  }
  float const amax = reduction(extent.value(), Max{});
  if (threadIdx.x == 0) p.maxima[p.first_maximum + blockIdx.x] = amax;
}

template <class Variant, class In, class Out, bool kAligned>
__global__ void __launch_bounds__(kTensorQuantThreads) tensor_codes_kernel(TensorQuantParams const p) {
  constexpr int kElements = kChunkElements<In>;
  __shared__ RowReduction<float, false> reduction;
  uint32_t const step = gridDim.x * kTensorQuantThreads;
  wait_for_predecessor();
  float amax = 0.0f;
  for (uint32_t i = threadIdx.x; i < p.maxima_count; i += kTensorQuantThreads) amax = fmaxf(amax, p.maxima[i]);
  amax = reduction(amax, Max{});
  float const scale = fmaxf(scale_of<Out>(amax), Out::kSmallestScale);
  float const reciprocal = reciprocal_of(scale);
  uint64_t const policy = evict_first();
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.scale = scale;

  for (int64_t base = blockIdx.x * kTensorQuantThreads + threadIdx.x; base < p.chunks; base += int64_t{step} * kTensorQuantUnroll) {
    uint4 chunks[kTensorQuantUnroll];
    uint32_t rows[kTensorQuantUnroll];
    int64_t columns[kTensorQuantUnroll];
#pragma unroll
    for (int u = 0; u < kTensorQuantUnroll; ++u) {
      int64_t const forward = base + u * int64_t{step} < p.chunks ? base + u * int64_t{step} : base;
      uint32_t const index = static_cast<uint32_t>(p.chunks - 1 - forward);
      rows[u] = p.chunks_per_row(index);
      columns[u] = int64_t{index - rows[u] * p.chunks_per_row.divisor} * kElements;
      chunks[u] = load_chunk<kAligned>(static_cast<In const*>(p.in) + rows[u] * p.in_stride, columns[u], p.hidden, policy);
    }
#pragma unroll
    for (int u = 0; u < kTensorQuantUnroll; ++u) {
      float values[kElements];
      unpack<In>(chunks[u], values);
      uint32_t words[kElements / 4];
#pragma unroll
      for (int i = 0; i < kElements; i += 4) {
        words[i / 4] = encode4(__fmul_rn(values[i], reciprocal), __fmul_rn(values[i + 1], reciprocal),
                               __fmul_rn(values[i + 2], reciprocal), __fmul_rn(values[i + 3], reciprocal), Out{});
      }
      store_codes<kAligned, kElements>(p.out + rows[u] * p.out_stride, columns[u], p.hidden, words);
    }
  }
}

template <class Variant, class In, class Out, bool kAligned>
int32_t tensor_quant_in_two(gemmill_tensor_quant_args const& x, int64_t per_row) {
  int64_t const slice = x.rows == 0 ? 1 : kMostChunks / per_row;
  int64_t const slices = x.rows == 0 ? 1 : ceil_divide(x.rows, slice);
  if (slices > kMostTensorQuantCtas) return GEMMILL_CANNOT_IMPLEMENT;
  auto const params = [&](int64_t i, int64_t ctas) {
    int64_t const row = i * slice;
    int64_t const rows = x.rows - row < slice ? x.rows - row : slice;
    return TensorQuantParams{static_cast<In const*>(x.in) + row * x.in_stride,
                             static_cast<uint8_t*>(x.out) + row * x.out_stride,
                             x.scale, static_cast<float*>(x.workspace),
                             x.hidden, x.in_stride, x.out_stride, rows * per_row,
                             static_cast<uint32_t>(ctas * slices), static_cast<uint32_t>(i * ctas),
                             FastDivision(static_cast<uint32_t>(per_row > 0 ? per_row : 1))};
  };
  int64_t const chunks = (x.rows < slice ? x.rows : slice) * per_row;
  int64_t const wanted = ceil_divide(chunks, kTensorQuantThreads * kTensorQuantUnroll);
  int64_t const most = kMostTensorQuantCtas / slices < 3 * x.launch.sm_count ? kMostTensorQuantCtas / slices : 3 * x.launch.sm_count;
  int64_t const ctas = wanted < 1 ? 1 : wanted < most ? wanted : most;
  for (int64_t i = 0; i < slices; ++i) {
    int32_t const error = launch<&tensor_maximum_kernel<Variant, In, kAligned>>(params(i, ctas), ctas, kTensorQuantThreads, x.launch);
    if (error != cudaSuccess) return error;
  }
  for (int64_t i = slices - 1; i >= 0; --i) {
    int32_t const error = launch<&tensor_codes_kernel<Variant, In, Out, kAligned>>(params(i, ctas), ctas, kTensorQuantThreads, x.launch);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <class Variant, class In, class Out>
int32_t tensor_quant(gemmill_tensor_quant_args const& x) {
  int64_t const per_row = ceil_divide(x.hidden, kChunkElements<In>);
  if (per_row > kMostChunks) return GEMMILL_CANNOT_IMPLEMENT;
  bool const aligned = rows_are_aligned<In>(x.in, x.in_stride, x.out, x.out_stride, x.hidden);
  bool const dense = x.rows == 1 || (x.in_stride == x.hidden && x.out_stride == x.hidden);
  int64_t const chunks = x.rows * per_row;
  if (aligned && dense && chunks > 0 && chunks <= kMostClusterChunks) {
    TokenQuantParams const p{x.in, static_cast<uint8_t*>(x.out), x.scale, nullptr, nullptr, x.rows * x.hidden, 0, 0,
                             static_cast<uint32_t>(chunks)};
    TokenQuantShape const shape = token_quant_shape(x.launch, 1, chunks, 1);
    using Coding = TensorCoding<Out>;
    return shape.chunks == 1   ? launch_token_quant<Variant, In, Identity, Coding, 1, true, true>(p, shape, 1, x.launch)
           : shape.chunks == 2 ? launch_token_quant<Variant, In, Identity, Coding, 2, true, true>(p, shape, 1, x.launch)
                               : launch_token_quant<Variant, In, Identity, Coding, 4, true, true>(p, shape, 1, x.launch);
  }
  return aligned ? tensor_quant_in_two<Variant, In, Out, true>(x, per_row) : tensor_quant_in_two<Variant, In, Out, false>(x, per_row);
}

}  // namespace gemmill::quant
