// Dynamic quantisation with one scale, and perhaps zero point, for the tensor. A tensor that fits into the registers of one cluster is done by
// one kernel, as a single row. Others take two: extents of slices into the workspace, then codes; the second starts from
// the end, which the first has left in L2.
#pragma once

#include "quant/extent.cuh"
#include "quant/token_quant.cuh"

namespace gemmill::quant {

inline constexpr int kTensorExtentThreads = 1024;
inline constexpr int kTensorCodesThreads = 256;
inline constexpr int kTensorExtentCtasOfSm = 2;
template <class Extent>
inline constexpr int kMostTensorExtents = gemmill_tensor_quant_workspace_bytes / sizeof(Extent);
// Chunks that the largest cluster keeps, 4 a thread.
inline constexpr int kMostTensorCluster = 16;
inline constexpr int64_t kMostClusterChunks = kMostTensorCluster * kMostTokenQuantThreads * 4;

template <class Extent>
struct TensorQuantParams {
  void const* in;
  uint8_t* out;
  float* scale;
  int32_t* azp;
  Extent* extents;
  int64_t hidden, in_stride, out_stride, chunks;
  uint32_t extents_count, first_extent;
  FastDivision chunks_per_row;
  float least_step;  // of asymmetric codes
};

template <class Variant, class In, class Coding, bool kAligned>
__global__ void __launch_bounds__(kTensorExtentThreads, kTensorExtentCtasOfSm)
    tensor_extent_kernel(TensorQuantParams<typename Coding::Extent> const p) {
  using Extent = typename Coding::Extent;
  constexpr int kElements = kChunkElements<In>;
  constexpr int kUnroll = kAligned ? 8 : 1;
  __shared__ RowReduction<Extent, false> reduction;
  int64_t const step = int64_t{gridDim.x} * kTensorExtentThreads;
  int64_t const first = blockIdx.x * kTensorExtentThreads + threadIdx.x;
  RawExtent<In, Extent> extent;
  if (first < p.chunks) {
    uint32_t const row = p.chunks_per_row(static_cast<uint32_t>(first));
    int64_t const column = (first - int64_t{row} * p.chunks_per_row.divisor) * kElements;
    fetch_to_l2(static_cast<In const*>(p.in) + row * p.in_stride + column);
  }
  wait_for_predecessor();
  for (int64_t base = first; base < p.chunks; base += step * kUnroll) {
    uint4 chunks[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      uint32_t const index = static_cast<uint32_t>(base + u * step < p.chunks ? base + u * step : base);
      uint32_t const row = p.chunks_per_row(index);
      int64_t const column = int64_t{index - row * p.chunks_per_row.divisor} * kElements;
      chunks[u] = load_chunk<kAligned, false>(static_cast<In const*>(p.in) + row * p.in_stride, column, p.hidden);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) extent.extend(chunks[u]);
  }
  Extent const whole = reduction(extent.value(), typename Coding::Reduction{});
  if (threadIdx.x == 0) p.extents[p.first_extent + blockIdx.x] = whole;
}

template <class Variant, class In, class Coding, int kUnroll, bool kAligned>
__global__ void __launch_bounds__(kTensorCodesThreads) tensor_codes_kernel(TensorQuantParams<typename Coding::Extent> const p) {
  using Extent = typename Coding::Extent;
  using Reduction = typename Coding::Reduction;
  constexpr int kElements = kChunkElements<In>;
  uint32_t const first = blockIdx.x * (kTensorCodesThreads * kUnroll) + threadIdx.x;
  uint4 chunks[kUnroll];
  uint32_t rows[kUnroll];
  int64_t columns[kUnroll];
  wait_for_predecessor();
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    int64_t const backward = p.chunks - 1 - (int64_t{first} + u * kTensorCodesThreads);
    chunks[u] = make_uint4(0, 0, 0, 0);
    if (backward < 0) continue;
    uint32_t const index = static_cast<uint32_t>(backward);
    rows[u] = p.chunks_per_row(index);
    columns[u] = int64_t{index - rows[u] * p.chunks_per_row.divisor} * kElements;
    chunks[u] = load_chunk<kAligned, false>(static_cast<In const*>(p.in) + rows[u] * p.in_stride, columns[u], p.hidden);
  }
  // Every warp reduces the extents itself, while its chunks are on their way. An empty tensor has none: its extent is 0.
  Extent extent = p.extents_count > 0 ? Reduction::identity() : Extent{};
  for (uint32_t i = threadIdx.x % 32; i < p.extents_count; i += 32) extent = Reduction{}(extent, p.extents[i]);
  Coding const coding(reduce_lanes<32>(extent, Reduction{}), FLT_MAX, p.least_step);
  if (blockIdx.x == 0 && threadIdx.x == 0) coding.store(p.scale, p.azp, 0);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    float values[kElements];
    unpack<In>(chunks[u], values);
    uint32_t words[kElements / 4];
    coding.encode(values, words);
    if (int64_t{first} + u * kTensorCodesThreads < p.chunks) {
      store_codes<kAligned, kElements>(p.out + rows[u] * p.out_stride, columns[u], p.hidden, words);
    }
  }
}

template <class Variant, class In, class Coding, int kUnroll, bool kAligned>
int32_t launch_tensor_codes(TensorQuantParams<typename Coding::Extent> const& p, gemmill_launch const& how) {
  int64_t const ctas = ceil_divide(p.chunks, kTensorCodesThreads * kUnroll);  // none: the scale is still to be written
  return launch<&tensor_codes_kernel<Variant, In, Coding, kUnroll, kAligned>>(p, ctas > 0 ? ctas : 1, kTensorCodesThreads, how);
}

template <class Variant, class In, class Coding, bool kAligned>
int32_t tensor_quant_in_two(gemmill_quant_args const& x, int64_t per_row, gemmill_launch const& how) {
  using Extent = typename Coding::Extent;
  bool const empty = x.rows == 0 || per_row == 0;  // the scale is still to be written
  int64_t const slice = empty ? 1 : kMostChunks / per_row;
  int64_t const slices = empty ? 1 : ceil_divide(x.rows, slice);
  if (slices > kMostTensorExtents<Extent>) return GEMMILL_CANNOT_IMPLEMENT;
  auto const params = [&](int64_t i, int64_t extents) {
    int64_t const row = i * slice;
    int64_t const rows = x.rows - row < slice ? x.rows - row : slice;
    return TensorQuantParams<Extent>{static_cast<In const*>(x.in) + row * x.in_stride,
                             static_cast<uint8_t*>(x.out) + row * x.out_stride,
                             static_cast<float*>(x.scales), x.azp, static_cast<Extent*>(how.workspace),
                             x.hidden, x.in_stride, x.out_stride, rows * per_row,
                             static_cast<uint32_t>(extents * slices), static_cast<uint32_t>(i * extents),
                             FastDivision(static_cast<uint32_t>(per_row > 0 ? per_row : 1)), least_step_of(x.hidden)};
  };
  int64_t const chunks = (x.rows < slice ? x.rows : slice) * per_row;
  int64_t const wanted = ceil_divide(chunks, kTensorExtentThreads);
  int64_t const resident = int64_t{kTensorExtentCtasOfSm} * how.sm_count;
  int64_t const room = kMostTensorExtents<Extent> / slices;
  int64_t const most = room < resident ? room : resident;
  int64_t const extents = wanted < most ? wanted : most;  // none of an empty tensor
  for (int64_t i = 0; i < slices && extents > 0; ++i) {
    int32_t const error = launch<&tensor_extent_kernel<Variant, In, Coding, kAligned>>(params(i, extents), extents, kTensorExtentThreads, how);
    if (error != cudaSuccess) return error;
  }
  for (int64_t i = slices - 1; i >= 0; --i) {
    TensorQuantParams<Extent> const p = params(i, extents);
    int32_t const error = !kAligned                          ? launch_tensor_codes<Variant, In, Coding, 1, false>(p, how)
                          : is_large(p.chunks, how.sm_count) ? launch_tensor_codes<Variant, In, Coding, 4, true>(p, how)
                                                             : launch_tensor_codes<Variant, In, Coding, 2, true>(p, how);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <class Variant, class In, class Coding>
int32_t tensor_quant(gemmill_quant_args const& x, gemmill_launch const& how) {
  int64_t const per_row = ceil_divide(x.hidden, kChunkElements<In>);
  if (per_row > kMostChunks) return GEMMILL_CANNOT_IMPLEMENT;
  bool const aligned = rows_are_aligned<In>(x.in, x.in_stride, x.out, x.out_stride, x.hidden);
  bool const dense = x.rows == 1 || (x.in_stride == x.hidden && x.out_stride == x.hidden);
  int64_t const chunks = x.rows * per_row;
  if (aligned && dense && chunks > 0 && chunks <= kMostClusterChunks) {
    TokenQuantParams const p{x.in, static_cast<uint8_t*>(x.out), static_cast<float*>(x.scales), x.azp, nullptr, nullptr, x.rows * x.hidden, 0, 0,
                             static_cast<uint32_t>(chunks), 1, 0, least_step_of(x.hidden)};
    int const most_ctas = chunks > kPortableCluster * kMostTokenQuantThreads ? kMostTensorCluster : kPortableCluster;
    TokenQuantShape const shape = token_quant_shape(how, 1, chunks, 1, true, most_ctas);
    int32_t const error =
        shape.chunks == 1   ? launch_token_quant<Variant, In, Identity, Coding, 1, true, true>(p, shape, 1, how)
        : shape.chunks == 2 ? launch_token_quant<Variant, In, Identity, Coding, 2, true, true>(p, shape, 1, how)
                            : launch_token_quant<Variant, In, Identity, Coding, 4, true, true>(p, shape, 1, how);
    if (error != cudaErrorInvalidClusterSize) return error;  // which a part of a device may answer to the largest
  }
  return aligned ? tensor_quant_in_two<Variant, In, Coding, true>(x, per_row, how) : tensor_quant_in_two<Variant, In, Coding, false>(x, per_row, how);
}

}  // namespace gemmill::quant
