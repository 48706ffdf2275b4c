// The sums of a slice: warps leave their own in shared memory, and either the block's warps join them, or the producer of the group that
// took the slice.
#pragma once

#include "kv_cache/decode_tiles.cuh"

namespace gemmill::kv_cache {

// A warp's sums of up to `kCount` rows from `first` on to shared memory, [warps][kCount][kSumStride], and all rows' states, [warps][rows].
// `warp` is its number among those that share a slice.
template <class Shape, int kCount>
__device__ __forceinline__ void leave_sums(Running<Shape> const& running, int warp, int first, int end, float* sums, float2* states) {
  constexpr int kOwn = Shape::kShareDim / 8;
  int const lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < 2 * Shape::kRowTiles; ++i) {
    int const r = i / 2, row = i % 2, at = 8 * r + 2 * t + row;
    if (first == 0) {
      float sum = running.sum[r][row];
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
      if (g == 0) states[warp * Shape::kRows + at] = make_float2(running.max[r][row], sum);
    }
    if (at < first || at >= end) continue;
    float* const to = sums + (warp * kCount + at - first) * Shape::kSumStride + kOwn * g;
#pragma unroll
    for (int j = 0; j < Shape::kSteps; j += 2) {
      float const(&low)[4] = running.out[r][j], (&high)[4] = running.out[r][j + 1];
      reinterpret_cast<float4*>(to)[j / 2] = make_float4(low[row], low[2 + row], high[row], high[2 + row]);
    }
  }
}

// The sums of `kWarps` warps of those rows to one, in the warps' order, and to memory, four elements a thread. `thread` is its number among
// `kThreads`. Products and sums are fused by name: every copy of this code gives the same bits.
template <class Shape, int kWarps, int kCount, int kThreads = 32 * kWarps>
__device__ __forceinline__ void join_sums(Partial<Shape::kValueDim> const& partial, int thread, int64_t to, int first, int end,
                                          float const* sums, float2 const* states) {
  constexpr int kQuarters = Shape::kValueDim / 4, kRows = Shape::kRows, kShares = Shape::kShares, kShareDim = Shape::kShareDim;
  constexpr int kAtOnce = kThreads == 32 * kWarps ? kWarps : 1;  // a producer has few registers
  for (int i = thread; i < (end - first) * kQuarters; i += kThreads) {
    int const row = i / kQuarters, quarter = i % kQuarters, which = 4 * quarter / kShareDim;
    float2 const* const of_row = states + first + row;
    float const* const own = sums + (which * kCount + row) * Shape::kSumStride + 4 * quarter % kShareDim;
    float largest = kNothing, sum = 0.0f;
    float4 out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll kAtOnce
    for (int w = 0; w < kWarps; w += kShares) largest = fmaxf(largest, of_row[w * kRows].x);
#pragma unroll kAtOnce
    for (int w = 0; w < kWarps; w += kShares) {
      float2 const state = of_row[(w + which) * kRows];
      float4 const part = *reinterpret_cast<float4 const*>(own + w * kCount * Shape::kSumStride);
      float const share = power_of_two(state.x - largest);
      sum = __fmaf_rn(share, state.y, sum);
      out.x = __fmaf_rn(share, part.x, out.x), out.y = __fmaf_rn(share, part.y, out.y);
      out.z = __fmaf_rn(share, part.z, out.z), out.w = __fmaf_rn(share, part.w, out.w);
    }
    reinterpret_cast<float4*>(partial.out + (to + first) * Shape::kValueDim)[i] = out;
    if (quarter == 0) partial.max_sum[to + first + row] = make_float2(largest, sum);
  }
}

// Where warps of a group leave the sums of a slice, and its producer joins them while they go on. Two barriers of the group say that sums
// are there, and that their room is free.
template <class Shape>
struct SliceSums {
  static constexpr int kWarps = Shape::kGroupWarps;
  float2* states;
  float* sums;
  uint64_t *left, *joined;
  TileSums tile;

  __device__ __forceinline__ SliceSums(uint8_t* shared, int group)
      : states(reinterpret_cast<float2*>(shared + Shape::kEnd) + group * kWarps * Shape::kRows),
        sums(reinterpret_cast<float*>(shared + Shape::kSums) + group * kWarps * Shape::kRoundRows * Shape::kSumStride),
        left(reinterpret_cast<uint64_t*>(shared + Shape::kSumBarriers) + 2 * group), joined(left + 1),
        tile(*reinterpret_cast<TileSums const*>(shared + Shape::kTileSums)) {}

  // A warp's sums, in rounds of `kRoundRows` rows. `phase` is that of the room, which is free at first: 1. Returns the next.
  __device__ __forceinline__ int leave(Running<Shape> const& running, int warp, int phase) const {
    for (int first = 0; first < tile.rows; first += Shape::kRoundRows, phase ^= 1) {
      wait(joined, phase);
      leave_sums<Shape, Shape::kRoundRows>(running, warp, first, min(first + Shape::kRoundRows, tile.rows), sums, states);
      __syncwarp();
      if (threadIdx.x % 32 == 0) arrive(left);
    }
    return phase;
  }
  // Those of all warps to memory, by one warp. `phase` begins at 0.
  __device__ __forceinline__ void join(Partial<Shape::kValueDim> const& partial, int slice, int& phase) const {
    int const lane = threadIdx.x % 32;
    for (int first = 0; first < tile.rows; first += Shape::kRoundRows, phase ^= 1) {
      int const end = min(first + Shape::kRoundRows, tile.rows);
      wait(left, phase);
      join_sums<Shape, kWarps, Shape::kRoundRows, 32>(partial, lane, (tile.first + slice) * Shape::kRows, first, end, sums, states);
      __syncwarp();
      if (lane == 0) arrive(joined);
    }
  }
};

}  // namespace gemmill::kv_cache
