// Attention over a cache of latents (MLA): one KV head of 512 + 64 elements, whose first 512 in 4 bits (eden or turboquant_mse) are the
// key of every query head and its value, and whose last 64, the rotary part, are bf16 or f16, as queries are.
//
// A token is 400 bytes: 256 of codes, its norm in f16, 14 unused, 128 of the rotary part. A block takes a sequence, a tile of 16 or 64
// rows (query rows times heads) and a slice of the tokens, 64 at a time. Eight warps decode a stage's latents once to f16 centroids in
// shared memory, [64][512], with the rotary part behind them, and use the tile twice:
//
//   scores    S[rows x 64] = n (Q_latent C^T) + Q_rotary K_rotary^T    n being the tokens' norms; a warp has 16 rows and 8 or 32 tokens
//   output    O[rows x 512] += (P n) C                                  a warp has all rows and 64 elements
//
// Codes of the next stage are on their way meanwhile. As in decode_attention.cuh a masked token's score and weight are replaced, sums of
// slices stay in the rotated basis, and combine_slices adds them in their order.
#pragma once

#include "core/launch.cuh"
#include "core/programmatic.cuh"
#include "kv_cache/abi.h"
#include "kv_cache/shared/combine_slices.cuh"
#include "kv_cache/shared/mma.cuh"
#include "kv_cache/shared/stored.cuh"

namespace gemmill::kv_cache {

constexpr int kLatentThreads = 256, kLatentWarps = kLatentThreads / 32, kLatentTokens = 64, kRotaryDim = 64;

template <int kElements, int kTilesOfRows>
struct LatentShape {
  static constexpr int kHeadDim = kElements, kRowTiles = kTilesOfRows, kRows = 16 * kRowTiles, kThreads = kLatentThreads;
  static constexpr int kTokenTiles = kRowTiles;  // of 8 tokens, of a warp's scores
  static constexpr int kOwnDim = kHeadDim / kLatentWarps, kOutTiles = kOwnDim / 8;
  static constexpr int kCodeBytes = kHeadDim / 2, kRotaryAt = kCodeBytes + 16, kTokenBytes = kRotaryAt + 2 * kRotaryDim;
  static constexpr int kWords = kCodeBytes / 4, kOwnWords = kLatentTokens * kWords / kLatentThreads;  // of eight codes
  static constexpr int kRotaryPieces = 2 * kRotaryDim / 16, kOwnPieces = kLatentTokens * kRotaryPieces / kLatentThreads;
  // Rows of tiles lie an odd number of 16 bytes apart, so that eight of them meet all banks.
  static constexpr int kStride = kHeadDim + kRotaryDim + 8, kWeightStride = kLatentTokens + 8, kScoreStride = kLatentTokens + 2;
  static constexpr int kTile = kRows * kStride * 2, kTable = kTile + kLatentTokens * kStride * 2;
  static constexpr int kScores = kTable + 256 * 32 * 4, kWeights = kScores + kRows * kScoreStride * 4;
  static constexpr int kStates = kWeights + kRows * kWeightStride * 2, kNorms = kStates + kRows * 3 * 4;
  static constexpr int kSharedBytes = kNorms + kLatentTokens * 4;
  static_assert(kLatentWarps / kRowTiles * kTokenTiles * 8 == kLatentTokens, "Warps take each score once.");
  static_assert(kHeadDim % (16 * kLatentWarps) == 0 && kSharedBytes <= 227 * 1024, "A stage fits.");
};

template <int kHeadDim>
struct LatentParams {
  gemmill_kv_latent_attention_args args;
  Partial<kHeadDim> partial;
  Signs<kHeadDim> signs;
  Centroids centroids;
  int tiles, slices;  // of rows of a sequence; of its tokens
  float scale;        // times log2(e)
};

// A block's part of the work.
struct LatentPlace {
  int64_t batch, first_row;
  int length, first_stage, end_stage;

  template <class Params>
  __device__ LatentPlace(Params const& params, int rows) {
    auto const& args = params.args;
    uint32_t const tile = blockIdx.x / params.slices;
    int const slice = static_cast<int>(blockIdx.x % params.slices);
    batch = tile / params.tiles, first_row = static_cast<int64_t>(tile % params.tiles) * rows;
    int64_t const reach = args.pages > 0 ? args.table_pages * args.page_size : 0;
    length = static_cast<int>(min(static_cast<int64_t>(max(args.seq_lens[batch], 0)), reach));
    int const count = (length + kLatentTokens - 1) / kLatentTokens, of_slice = (count + params.slices - 1) / params.slices;
    first_stage = min(slice * of_slice, count), end_stage = min((slice + 1) * of_slice, count);
  }
};

// A thread's part of a stage on its way: zeros of tokens behind the length.
template <class Shape>
struct LatentStage {
  uint32_t words[Shape::kOwnWords];
  uint4 pieces[Shape::kOwnPieces];
  __half norm;

  __device__ __forceinline__ void fetch(gemmill_kv_latent_attention_args const& args, LatentPlace const& at, int stage) {
    int const shift = __ffs(static_cast<int>(args.page_size)) - 1, last = static_cast<int>(min(args.pages - 1, int64_t{INT32_MAX}));
    int32_t const* const pages = args.block_table + at.batch * args.table_stride;
    auto const token = [&](int place) -> uint8_t const* {
      int const index = stage * kLatentTokens + place;
      if (stage >= at.end_stage || index >= at.length) return nullptr;
      int64_t const page = min(max(pages[index >> shift], 0), last);
      return args.cache + page * args.page_stride + (index & ((1 << shift) - 1)) * Shape::kTokenBytes;
    };
#pragma unroll
    for (int i = 0; i < Shape::kOwnWords; ++i) {
      int const word = threadIdx.x + i * kLatentThreads;
      uint8_t const* const from = token(word / Shape::kWords);
      words[i] = from == nullptr ? 0 : reinterpret_cast<uint32_t const*>(from)[word % Shape::kWords];
    }
#pragma unroll
    for (int i = 0; i < Shape::kOwnPieces; ++i) {
      int const piece = threadIdx.x + i * kLatentThreads;
      uint8_t const* const from = token(piece / Shape::kRotaryPieces);
      pieces[i] = from == nullptr ? make_uint4(0, 0, 0, 0) : reinterpret_cast<uint4 const*>(from + Shape::kRotaryAt)[piece % Shape::kRotaryPieces];
    }
    uint8_t const* const own = threadIdx.x < kLatentTokens ? token(threadIdx.x) : nullptr;
    norm = own == nullptr ? __half{} : *reinterpret_cast<__half const*>(own + Shape::kCodeBytes);
  }

  // Centroids and the rotary part to the tile, norms behind it. `pairs` is the lane's copy of the table.
  __device__ __forceinline__ void leave(uint16_t* tile, uint32_t const* pairs, float* norms) const {
#pragma unroll
    for (int i = 0; i < Shape::kOwnWords; ++i) {
      int const word = threadIdx.x + i * kLatentThreads;
      uint4 const eight = make_uint4(pairs[32 * (words[i] & 0xFF)], pairs[32 * (words[i] >> 8 & 0xFF)],
                                     pairs[32 * (words[i] >> 16 & 0xFF)], pairs[32 * (words[i] >> 24)]);
      *reinterpret_cast<uint4*>(tile + word / Shape::kWords * Shape::kStride + 8 * (word % Shape::kWords)) = eight;
    }
#pragma unroll
    for (int i = 0; i < Shape::kOwnPieces; ++i) {
      int const piece = threadIdx.x + i * kLatentThreads;
      uint16_t* const to = tile + piece / Shape::kRotaryPieces * Shape::kStride + Shape::kHeadDim;
      *reinterpret_cast<uint4*>(to + 8 * (piece % Shape::kRotaryPieces)) = pieces[i];
    }
    if (threadIdx.x < kLatentTokens) norms[threadIdx.x] = to_float(norm);
  }
};

// The tile's queries, a warp a row: the latent part in the rotated basis as f16, the rotary part as it is.
template <class Element, class Shape>
__device__ __forceinline__ void load_latent_queries(LatentParams<Shape::kHeadDim> const& params, LatentPlace const& at, uint16_t* queries) {
  constexpr int kHeadDim = Shape::kHeadDim, kOwn = kHeadDim / 32;
  auto const& args = params.args;
  int const lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < Shape::kRows; row += kLatentWarps) {
    int64_t const flat = at.first_row + row;
    float y[kOwn] = {};
    uint16_t* const to = queries + row * Shape::kStride;
    uint32_t rotary = 0;
    if (flat < args.rows * args.heads) {
      Element const* const from = static_cast<Element const*>(args.q) + at.batch * args.q_batch_stride +
                                  flat / args.heads * args.q_row_stride + flat % args.heads * args.q_head_stride;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) y[i] = to_float(from[32 * i + lane]);
      uint16_t const* const bits = reinterpret_cast<uint16_t const*>(from + kHeadDim);
      rotary = bits[2 * lane] | static_cast<uint32_t>(bits[2 * lane + 1]) << 16;
    }
    if (args.seed >= 0) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) y[i] *= params.signs(32 * i + lane) ? -kInverseRoot<kHeadDim> : kInverseRoot<kHeadDim>;
      hadamard_of_warp<kHeadDim>(y);
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) reinterpret_cast<__half*>(to)[32 * i + lane] = to_element<__half>(y[i]);
    reinterpret_cast<uint32_t*>(to + kHeadDim)[lane] = rotary;
  }
}

// Scores of the warp's rows and tokens, in units of log 2, to shared memory.
template <class Element, class Shape>
__device__ __forceinline__ void score_latents(uint16_t const* queries, uint16_t const* tile, float const* norms, float* scores, float scale) {
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, matrix = lane / 8, line = lane % 8;
  int const row = 16 * (warp % Shape::kRowTiles), token = 8 * Shape::kTokenTiles * (warp / Shape::kRowTiles);
  uint16_t const* const own_q = queries + (row + line + 8 * (matrix % 2)) * Shape::kStride + 8 * (matrix / 2);
  uint16_t const* const own_k = tile + (token + line) * Shape::kStride + 8 * matrix;
  float latent[Shape::kTokenTiles][4] = {}, rotary[Shape::kTokenTiles][4] = {};
  auto const multiply = [&](auto element, float(&sum)[Shape::kTokenTiles][4], int begin) {  // 32 elements from `begin` on
    uint32_t a[2][4];
    load_matrices<false>(a[0], own_q + begin), load_matrices<false>(a[1], own_q + begin + 16);
#pragma unroll
    for (int n = 0; n < Shape::kTokenTiles; ++n) {
      uint32_t b[4];
      load_matrices<false>(b, own_k + 8 * n * Shape::kStride + begin);
      mma_16x8x16<decltype(element)>(sum[n], a[0], b[0], b[1]);
      mma_16x8x16<decltype(element)>(sum[n], a[1], b[2], b[3]);
    }
  };
#pragma unroll 4
  for (int begin = 0; begin < Shape::kHeadDim; begin += 32) multiply(__half{}, latent, begin);
#pragma unroll
  for (int begin = 0; begin < kRotaryDim; begin += 32) multiply(Element{}, rotary, Shape::kHeadDim + begin);
#pragma unroll
  for (int n = 0; n < Shape::kTokenTiles; ++n) {
    int const first = token + 8 * n + 2 * t;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float const score = norms[first + i % 2] * latent[n][i] + rotary[n][i];
      scores[(row + g + 8 * (i / 2)) * Shape::kScoreStride + first + i % 2] = scale * score;
    }
  }
}

// Scores to weights times norms, in f16; a warp takes rows one after the other. `states` has each row's maximum, sum and last shrinking.
template <class Shape>
__device__ __forceinline__ void weigh_latents(gemmill_kv_latent_attention_args const& args, LatentPlace const& at, int stage, float const* scores,
                                              float const* norms, __half* weights, float* states) {
  int const lane = threadIdx.x % 32;
#pragma unroll 2
  for (int row = threadIdx.x / 32; row < Shape::kRows; row += kLatentWarps) {
    int64_t const position = args.causal != 0 ? at.length - args.rows + (at.first_row + row) / args.heads : at.length - 1;
    float* const state = states + 3 * row;
    float const before = state[0];
    float s[2];
    bool seen[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int const token = stage * kLatentTokens + lane + 32 * i;
      seen[i] = token < at.length && token <= position;
      s[i] = seen[i] ? scores[row * Shape::kScoreStride + lane + 32 * i] : -INFINITY;
    }
    float const largest = fmaxf(before, largest_of_warp(fmaxf(s[0], s[1])));
    float const shrink = power_of_two(before - largest);
    float const weight[2] = {power_of_two(s[0] - largest), power_of_two(s[1] - largest)};
    float const sum = state[1] * shrink + sum_of_warp(weight[0] + weight[1]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float const factored = seen[i] ? weight[i] * norms[lane + 32 * i] : 0.0f;
      weights[row * Shape::kWeightStride + lane + 32 * i] = to_element<__half>(factored);
    }
    __syncwarp();
    if (lane == 0) state[0] = largest, state[1] = sum, state[2] = shrink;
  }
}

// O += (P n) C of a stage, of all rows and the warp's elements.
template <class Shape>
__device__ __forceinline__ void add_latents(float (&out)[Shape::kRowTiles][Shape::kOutTiles][4], uint16_t const* tile, __half const* weights,
                                            float const* states) {
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, matrix = lane / 8, line = lane % 8;
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    float const shrink[2] = {states[3 * (16 * r + g) + 2], states[3 * (16 * r + g + 8) + 2]};
#pragma unroll
    for (int n = 0; n < Shape::kOutTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[r][n][i] *= shrink[i / 2];
    }
  }
  __half const* const own_p = weights + (line + 8 * (matrix % 2)) * Shape::kWeightStride + 8 * (matrix / 2);
  uint16_t const* const own_v = tile + (line + 8 * (matrix % 2)) * Shape::kStride + warp * Shape::kOwnDim + 8 * (matrix / 2);
#pragma unroll
  for (int token = 0; token < kLatentTokens; token += 16) {
    uint32_t p[Shape::kRowTiles][4];
#pragma unroll
    for (int r = 0; r < Shape::kRowTiles; ++r) load_matrices<false>(p[r], own_p + 16 * r * Shape::kWeightStride + token);
#pragma unroll
    for (int n = 0; n < Shape::kOutTiles; n += 2) {
      uint32_t v[4];
      load_matrices<true>(v, own_v + token * Shape::kStride + 8 * n);
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        mma_16x8x16<__half>(out[r][n], p[r], v[0], v[1]);
        mma_16x8x16<__half>(out[r][n + 1], p[r], v[2], v[3]);
      }
    }
  }
}

// Grid: batch, tiles of rows and slices in one number, slices first.
template <class Variant, class Element, class Shape>
__global__ void __launch_bounds__(kLatentThreads, 1) attend_latents(__grid_constant__ LatentParams<Shape::kHeadDim> const params) {
  extern __shared__ __align__(128) uint8_t shared[];
  uint16_t* const queries = reinterpret_cast<uint16_t*>(shared);
  uint16_t* const tile = reinterpret_cast<uint16_t*>(shared + Shape::kTile);
  uint32_t* const table = reinterpret_cast<uint32_t*>(shared + Shape::kTable);
  float* const scores = reinterpret_cast<float*>(shared + Shape::kScores);
  __half* const weights = reinterpret_cast<__half*>(shared + Shape::kWeights);
  float* const states = reinterpret_cast<float*>(shared + Shape::kStates);
  float* const norms = reinterpret_cast<float*>(shared + Shape::kNorms);
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  for (int i = threadIdx.x; i < 256 * 8; i += kLatentThreads) {
    uint16_t const(&book)[16] = params.centroids.bits[0];
    uint32_t const pair = book[i / 8 & 15] | static_cast<uint32_t>(book[i / 8 >> 4]) << 16;
    reinterpret_cast<uint4*>(table)[i] = make_uint4(pair, pair, pair, pair);
  }
  for (int i = threadIdx.x; i < Shape::kRows; i += kLatentThreads) states[3 * i] = kNothing, states[3 * i + 1] = 0.0f;
  wait_for_predecessor();
  LatentPlace const at(params, Shape::kRows);
  LatentStage<Shape> next;
  next.fetch(params.args, at, at.first_stage);
  load_latent_queries<Element, Shape>(params, at, queries);
  __syncthreads();

  float out[Shape::kRowTiles][Shape::kOutTiles][4] = {};
  for (int stage = at.first_stage; stage < at.end_stage; ++stage) {
    next.leave(tile, table + lane, norms);
    __syncthreads();
    next.fetch(params.args, at, stage + 1);
    score_latents<Element, Shape>(queries, tile, norms, scores, params.scale);
    __syncthreads();
    weigh_latents<Shape>(params.args, at, stage, scores, norms, weights, states);
    __syncthreads();
    add_latents<Shape>(out, tile, weights, states);
    __syncthreads();
  }

  int64_t const first = static_cast<int64_t>(blockIdx.x) * Shape::kRows;
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int const row = 16 * r + g + 8 * i;
      if (at.first_row + row >= params.args.rows * params.args.heads) continue;
      float* const to = params.partial.out + (first + row) * Shape::kHeadDim + warp * Shape::kOwnDim + 2 * t;
#pragma unroll
      for (int n = 0; n < Shape::kOutTiles; ++n) *reinterpret_cast<float2*>(to + 8 * n) = make_float2(out[r][n][2 * i], out[r][n][2 * i + 1]);
      if (warp == 0 && t == 0) params.partial.max_sum[first + row] = make_float2(states[3 * row], states[3 * row + 1]);
    }
  }
}

// Host code: launches.

// The parts of a launch.
struct LatentPlan {
  int64_t tile_rows, tiles, all_tiles, slices;

  LatentPlan(gemmill_kv_latent_attention_args const& args, gemmill_launch const& how, int rows) : tile_rows(rows) {
    tiles = (args.rows * args.heads + tile_rows - 1) / tile_rows, all_tiles = args.batch * tiles;
    int64_t const stages = (args.table_pages * args.page_size + kLatentTokens - 1) / kLatentTokens;
    slices = all_tiles == 0 ? 1 : slices_of(all_tiles, stages, how.sm_count, args.half_waves, args.slices);
  }
};

inline int rows_of_latent_tile(gemmill_kv_latent_attention_args const& args) { return args.rows * args.heads <= 16 ? 16 : 64; }

template <int kHeadDim>
int64_t latent_workspace(gemmill_kv_latent_attention_args const& args, gemmill_launch const& how) {
  LatentPlan const plan(args, how, rows_of_latent_tile(args));
  return Partial<kHeadDim>::bytes(plan.all_tiles * plan.slices * plan.tile_rows);
}

template <class Variant, class Element, class Shape, auto attend>
int32_t attend_and_combine(gemmill_kv_latent_attention_args const& args, gemmill_launch const& how, Centroids const& centroids, LatentPlan const& plan) {
  constexpr int kHeadDim = Shape::kHeadDim, kSharedBytes = Shape::kSharedBytes;
  int64_t const blocks = plan.all_tiles * plan.slices;
  auto const partial = Partial<kHeadDim>::at(how.workspace, blocks * Shape::kRows);
  auto const signs = signs_of<kHeadDim>(static_cast<uint64_t>(args.seed));
  int const tiles = static_cast<int>(plan.tiles), slices = static_cast<int>(plan.slices), heads = static_cast<int>(args.heads);
  LatentParams<kHeadDim> params{args, partial, signs, centroids, tiles, slices, args.scale * kLog2E};
  if (cudaError_t error = allow_shared_memory<attend>(how.device, kSharedBytes); error != cudaSuccess) return error;
  void* to_attend[] = {&params};
  LaunchShape const attends{dim3(static_cast<unsigned>(blocks)), dim3(Shape::kThreads), dim3(1), kSharedBytes};
  if (int32_t const error = launch_kernel<attend>(attends, how, to_attend); error != 0) return error;
  ResultParams<kHeadDim> const result{args.out, args.lse, nullptr, args.batch, args.rows, args.heads, 1,
                                      args.out_stride, signs, args.seed >= 0 && args.rotated_out == 0, nullptr};
  CombineParams<kHeadDim> combining{result, partial, tiles, slices, Shape::kRows, heads};
  void* to_combine[] = {&combining};
  int64_t const rows = plan.all_tiles * Shape::kRows;
  LaunchShape const combines{dim3(static_cast<unsigned>(rows / (kCombineThreads / 32))), dim3(kCombineThreads), dim3(1), 0};
  return launch_kernel<combine_slices<Variant, Element, kHeadDim>>(combines, how, to_combine);
}

template <class Variant, class Element, int kHeadDim>
int32_t latent_attention(gemmill_kv_latent_attention_args const& args, gemmill_launch const& how, Centroids const& centroids) {
  LatentPlan const plan(args, how, rows_of_latent_tile(args));
  if (plan.all_tiles == 0) return 0;
  using Few = LatentShape<kHeadDim, 1>;
  using More = LatentShape<kHeadDim, 4>;
  if (plan.tile_rows == 16) return attend_and_combine<Variant, Element, Few, attend_latents<Variant, Element, Few>>(args, how, centroids, plan);
  return attend_and_combine<Variant, Element, More, attend_latents<Variant, Element, More>>(args, how, centroids, plan);
}

}  // namespace gemmill::kv_cache
