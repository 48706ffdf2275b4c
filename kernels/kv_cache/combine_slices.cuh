// The slices of an attention to one result, in their order, so that it does not depend on which block ran first.
#pragma once

#include "core/launch.cuh"
#include "core/programmatic.cuh"
#include "kv_cache/abi.h"
#include "kv_cache/elements.cuh"
#include "kv_cache/rotation.cuh"

namespace gemmill::kv_cache {

constexpr int kRowsOfTile = 8;  // the tensor core's columns; tiles have as many rows, or twice: query rows times query heads of a KV head
constexpr float kNothing = -1e30f;  // a running maximum before any token: finite, so that differences are
constexpr float kLog2E = 1.4426950408889634f;
constexpr int kCombineThreads = 128;

// What slices leave: [batch, kv_heads, tiles, slices, rows of a tile], in the rotated basis.
template <int kHeadDim>
struct Partial {
  float* out;         // and [head dim]: not divided by the sum
  float2* max_sum;    // the maximum in units of log 2, and the sum

  static int64_t bytes(int64_t rows) { return rows * (kHeadDim + 2) * 4; }
  static Partial at(void* workspace, int64_t rows) {
    float* const begin = static_cast<float*>(workspace);
    return {begin, reinterpret_cast<float2*>(begin + rows * kHeadDim)};
  }
};

template <int kHeadDim>
struct CombineParams {
  gemmill_kv_attention_args args;
  Partial<kHeadDim> partial;
  Signs<kHeadDim> signs;
  int tiles;
  int slices;
  int tile_rows;
  int group;  // query heads of a KV head
};

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, distance);
  return x;
}

__device__ __forceinline__ float largest_of_warp(float x) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, distance));
  return x;
}

// A warp takes a row: out = D H y / sqrt(d). Lanes hold the states of 32 slices at a time. Grid: rows of all tiles over four.
template <class Variant, class Element, int kHeadDim>
__global__ void __launch_bounds__(kCombineThreads) combine_slices(__grid_constant__ CombineParams<kHeadDim> const params) {
  constexpr int kOwn = kHeadDim / 32;
  wait_for_predecessor();
  auto const& args = params.args;
  int const lane = threadIdx.x % 32, rows = params.tile_rows;
  constexpr uint32_t kWarps = kCombineThreads / 32;
  uint32_t const blocks = rows / kWarps, tiles = params.tiles, heads = static_cast<uint32_t>(args.kv_heads);
  uint32_t const of_tile = blockIdx.x / blocks, of_heads = of_tile / tiles;
  int64_t const tile = of_tile, batch = of_heads / heads, kv_head = of_heads % heads;
  int const row_of_tile = static_cast<int>(blockIdx.x % blocks * kWarps + threadIdx.x / 32);
  int64_t const group = params.group, flat = static_cast<int64_t>(of_tile % tiles) * rows + row_of_tile;
  if (batch >= args.batch || flat >= args.rows * group) return;
  int64_t const row = flat / group, head = kv_head * group + flat % group;

  int64_t const first = tile * params.slices * rows + row_of_tile;
  float const sink = args.sinks == nullptr ? -INFINITY : args.sinks[head] * kLog2E;
  float largest = fmaxf(kNothing, sink), sum = exp2f(sink - largest), y[kOwn] = {};
  for (int begin = 0; begin < params.slices; begin += 32) {
    bool const exists = begin + lane < params.slices;
    float2 const state = exists ? params.partial.max_sum[first + (begin + lane) * rows] : make_float2(kNothing, 0.0f);
    float const before = largest;
    largest = fmaxf(largest, largest_of_warp(state.x));
    float const shrink = exp2f(before - largest), own = exp2f(state.x - largest);
    sum = sum * shrink + sum_of_warp(own * state.y);
#pragma unroll
    for (float& of_element : y) of_element *= shrink;
    int const count = min(32, params.slices - begin);
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
      float const share = __shfl_sync(0xFFFFFFFFu, own, i);
      float const* const out = params.partial.out + (first + (begin + i) * rows) * kHeadDim + lane;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) y[j] += share * out[32 * j];
    }
  }
  bool const sees_nothing = sum == 0.0f;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) y[j] = sees_nothing ? 0.0f : y[j] / sum;
  if (args.seed >= 0) {
    hadamard_of_warp<kHeadDim>(y);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) y[j] *= params.signs(32 * j + lane) ? -kInverseRoot<kHeadDim> : kInverseRoot<kHeadDim>;
  }
  Element* const out = static_cast<Element*>(args.out) + ((batch * args.rows + row) * args.heads + head) * args.out_stride;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) out[32 * j + lane] = to_element<Element>(y[j]);
  if (lane == 0 && args.lse != nullptr) {
    args.lse[(batch * args.heads + head) * args.rows + row] = sees_nothing ? -INFINITY : (largest + log2f(sum)) / kLog2E;
  }
}

}  // namespace gemmill::kv_cache
