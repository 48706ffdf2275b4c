// Queries that meet centroids and signs: rotated, and projected by S, once for all slices of a sequence's tokens. A block of attention
// would read S, 64 KiB, once for each of its rows.
//
// They lie behind S and its transpose as f16, [batch, KV heads, flat rows, parts, d].
#pragma once

#include "kv_cache/slot_shape.cuh"

namespace gemmill::kv_cache {

constexpr int kSlotQueryThreads = 128;

template <class Shape>
__device__ __forceinline__ __half* projected_queries(SlotParams<Shape> const& params) {
  return reinterpret_cast<__half*>(const_cast<float*>(params.projection.columns + Shape::kHeadDim * Shape::kHeadDim));
}

// A warp sums a part of the products by S, and the parts are added in the warps' order. Grid: a block a row.
template <class Variant, class Element, class Shape>
__global__ void __launch_bounds__(kSlotQueryThreads, 4) project_slot_queries(__grid_constant__ SlotParams<Shape> const params) {
  constexpr int kHeadDim = Shape::kHeadDim, kOwn = kHeadDim / 32, kWarps = kSlotQueryThreads / 32;
  static_assert(kHeadDim == kSlotQueryThreads && kOwn == kWarps, "A warp takes 32 products of each sum, a thread an element.");
  extern __shared__ __align__(128) uint8_t shared[];
  float(*const sums)[kHeadDim] = reinterpret_cast<float(*)[kHeadDim]>(shared);
  auto const& args = params.args;
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t const rows = static_cast<uint32_t>(args.rows) * params.group, of_heads = blockIdx.x / rows, heads = static_cast<uint32_t>(args.kv_heads);
  int64_t const flat = blockIdx.x % rows, batch = of_heads / heads, head = of_heads % heads * params.group + flat % params.group;
  wait_for_predecessor();
  Element const* const from = static_cast<Element const*>(args.q) + batch * args.q_batch_stride + flat / params.group * args.q_row_stride + head * args.q_head_stride;
  __half* const to = projected_queries(params) + static_cast<int64_t>(blockIdx.x) * Shape::Keys::kParts * kHeadDim;
  if (warp == 0) {
    float y[kOwn];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) y[k] = to_float(from[32 * k + lane]);
    turn<kHeadDim>(y, Shape::Keys::kRotation, params.signs);
#pragma unroll
    for (int k = 0; k < kOwn; ++k) to[32 * k + lane] = to_element<__half>(y[k] * kInverseRoot<kHeadDim>);
  }
  float const own = to_float(from[32 * warp + lane]);
  float sum[kOwn] = {};
#pragma unroll 8
  for (int i = 0; i < 32; ++i) {
    float const factor = __shfl_sync(0xFFFFFFFFu, own, i);
    float const* const row = params.projection.columns + (32 * warp + i) * kHeadDim + lane;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) sum[k] += factor * row[32 * k];
  }
#pragma unroll
  for (int k = 0; k < kOwn; ++k) sums[warp][32 * k + lane] = sum[k];
  __syncthreads();
  float all = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) all += sums[w][threadIdx.x];
  to[kHeadDim + threadIdx.x] = to_element<__half>(all);
}

// Those of the block's heads and rows to shared memory, [heads][rows][parts][d]; zeros where no row is.
template <class Shape>
__device__ __forceinline__ void copy_slot_queries(SlotParams<Shape> const& params, SlotBlock const& at, __half* queries) {
  constexpr int kPieces = Shape::Keys::kParts * Shape::kHeadDim / 8;  // of 16 bytes, of a row
  int const rows = static_cast<int>(params.args.rows * params.group), first_row = static_cast<int>(at.first_row());
  uint4 const* const from = reinterpret_cast<uint4 const*>(projected_queries(params));
  for (int i = threadIdx.x; i < params.heads * Shape::kRows * kPieces; i += 32 * kSlotConsumers) {
    int const row = i / kPieces % Shape::kRows, head = i / kPieces / Shape::kRows, flat = first_row + row;
    int64_t const at_row = (at.batch * params.args.kv_heads + at.first_head + head) * rows + flat;
    reinterpret_cast<uint4*>(queries)[i] = flat < rows ? from[at_row * kPieces + i % kPieces] : make_uint4(0, 0, 0, 0);
  }
}

// Host code. Bytes of a call's queries.
template <class Shape>
int64_t slot_query_bytes(gemmill_kv_packed_attention_args const& args) {
  return args.batch * args.rows * args.heads * Shape::Keys::kParts * Shape::kHeadDim * static_cast<int64_t>(sizeof(__half));
}

template <class Variant, class Element, class Shape>
int32_t launch_slot_queries(SlotParams<Shape>& params, gemmill_launch const& how) {
  void* parameters[] = {&params};
  int64_t const rows = params.args.batch * params.args.rows * params.args.heads;
  LaunchShape const shape{dim3(static_cast<unsigned>(rows)), dim3(kSlotQueryThreads), dim3(1), kSlotQueryThreads / 32 * Shape::kHeadDim * 4};
  return launch_kernel<project_slot_queries<Variant, Element, Shape>>(shape, how, parameters);
}

}  // namespace gemmill::kv_cache
