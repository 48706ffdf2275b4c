// Queries that meet centroids and signs: rotated, and projected by S, once for all slices of a sequence's tokens. A block of attention
// would read S, 64 KiB, once for each of its rows. Here a block makes a row of S and keeps it in registers, so S is in no memory.
//
// They lie behind the slices' sums as f16, [batch, KV heads, flat rows, parts, d].
#pragma once

#include "kv_cache/shared/projection.cuh"
#include "kv_cache/slots/slot_shape.cuh"

namespace gemmill::kv_cache {

constexpr int kSlotQueryThreads = 128, kSlotQueryRows = 128;  // rows that meet a block's row of S
constexpr int kTurnedRows = 16;                               // rows that a block rotates

// Where a row of queries begins. Rows are counted through batch, KV heads and flat rows.
template <class Shape>
__device__ __forceinline__ int64_t slot_query(SlotParams<Shape> const& params, uint32_t index) {
  auto const& args = params.args;
  uint32_t const group = params.group, rows = static_cast<uint32_t>(args.rows) * group, heads = static_cast<uint32_t>(args.kv_heads);
  uint32_t const of_heads = index / rows, flat = index % rows;
  return of_heads / heads * args.q_batch_stride + flat / group * args.q_row_stride + (of_heads % heads * group + flat % group) * args.q_head_stride;
}

// Grid: of each `kSlotQueryRows` rows a block for each row of S, and then blocks that rotate. A lane knows the place of one of its warp's rows.
template <class Variant, class Element, class Shape>
__global__ void __launch_bounds__(kSlotQueryThreads) project_slot_queries(__grid_constant__ SlotParams<Shape> const params) {
  constexpr int kHeadDim = Shape::kHeadDim, kOwn = kHeadDim / 32, kWarps = kSlotQueryThreads / 32;
  constexpr uint32_t kBlocks = kHeadDim + kSlotQueryRows / kTurnedRows;
  static_assert(kHeadDim == kSlotQueryThreads && kSlotQueryRows == kSlotQueryThreads, "A thread makes an entry, and a lane has a row.");
  extern __shared__ __align__(128) uint8_t shared[];
  float* const entries = reinterpret_cast<float*>(shared);
  auto const& args = params.args;
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, which = static_cast<int>(blockIdx.x % kBlocks);
  uint32_t const all = static_cast<uint32_t>(args.batch * args.kv_heads * args.rows) * params.group, first = blockIdx.x / kBlocks * kSlotQueryRows;
  Element const* const q = static_cast<Element const*>(args.q);
  if (which < kHeadDim) entries[threadIdx.x] = entry_of(params.projection, which * kHeadDim + static_cast<int>(threadIdx.x));
  __syncthreads();
  wait_for_predecessor();
  if (which >= kHeadDim) {
    uint32_t const begin = first + (which - kHeadDim) * kTurnedRows, end = min(begin + kTurnedRows, all);
    for (uint32_t row = begin + warp; row < end; row += kWarps) {
      Element const* const from = q + slot_query(params, row) + lane;
      float y[kOwn];
#pragma unroll
      for (int k = 0; k < kOwn; ++k) y[k] = to_float(from[32 * k]);
      turn<kHeadDim>(y, Shape::Keys::kRotation, params.signs);
      __half* const to = params.queries + static_cast<int64_t>(row) * Shape::Keys::kParts * kHeadDim + lane;
#pragma unroll
      for (int k = 0; k < kOwn; ++k) to[32 * k] = to_element<__half>(y[k] * kInverseRoot<kHeadDim>);
    }
    return;
  }
  float factor[kOwn], own = 0.0f;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) factor[k] = entries[32 * k + lane];
  uint32_t const row = first + lane * kWarps + warp;
  int64_t const place = row < all ? slot_query(params, row) : 0;
  int const count = static_cast<int>(min((all - first + kWarps - 1 - warp) / kWarps, 32u));
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    Element const* const from = q + __shfl_sync(0xFFFFFFFFu, place, i) + lane;
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) sum = __fmaf_rn(factor[k], to_float(from[32 * k]), sum);
    sum = sum_of_warp(sum);
    own = i == lane ? sum : own;
  }
  if (row < all) params.queries[(static_cast<int64_t>(row) * Shape::Keys::kParts + 1) * kHeadDim + which] = to_element<__half>(own);
}

// Those of the block's heads and rows to shared memory, [heads][rows][parts][d]; zeros where no row is.
template <class Shape>
__device__ __forceinline__ void copy_slot_queries(SlotParams<Shape> const& params, SlotPlace const& at, __half* queries) {
  constexpr int kPieces = Shape::Keys::kParts * Shape::kHeadDim / 8;  // of 16 bytes, of a row
  int const rows = static_cast<int>(params.args.rows * params.group), first_row = static_cast<int>(at.first_row());
  uint4 const* const from = reinterpret_cast<uint4 const*>(params.queries);
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
  int64_t const groups = (params.args.batch * params.args.rows * params.args.heads + kSlotQueryRows - 1) / kSlotQueryRows;
  int64_t const blocks = groups * (Shape::kHeadDim + kSlotQueryRows / kTurnedRows);
  LaunchShape const shape{dim3(static_cast<unsigned>(blocks)), dim3(kSlotQueryThreads), dim3(1), kSlotQueryThreads * 4};
  return launch_kernel<project_slot_queries<Variant, Element, Shape>>(shape, how, parameters);
}

}  // namespace gemmill::kv_cache
