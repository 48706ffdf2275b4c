// Inner products of queries and packed keys of any format, as they are: no scale, no mask. A block takes 16 flat rows of a KV head
// and 128 tokens.
#pragma once

#include "kv_cache/packed/packed_tiles.cuh"

namespace gemmill::kv_cache {

template <int kHeadDim>
struct ScoresParams {
  gemmill_kv_scores_args args;
  VectorCoding keys;
  Signs<kHeadDim> signs;
  Projection projection;
  int tiles, stages, group;
};

// Grid: batch, KV heads, tiles of rows and of tokens in one number, tokens first.
template <class Variant, class Element, class Shape>
__global__ void __launch_bounds__(kTileThreads, Shape::kHeadDim > 128 ? 1 : 2)
    score_packed(__grid_constant__ ScoresParams<Shape::kHeadDim> const params) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto const& args = params.args;
  CodeTables const tables{reinterpret_cast<__half*>(shared), reinterpret_cast<float*>(shared + kCentroidsBytes)};
  float* const factors = reinterpret_cast<float*>(shared + Shape::kFactors);
  __half* const tile = reinterpret_cast<__half*>(shared + Shape::kKeys);
  __half* const queries = reinterpret_cast<__half*>(shared + Shape::kQueries);
  fill_tables(params.keys, tables);
  wait_for_predecessor();
  uint32_t const stages = params.stages, tiles = params.tiles, heads = static_cast<uint32_t>(args.kv_heads);
  uint32_t const of_tiles = blockIdx.x / stages, of_heads = of_tiles / tiles;
  int64_t const batch = of_heads / heads, kv_head = of_heads % heads, first_row = static_cast<int64_t>(of_tiles % tiles) * Shape::kRows;
  int const first = static_cast<int>(blockIdx.x % stages) * Shape::kTokens, length = static_cast<int>(args.length);
  Element const* const q = static_cast<Element const*>(args.q) + batch * args.q_batch_stride + kv_head * params.group * args.q_head_stride;
  QueryRows const rows{q, args.q_row_stride, args.q_head_stride, args.rows, first_row, params.group};
  load_queries<Element, Shape>(rows, params.keys, params.signs, params.projection, false, queries);
  PackedSide const side{args.keys, args.key_page_stride, args.key_token_stride, args.key_head_stride};
  PackedPages const pages{nullptr, batch, length, 0};

  int const lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, own = threadIdx.x / 32 * Shape::kWarpTokens;
  float const scale = scale_of_head(args.key_scales, kv_head);
  float sum[Shape::kWarpTokens / 8][4] = {};
  for (int part = 0; part < (params.keys.has_signs() ? 2 : 1); ++part) {
    __syncthreads();  // the tables are full, or the tile is free
    decode_tile<Shape>(params.keys, tables, side, pages, kv_head, first, length, part == 1, tile, factors);
    __syncthreads();
    float s[Shape::kWarpTokens / 8][4];
    multiply_keys<Shape>(s, queries + part * Shape::kRows * Shape::kStride, tile + own * Shape::kStride);
#pragma unroll
    for (int n = 0; n < Shape::kWarpTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i] += s[n][i] * (factors[own + 8 * n + 2 * t + i % 2] * scale);
    }
  }
#pragma unroll
  for (int n = 0; n < Shape::kWarpTokens / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int64_t const flat = first_row + g + 8 * (i / 2);
      int const token = first + own + 8 * n + 2 * t + i % 2;
      if (flat >= args.rows * params.group || token >= length) continue;
      int64_t const head = kv_head * params.group + flat % params.group, row = flat / params.group;
      args.scores[((batch * args.heads + head) * args.rows + row) * args.length + token] = sum[n][i];
    }
  }
}

// Host code.
template <int kHeadDim>
int64_t scores_workspace(gemmill_kv_scores_args const& args) {
  return coding_of<kHeadDim>(args.key_format, false, Books{}).has_signs() ? kProjectionBytes<kHeadDim> : 0;
}

template <class Variant, class Element, int kHeadDim>
int32_t packed_scores(gemmill_kv_scores_args const& args, gemmill_launch const& how, Books const& books) {
  using Shape = TileShape<kHeadDim, 1>;
  VectorCoding const keys = coding_of<kHeadDim>(args.key_format, false, books);
  int64_t const group = args.kv_heads == 0 ? 0 : args.heads / args.kv_heads;
  int64_t const tiles = (args.rows * group + Shape::kRows - 1) / Shape::kRows, stages = (args.length + Shape::kTokens - 1) / Shape::kTokens;
  int64_t const blocks = args.batch * args.kv_heads * tiles * stages;
  if (blocks == 0) return 0;
  ScoresParams<kHeadDim> params{args, keys, signs_of<kHeadDim>(keys, args.seed), {}, static_cast<int>(tiles), static_cast<int>(stages),
                                static_cast<int>(group)};
  if (keys.has_signs()) {
    int32_t const error = launch_projection<Variant, kHeadDim>(args.seed, how.workspace, how, params.projection);
    if (error != 0) return error;
  }
  constexpr auto score = score_packed<Variant, Element, Shape>;
  if (cudaError_t error = allow_shared_memory<score>(how.device, Shape::shared_bytes(2)); error != cudaSuccess) return error;
  LaunchShape const shape{dim3(static_cast<unsigned>(blocks)), dim3(kTileThreads), dim3(1), Shape::shared_bytes(keys.has_signs() ? 2 : 1)};
  void* parameters[] = {&params};
  return launch_kernel<score>(shape, how, parameters);
}

}  // namespace gemmill::kv_cache
