// The slices of an attention to one result, in their order, so that it does not depend on which block ran first.
#pragma once

#include "core/launch.cuh"
#include "core/programmatic.cuh"
#include "kv_cache/abi.h"
#include "kv_cache/shared/elements.cuh"
#include "kv_cache/shared/rotation.cuh"
#include "kv_cache/slices.h"

namespace gemmill::kv_cache {

constexpr int kRowsOfTile = 8;  // the tensor core's columns; tiles have as many rows, or twice: query rows times query heads of a KV head
constexpr float kNothing = -1e30f;  // a running maximum before any token: finite, so that differences are
constexpr float kLog2E = 1.4426950408889634f;
constexpr int kCombineThreads = 128, kManyThreads = 256;

// The sums of slices: [batch, kv_heads, tiles, slices, rows of a tile], in the rotated basis.
template <int kHeadDim>
struct Partial {
  float* out;         // and [head dim]: not divided by the sum
  float2* max_sum;    // the maximum in units of log 2, and the sum; of a slice without tokens the sum is 0, and `out` has nothing

  static int64_t bytes(int64_t rows) { return rows * (kHeadDim + 2) * 4; }
  static Partial at(void* workspace, int64_t rows) {
    float* const begin = static_cast<float*>(workspace);
    return {begin, reinterpret_cast<float2*>(begin + rows * kHeadDim)};
  }
};

// The addresses of results, and the factors that take sums back to the values' basis.
template <int kHeadDim>
struct ResultParams {
  void* out;                // [batch, rows, heads, head dim], vectors at one stride
  float* lse;               // [batch, heads, rows]; null where nobody asks
  float const* sinks;       // [heads]; null for none
  int64_t batch, rows, heads, kv_heads, out_stride;
  Signs<kHeadDim> signs;
  bool rotates;
  float const* projection;  // S, [d][d], for separate sums of signs; null for none
};

template <int kHeadDim>
struct CombineParams {
  ResultParams<kHeadDim> result;
  Partial<kHeadDim> partial;
  int tiles;
  int slices;
  int tile_rows;
  int group;  // query heads of a KV head
  bool are_parts = false;  // slices are [parts of all sequences, kv_heads, tiles, rows of a tile], `slices` of each sequence if `dealt` is null
  int2 const* dealt = nullptr;  // [batch]: the number of a sequence's first part and how many there are
};

// Where a row's slices are.
struct RowSlices {
  int64_t first, stride;
  int count;

  // `tile` is of a batch's KV heads' tiles, each of which has `parts` times its slices.
  template <class Params>
  __device__ __forceinline__ RowSlices(Params const& params, uint32_t tile, int64_t batch, int parts, int row) {
    int const rows = params.tile_rows;
    first = static_cast<int64_t>(tile) * parts * params.slices * rows + row, stride = rows, count = params.slices;
    if (!params.are_parts) return;
    int2 const own = params.dealt == nullptr ? make_int2(static_cast<int>(batch) * params.slices, params.slices) : params.dealt[batch];
    uint32_t const tiles = static_cast<uint32_t>(params.result.kv_heads) * params.tiles;
    count = own.y, stride = static_cast<int64_t>(tiles) * rows, first = own.x * stride + static_cast<int64_t>(tile % tiles) * rows + row;
  }
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

// S y of a vector of a warp, by the rows of S^T, or S^T y by those of S: element 32 k + l is y[k] of lane l.
template <int kHeadDim>
__device__ __forceinline__ void projected_of_warp(float (&out)[kHeadDim / 32], float const* matrix, float const (&y)[kHeadDim / 32]) {
  constexpr int kOwn = kHeadDim / 32;
  int const lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) out[k] = 0.0f;
#pragma unroll 1
  for (int from = 0; from < 32; ++from) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      float const factor = __shfl_sync(0xFFFFFFFFu, y[i], from);
      float const* const row = matrix + (32 * i + from) * kHeadDim + lane;
#pragma unroll
      for (int k = 0; k < kOwn; ++k) out[k] += factor * row[32 * k];
    }
  }
}

// The maximum of a row's scores in units of log 2, and the sum of its weights relative to that.
struct RowState {
  float largest, sum;
  __device__ __forceinline__ RowState(float const* sinks, int64_t head) {
    float const sink = sinks == nullptr ? -INFINITY : sinks[head] * kLog2E;
    largest = fmaxf(kNothing, sink), sum = exp2f(sink - largest);
  }
};

// A warp's row to its result: divided, rotated back, rounded. `signs` are sums of signs, where there is a projection.
template <class Element, int kHeadDim>
__device__ __forceinline__ void finish_row(ResultParams<kHeadDim> const& result, int64_t batch, int64_t row, int64_t head,
                                           RowState const& state, float (&y)[kHeadDim / 32], float (&signs)[kHeadDim / 32]) {
  constexpr int kOwn = kHeadDim / 32;
  int const lane = threadIdx.x % 32;
  bool const sees_nothing = state.sum == 0.0f;
  if (result.rotates) {
    hadamard_of_warp<kHeadDim>(y);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) y[j] *= result.signs(32 * j + lane) ? -kInverseRoot<kHeadDim> : kInverseRoot<kHeadDim>;
  }
  if (result.projection != nullptr) {
    float projected[kOwn];
    projected_of_warp<kHeadDim>(projected, result.projection, signs);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) y[j] += projected[j];
  }
  Element* const out = static_cast<Element*>(result.out) + ((batch * result.rows + row) * result.heads + head) * result.out_stride;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) out[32 * j + lane] = to_element<Element>(sees_nothing ? 0.0f : y[j] / state.sum);
  if (lane == 0 && result.lse != nullptr) {
    result.lse[(batch * result.heads + head) * result.rows + row] =
        sees_nothing ? -INFINITY : (state.largest + log2f(state.sum)) / kLog2E;
  }
}

// How many slices' sums a warp loads at once, a power of two, of those for which a thread has registers.
constexpr int rounds_of_slices(int most) {
  int found = 2;
  while (found < 16 && 2 * found <= most) found *= 2;
  return found;
}

// Adds a row's slices in their order, `stride` rows apart. Lanes hold the states of 32 slices at a time, and sums of `kRound` slices are under
// way at once, the first of them together with the states.
template <int kHeadDim, int kRound>
__device__ __forceinline__ void add_slices(Partial<kHeadDim> const& partial, int64_t first, int slices, int64_t stride, RowState& state,
                                           float (&y)[kHeadDim / 32]) {
  constexpr int kOwn = kHeadDim / 32;
  static_assert(32 % kRound == 0, "Rounds of 32 slices are whole.");
  int const lane = threadIdx.x % 32;
  float loaded[kRound][kOwn];
  auto const load = [&](int from) {
#pragma unroll
    for (int i = 0; i < kRound; ++i) {
      float const* const out = partial.out + (first + (from + i) * stride) * kHeadDim + lane;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) loaded[i][j] = from + i < slices ? out[32 * j] : 0.0f;
    }
  };
  for (int begin = 0; begin < slices; begin += 32) {
    bool const exists = begin + lane < slices;
    float2 const of_slice = exists ? partial.max_sum[first + (begin + lane) * stride] : make_float2(kNothing, 0.0f);
    load(begin);
    float const before = state.largest;
    state.largest = fmaxf(state.largest, largest_of_warp(of_slice.x));
    float const shrink = exp2f(before - state.largest), own = exp2f(of_slice.x - state.largest);
    state.sum = state.sum * shrink + sum_of_warp(own * of_slice.y);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) y[j] *= shrink;
    unsigned const filled = __ballot_sync(0xFFFFFFFFu, of_slice.y != 0.0f);
    int const end = min(32, slices - begin);
    for (int from = 0;;) {
#pragma unroll
      for (int i = 0; i < kRound; ++i) {
        if (i % 4 == 0 && from + i >= end) break;
        float const share = __shfl_sync(0xFFFFFFFFu, own, from + i);
        bool const is_filled = (filled >> (from + i) & 1) != 0;
#pragma unroll
        for (int j = 0; j < kOwn; ++j) y[j] += share * (is_filled ? loaded[i][j] : 0.0f);
      }
      if ((from += kRound) >= end) break;
      load(begin + from);
    }
  }
}

// A warp takes a row: out = D H y / sqrt(d). Grid: rows of all tiles over four. With separate sums of signs, a tile has its slices twice.
template <class Variant, class Element, int kHeadDim>
__global__ void __launch_bounds__(kCombineThreads, 4) combine_slices(__grid_constant__ CombineParams<kHeadDim> const params) {
  constexpr int kOwn = kHeadDim / 32, kRound = rounds_of_slices(64 / kOwn);
  ResultParams<kHeadDim> const& result = params.result;
  int const rows = params.tile_rows, parts = result.projection == nullptr ? 1 : 2;
  constexpr uint32_t kWarps = kCombineThreads / 32;
  uint32_t const blocks = rows / kWarps, tiles = params.tiles, heads = static_cast<uint32_t>(result.kv_heads);
  uint32_t const of_tile = blockIdx.x / blocks, of_heads = of_tile / tiles;
  int64_t const batch = of_heads / heads, kv_head = of_heads % heads;
  int const row_of_tile = static_cast<int>(blockIdx.x % blocks * kWarps + threadIdx.x / 32);
  int64_t const group = params.group, flat = static_cast<int64_t>(of_tile % tiles) * rows + row_of_tile;
  if (batch >= result.batch || flat >= result.rows * group) return;
  int64_t const row = flat / group, head = kv_head * group + flat % group;
  wait_for_predecessor();
  RowSlices const slices(params, of_tile, batch, parts, row_of_tile);
  RowState state(result.sinks, head);
  float y[kOwn] = {}, signs[kOwn] = {};
  if (parts == 2) {
    RowState of_signs = state;
    add_slices<kHeadDim, kRound>(params.partial, slices.first + slices.count * slices.stride, slices.count, slices.stride, of_signs, signs);
  }
  add_slices<kHeadDim, kRound>(params.partial, slices.first, slices.count, slices.stride, state, y);
  finish_row<Element, kHeadDim>(result, batch, row, head, state, y, signs);
}

// The same by a block a row, where slices are many: each warp adds its share of them, one after the other, and then the warps' sums are
// added in their order. Slices of one round are one warp's. Grid: rows of all tiles. A bound on blocks an SM gives the compiler registers
// for a round under way: without one it took 32 and spilled.
template <class Variant, class Element, int kHeadDim>
__global__ void __launch_bounds__(kManyThreads, 2) combine_many_slices(__grid_constant__ CombineParams<kHeadDim> const params) {
  constexpr int kOwn = kHeadDim / 32, kWarps = kManyThreads / 32, kRound = rounds_of_slices(64 / kOwn);
  extern __shared__ __align__(128) uint8_t shared[];
  float* const sums = reinterpret_cast<float*>(shared);
  float2* const states = reinterpret_cast<float2*>(sums + kWarps * kHeadDim);
  ResultParams<kHeadDim> const& result = params.result;
  uint32_t const rows = params.tile_rows, tiles = params.tiles, heads = static_cast<uint32_t>(result.kv_heads);
  uint32_t const of_tile = blockIdx.x / rows, of_heads = of_tile / tiles;
  int64_t const batch = of_heads / heads, kv_head = of_heads % heads;
  int64_t const group = params.group, flat = static_cast<int64_t>(of_tile % tiles) * rows + blockIdx.x % rows;
  if (batch >= result.batch || flat >= result.rows * group) return;
  int64_t const row = flat / group, head = kv_head * group + flat % group;
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  wait_for_predecessor();
  RowSlices const slices(params, of_tile, batch, 1, static_cast<int>(blockIdx.x % rows));
  bool const has_one = slices.count <= kRound;
  if (has_one && warp > 0) return;
  int const share = has_one ? slices.count : (slices.count + kWarps - 1) / kWarps, begin = min(warp * share, slices.count);
  RowState state(warp == 0 ? result.sinks : nullptr, head);
  float y[kOwn] = {}, none[kOwn] = {};
  add_slices<kHeadDim, kRound>(params.partial, slices.first + begin * slices.stride, min(share, slices.count - begin), slices.stride, state, y);
  if (!has_one) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) sums[warp * kHeadDim + 32 * j + lane] = y[j];
    if (lane == 0) states[warp] = make_float2(state.largest, state.sum);
    __syncthreads();
    if (warp > 0) return;
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      float const before = state.largest;
      state.largest = fmaxf(before, states[w].x);
      float const shrink = exp2f(before - state.largest), own = exp2f(states[w].x - state.largest);
      state.sum = state.sum * shrink + own * states[w].y;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) y[j] = y[j] * shrink + own * sums[w * kHeadDim + 32 * j + lane];
    }
  }
  finish_row<Element, kHeadDim>(result, batch, row, head, state, y, none);
}

// Host code: whether eight warps add a row's slices: where those may be more than a warp loads at once, and a round of the device has all rows.
inline bool adds_by_block(int64_t rows, int64_t slices, int sm_count) { return slices > 16 && rows <= 2 * static_cast<int64_t>(sm_count); }

}  // namespace gemmill::kv_cache
