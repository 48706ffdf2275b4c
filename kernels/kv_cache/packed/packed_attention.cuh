// Attention over packed keys and values of any format as a run-time argument (vector_coding.cuh).
//
// A block takes one KV head of one sequence, a tile of 16 or 128 flat rows (query rows times the query heads of the KV head) and a
// slice of the tokens. All its warps decode a tile of keys and one of values to f16 (packed_tiles.cuh); then a warp takes 16 rows,
// and of 16 rows all warps take parts of the tokens:
//
//   scores    S[16 x tokens] = Q K^T      a key's factor is one of its column; keys of turboquant_prod add a product of signs
//   softmax   online, in f32
//   output    O[16 x d] += P V            a value's factor is one of P's column
//
// Values of turboquant_prod have two tiles as well: blocks come in pairs, of which one sums centroids and the other signs. A tile of one
// slice writes its result; slices leave sums, which combine_slices adds in their order. Other blocks of an SM work while one waits for
// memory. Nothing beyond a length counts, and the kernel reads no page that the cache has not.
#pragma once

#include "kv_cache/packed/packed_tiles.cuh"

namespace gemmill::kv_cache {

template <int kHeadDim>
struct PackedAttentionParams {
  gemmill_kv_packed_attention_args args;
  ResultParams<kHeadDim> result;
  Partial<kHeadDim> partial;
  VectorCoding keys, values;
  Signs<kHeadDim> key_signs;
  Projection projection;
  int tiles, slices, group;
  int parts;         // of values
  bool writes;       // results, not sums
  float scale, cap;  // as decode_attention has them
};

// A block's part of the work.
struct PackedPlace {
  int64_t batch, kv_head, tile, first_row;  // the first of the tile's flat rows
  int part, length;
  int first_stage, end_stage, end;          // of `tokens` each; behind the last token that a row of the tile sees

  template <int kHeadDim>
  __device__ PackedPlace(PackedAttentionParams<kHeadDim> const& params, int rows, int tokens) {
    auto const& args = params.args;
    uint32_t const slices = params.slices, parts = params.parts, tiles = params.tiles, heads = static_cast<uint32_t>(args.kv_heads);
    uint32_t const of_parts = blockIdx.x / slices, of_tiles = of_parts / parts, of_heads = of_tiles / tiles;
    int const slice = static_cast<int>(blockIdx.x % slices);
    part = static_cast<int>(of_parts % parts);
    batch = of_heads / heads, kv_head = of_heads % heads;
    tile = tiles - 1 - of_tiles % tiles;  // the last rows see most, and begin first
    first_row = tile * rows;
    int64_t const reach = args.pages == 0 ? 0 : args.block_table == nullptr ? args.page_size : args.table_pages * args.page_size;
    length = static_cast<int>(min(static_cast<int64_t>(max(args.seq_lens[batch], 0)), reach));
    int64_t const first_position = length - args.rows + first_row / params.group;
    int64_t const last_row = min(first_row + rows, args.rows * params.group) - 1;
    int64_t const last_position = length - args.rows + last_row / params.group;
    end = args.causal != 0 ? static_cast<int>(min(int64_t{length}, max(last_position + 1, int64_t{0}))) : length;
    int64_t const first_seen = args.window > 0 ? first_position + 1 - args.window : 0;
    int const begin = min(static_cast<int>(max(first_seen, int64_t{0})), end) / tokens;
    int const count = (end + tokens - 1) / tokens - begin;
    int const of_slice = (count + params.slices - 1) / params.slices;
    first_stage = begin + min(slice * of_slice, count);
    end_stage = begin + min((slice + 1) * of_slice, count);
  }
};

// A warp's running softmax and sums, of rows g and g + 8 of its 16.
template <class Shape>
struct PackedRunning {
  float max[2] = {kNothing, kNothing};
  float sum[2] = {};                    // of the lane's tokens
  float unit = 1.0f;                    // of sums: a power of two, so that f16 holds weights times factors
  float out[Shape::kHeadDim / 8][4] = {};  // step n: row g of elements 8 n + 2 t and the next, then row g + 8
};

// Scores to weights, in place; running maxima and sums move on.
template <class Shape>
__device__ __forceinline__ void weigh_scores(float (&s)[Shape::kWarpTokens / 8][4], PackedRunning<Shape>& running) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float largest = running.max[row];
#pragma unroll
    for (auto const& each : s) largest = fmaxf(largest, fmaxf(each[2 * row], each[2 * row + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
    float const shrink = power_of_two(running.max[row] - largest);
    running.max[row] = largest, running.sum[row] *= shrink;
#pragma unroll
    for (auto& each : running.out) each[2 * row] *= shrink, each[2 * row + 1] *= shrink;
#pragma unroll
    for (auto& each : s) {
#pragma unroll
      for (int i = 2 * row; i < 2 * row + 2; ++i) each[i] = power_of_two(each[i] - largest), running.sum[row] += each[i];
    }
  }
}

// Makes sums be of a unit by which the tile's largest factor stays below 2^15.
template <class Shape>
__device__ __forceinline__ void widen(PackedRunning<Shape>& running, float const* factors) {
  float largest = 0.0f;
  for (int i = threadIdx.x % 32; i < Shape::kTokens; i += 32) largest = fmaxf(largest, fabsf(factors[i]));
  float const needed = power_below(largest_of_warp(largest)) * 0x1p-14f;
  if (!(needed > running.unit) || needed == INFINITY) return;
  float const shrink = running.unit / needed;
#pragma unroll
  for (auto& each : running.out) each[0] *= shrink, each[1] *= shrink, each[2] *= shrink, each[3] *= shrink;
  running.unit = needed;
}

// O += P V of the warp's tokens; `used` tells whether row g + 8 i sees the token.
template <class Shape, class Used>
__device__ __forceinline__ void add_values(PackedRunning<Shape>& running, float const (&weight)[Shape::kWarpTokens / 8][4],
                                           __half const* values, float const* factors, Used const& used) {
  int const lane = threadIdx.x % 32, t = lane % 4, matrix = lane / 8, i = lane % 8;
  float const inverse = 1.0f / running.unit;
#pragma unroll
  for (int step = 0; step < Shape::kWarpTokens / 16; ++step) {
    uint32_t p[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const n = 2 * step + half, token = 8 * n + 2 * t;
      float const first = factors[token] * inverse, second = factors[token + 1] * inverse;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float const low = used(row, token) ? weight[n][2 * row] * first : 0.0f;
        float const high = used(row, token + 1) ? weight[n][2 * row + 1] * second : 0.0f;
        p[2 * half + row] = two_elements<__half>(low, high);
      }
    }
#pragma unroll
    for (int n = 0; n < Shape::kHeadDim / 8; n += 2) {
      uint32_t b[4];
      load_matrices<true>(b, values + (16 * step + matrix % 2 * 8 + i) * Shape::kStride + 8 * n + matrix / 2 * 8);
      mma_16x8x16<__half>(running.out[n], p, b[0], b[1]);
      mma_16x8x16<__half>(running.out[n + 1], p, b[2], b[3]);
    }
  }
}

// The block's tiles, in shared memory.
template <class Shape>
struct PackedMemory {
  CodeTables key_tables, value_tables;
  float *key_factors, *value_factors;
  __half *keys, *values, *queries;

  __device__ __forceinline__ PackedMemory(uint8_t* shared) {
    auto const at = [&](int place) { return reinterpret_cast<float*>(shared + place); };
    key_tables = {reinterpret_cast<__half*>(shared), at(kCentroidsBytes)};
    value_tables = {reinterpret_cast<__half*>(shared + 2 * kCentroidsBytes), at(3 * kCentroidsBytes)};
    key_factors = at(Shape::kFactors), value_factors = key_factors + Shape::kTokens;
    keys = reinterpret_cast<__half*>(shared + Shape::kKeys);
    values = reinterpret_cast<__half*>(shared + Shape::kValues);
    queries = reinterpret_cast<__half*>(shared + Shape::kQueries);
  }
};

template <class Shape>
__device__ __forceinline__ void attend_tiles(PackedAttentionParams<Shape::kHeadDim> const& params, PackedPlace const& at,
                                             PackedMemory<Shape> const& memory, PackedRunning<Shape>& running) {
  auto const& args = params.args;
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  int const row_warp = warp % Shape::kRowWarps, first_token = warp / Shape::kRowWarps * Shape::kWarpTokens;
  PackedSide const keys{args.keys, args.key_page_stride, args.key_token_stride, args.key_head_stride};
  PackedSide const values{args.values, args.value_page_stride, args.value_token_stride, args.value_head_stride};
  PackedPages const pages{args.block_table == nullptr ? nullptr : args.block_table + at.batch * args.table_stride, at.batch,
                          static_cast<int>(args.page_size), static_cast<int>(min(args.pages - 1, int64_t{INT32_MAX}))};
  __half const* const queries = memory.queries + 16 * row_warp * Shape::kStride;
  __half const* const own_keys = memory.keys + first_token * Shape::kStride;
  __half const* const own_values = memory.values + first_token * Shape::kStride;
  float const* const key_factors = memory.key_factors + first_token + 2 * t;
  int first_seen[2], last_seen[2];  // tokens of the lane's rows
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int const own = static_cast<int>(at.length - args.rows + (at.first_row + 16 * row_warp + g + 8 * i) / params.group);
    first_seen[i] = args.window > 0 ? own - static_cast<int>(min(args.window, int64_t{1 << 30})) + 1 : 0;
    last_seen[i] = args.causal != 0 ? min(own, at.length - 1) : at.length - 1;
  }
  bool const has_wide_values = params.values.method == kUniform || params.values.method == kE2m1;
  float const scale = params.scale * scale_of_head(args.key_scales, at.kv_head);

  for (int stage = at.first_stage; stage < at.end_stage; ++stage) {
    int const first = stage * Shape::kTokens;
    decode_tile<Shape>(params.keys, memory.key_tables, keys, pages, at.kv_head, first, at.end, false, memory.keys, memory.key_factors);
    decode_tile<Shape>(params.values, memory.value_tables, values, pages, at.kv_head, first, at.end, at.part == 1, memory.values,
                       memory.value_factors);
    __syncthreads();
    float s[Shape::kWarpTokens / 8][4];
    multiply_keys<Shape>(s, queries, own_keys);
#pragma unroll
    for (int n = 0; n < Shape::kWarpTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] *= key_factors[8 * n + i % 2] * scale;
    }
    if (params.keys.has_signs()) {
      __syncthreads();
      decode_tile<Shape>(params.keys, memory.key_tables, keys, pages, at.kv_head, first, at.end, true, memory.keys, memory.key_factors);
      __syncthreads();
#pragma unroll
      for (int n = 0; n < Shape::kWarpTokens / 8; n += 2) {
        float of_signs[2][4] = {};
        multiply_pair<Shape>(of_signs[0], of_signs[1], queries + Shape::kRows * Shape::kStride, own_keys + 8 * n * Shape::kStride);
#pragma unroll
        for (int i = 0; i < 8; ++i) s[n + i / 4][i % 4] += of_signs[i / 4][i % 4] * (key_factors[8 * (n + i / 4) + i % 2] * scale);
      }
    }
    int const begin = first + first_token;
    auto const used = [&](int row, int token) { return begin + token >= first_seen[row] && begin + token <= last_seen[row]; };
#pragma unroll
    for (int n = 0; n < Shape::kWarpTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float scaled = s[n][i];
        if (params.cap > 0.0f) scaled = params.cap - 2.0f * params.cap / (power_of_two(scaled) + 1.0f);  // cap tanh(x), by 2 x
        s[n][i] = used(i / 2, 8 * n + 2 * t + i % 2) ? scaled : -INFINITY;
      }
    }
    weigh_scores<Shape>(s, running);
    if (has_wide_values) widen<Shape>(running, memory.value_factors);
    add_values<Shape>(running, s, own_values, memory.value_factors + first_token, used);
    __syncthreads();  // the tiles are free
  }
  running.unit *= scale_of_head(args.value_scales, at.kv_head);
}

// The warps' sums and states to shared memory: [warps of tokens][rows][kSumStride] and [warps of tokens][rows].
template <class Shape>
__device__ __forceinline__ void leave_sums(PackedRunning<Shape> const& running, float* sums, float2* states) {
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  int const first = warp / Shape::kRowWarps * Shape::kRows + 16 * (warp % Shape::kRowWarps) + g;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float sum = running.sum[row];
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    if (t == 0) states[first + 8 * row] = make_float2(running.max[row], sum);
    float* const to = sums + (first + 8 * row) * Shape::kSumStride + 2 * t;
#pragma unroll
    for (int n = 0; n < Shape::kHeadDim / 8; ++n) {
      float const low = running.out[n][2 * row] * running.unit, high = running.out[n][2 * row + 1] * running.unit;
      *reinterpret_cast<float2*>(to + 8 * n) = make_float2(low, high);
    }
  }
}

// The warps' sums of each row to one, in the warps' order, and to the result or to memory. A warp takes a row at a time.
template <class Element, class Shape>
__device__ __forceinline__ void leave_rows(PackedAttentionParams<Shape::kHeadDim> const& params, PackedPlace const& at,
                                           float const* sums, float2 const* states) {
  constexpr int kHeadDim = Shape::kHeadDim, kOwn = kHeadDim / 32, kRows = Shape::kRows;
  auto const& args = params.args;
  int const lane = threadIdx.x % 32, slice = static_cast<int>(blockIdx.x % params.slices);
  int64_t const heads = at.batch * args.kv_heads + at.kv_head;
  int64_t const first = (((heads * params.tiles + at.tile) * params.parts + at.part) * params.slices + slice) * kRows;
  for (int row = threadIdx.x / 32; row < kRows; row += kTileWarps) {
    int64_t const flat = at.first_row + row;
    if (flat >= args.rows * params.group) break;
    int64_t const head = at.kv_head * params.group + flat % params.group;
    RowState state(params.writes ? params.result.sinks : nullptr, head);
    float const sink = state.largest, of_sink = state.sum;
#pragma unroll
    for (int w = 0; w < Shape::kTokenWarps; ++w) state.largest = fmaxf(state.largest, states[w * kRows + row].x);
    state.sum = of_sink * power_of_two(sink - state.largest);
    float y[kOwn] = {}, none[kOwn] = {};
#pragma unroll
    for (int w = 0; w < Shape::kTokenWarps; ++w) {
      float2 const of_warp = states[w * kRows + row];
      float const share = power_of_two(of_warp.x - state.largest);
      state.sum += share * of_warp.y;
#pragma unroll
      for (int k = 0; k < kOwn; ++k) y[k] += share * sums[(w * kRows + row) * Shape::kSumStride + 32 * k + lane];
    }
    if (params.writes) {
      finish_row<Element, kHeadDim>(params.result, at.batch, flat / params.group, head, state, y, none);
    } else {
#pragma unroll
      for (int k = 0; k < kOwn; ++k) params.partial.out[(first + row) * kHeadDim + 32 * k + lane] = y[k];
      if (lane == 0) params.partial.max_sum[first + row] = make_float2(state.largest, state.sum);
    }
  }
}

// Grid: batch, KV heads, tiles of rows, parts of values and slices in one number, slices first.
template <class Variant, class Element, class Shape>
__global__ void __launch_bounds__(kTileThreads, Shape::kHeadDim > 128 ? 1 : 2)
    attend_packed(__grid_constant__ PackedAttentionParams<Shape::kHeadDim> const params) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto const& args = params.args;
  PackedMemory<Shape> const memory(shared);
  fill_tables(params.keys, memory.key_tables);
  fill_tables(params.values, memory.value_tables);
  wait_for_predecessor();
  PackedPlace const at(params, Shape::kRows, Shape::kTokens);
  Element const* const q = static_cast<Element const*>(args.q) + at.batch * args.q_batch_stride + at.kv_head * params.group * args.q_head_stride;
  QueryRows const rows{q, args.q_row_stride, args.q_head_stride, args.rows, at.first_row, params.group};
  load_queries<Element, Shape>(rows, params.keys, params.key_signs, params.projection, args.seed < 0, memory.queries);
  __syncthreads();
  PackedRunning<Shape> running;
  attend_tiles<Shape>(params, at, memory, running);
  float* const sums = reinterpret_cast<float*>(shared);
  float2* const states = reinterpret_cast<float2*>(sums + Shape::kTokenWarps * Shape::kRows * Shape::kSumStride);
  __syncthreads();  // queries too are free
  leave_sums<Shape>(running, sums, states);
  __syncthreads();
  leave_rows<Element, Shape>(params, at, sums, states);
}

// Host code: launches. Of so many flat rows on, tiles have 128.
constexpr int kRowsOfWideTiles = 33;

// The parts of a launch.
struct PackedPlan {
  bool is_wide;
  int rows, parts;
  int64_t tiles, all_tiles, slices;  // of rows, of one KV head and sequence

  PackedPlan(gemmill_kv_packed_attention_args const& args, gemmill_launch const& how, bool has_parts) {
    int64_t const group = args.kv_heads == 0 ? 0 : args.heads / args.kv_heads;
    is_wide = args.rows * group >= kRowsOfWideTiles;
    rows = is_wide ? 128 : 16, parts = has_parts ? 2 : 1;
    tiles = (args.rows * group + rows - 1) / rows, all_tiles = args.batch * args.kv_heads * tiles;
    int64_t const tokens = is_wide ? 64 : 128, pages = args.block_table == nullptr ? 1 : args.table_pages;
    int64_t stages = (pages * args.page_size + tokens - 1) / tokens;
    if (args.window > 0) stages = std::min(stages, (std::min(args.window, stages * tokens) + args.rows) / tokens + 2);
    slices = all_tiles == 0 ? 1 : slices_of(all_tiles * parts, stages, 2 * how.sm_count, args.half_waves, args.slices);
  }
  bool writes() const { return slices == 1 && parts == 1; }
  template <int kHeadDim>
  int64_t partial_bytes() const {
    return writes() ? 0 : (Partial<kHeadDim>::bytes(all_tiles * parts * slices * rows) + 15) / 16 * 16;
  }
};

template <int kHeadDim>
int64_t packed_attention_workspace(gemmill_kv_packed_attention_args const& args, gemmill_launch const& how) {
  bool const of_keys = coding_of<kHeadDim>(args.key_format, false, Books{}).has_signs();
  bool const of_values = coding_of<kHeadDim>(args.value_format, true, Books{}).has_signs();
  PackedPlan const plan(args, how, of_values);
  return plan.template partial_bytes<kHeadDim>() + (of_keys || of_values ? kProjectionBytes<kHeadDim> : 0);
}

template <class Variant, class Element, class Shape>
int32_t launch_packed(PackedAttentionParams<Shape::kHeadDim>& params, PackedPlan const& plan, gemmill_launch const& how) {
  constexpr int kHeadDim = Shape::kHeadDim;
  constexpr auto attend = attend_packed<Variant, Element, Shape>;
  if (cudaError_t error = allow_shared_memory<attend>(how.device, Shape::shared_bytes(2)); error != cudaSuccess) return error;
  int64_t const blocks = plan.all_tiles * plan.parts * plan.slices;
  int const shared_bytes = Shape::shared_bytes(params.keys.has_signs() ? 2 : 1);
  LaunchShape const attends{dim3(static_cast<unsigned>(blocks)), dim3(kTileThreads), dim3(1), shared_bytes};
  void* to_attend[] = {&params};
  if (int32_t const error = launch_kernel<attend>(attends, how, to_attend); error != 0 || params.writes) return error;
  CombineParams<kHeadDim> combining{params.result, params.partial, params.tiles, params.slices, Shape::kRows, params.group};
  void* to_combine[] = {&combining};
  int64_t const rows = plan.all_tiles * Shape::kRows;
  LaunchShape const combines{dim3(static_cast<unsigned>(rows / (kCombineThreads / 32))), dim3(kCombineThreads), dim3(1), 0};
  return launch_kernel<combine_slices<Variant, Element, kHeadDim>>(combines, how, to_combine);
}

template <class Variant, class Element, int kHeadDim>
int32_t packed_attention(gemmill_kv_packed_attention_args const& args, gemmill_launch const& how, Books const& books) {
  VectorCoding const keys = coding_of<kHeadDim>(args.key_format, false, books);
  VectorCoding const values = coding_of<kHeadDim>(args.value_format, true, books);
  PackedPlan const plan(args, how, values.has_signs());
  if (plan.all_tiles == 0) return 0;
  Projection projection{};
  if (keys.has_signs() || values.has_signs()) {
    void* const memory = static_cast<uint8_t*>(how.workspace) + plan.template partial_bytes<kHeadDim>();
    if (int32_t const error = launch_projection<Variant, kHeadDim>(args.seed, memory, how, projection); error != 0) return error;
  }
  auto const value_signs = signs_of<kHeadDim>(values, args.seed);
  ResultParams<kHeadDim> const result{args.out, args.lse, args.sinks, args.batch, args.rows, args.heads, args.kv_heads, args.out_stride,
                                      value_signs, values.rotation != kNone && args.seed >= 0 && args.rotated_out == 0,
                                      values.has_signs() ? projection.rows : nullptr};
  auto const partial = Partial<kHeadDim>::at(how.workspace, plan.all_tiles * plan.parts * plan.slices * plan.rows);
  int const tiles = static_cast<int>(plan.tiles), slices = static_cast<int>(plan.slices), group = static_cast<int>(args.heads / args.kv_heads);
  PackedAttentionParams<kHeadDim> params{args, result, partial, keys, values, signs_of<kHeadDim>(keys, args.seed), projection,
                                         tiles, slices, group, plan.parts, plan.writes(), args.scale * kLog2E, 0.0f};
  if (args.softcap > 0.0f) params.cap = args.softcap * kLog2E, params.scale = 2.0f * params.scale / args.softcap;
  return plan.is_wide ? launch_packed<Variant, Element, TileShape<kHeadDim, 8>>(params, plan, how)
                      : launch_packed<Variant, Element, TileShape<kHeadDim, 1>>(params, plan, how);
}

}  // namespace gemmill::kv_cache
