// Attention of many query rows over pages of keys and values in 3 or 4 bits (eden or turboquant_mse, layout heads), by WGMMA.
//
// A block takes one KV head of one sequence, a tile of 128 flat rows (query rows times the query heads of the KV head) and a slice of
// the tokens, in stages of 64. Bulk copies bring packed stages. A warpgroup decodes keys to f16 in shared memory and another one values,
// once for all rows (tile_codes.cuh). Two warpgroups of consumers have 64 rows each:
//
//   scores    S[64 x 64] = Q K^T    Q stays in registers, rotated; keys are centroids, their norms factors of S's columns
//   softmax   online, in f32, while the tensor core multiplies the stage before by its values
//   output    O[64 x d] += P V      values' norms are factors of P's columns
//
// Elements lie in another order within units of eight than in vectors: queries take the same, and sums give it back. A tile of one
// slice writes its result; slices leave sums, which combine_slices adds in their order. A row's sums do not depend on its neighbours:
// a stage that it does not see adds zeros, and maxima move sums only where they grow. Nothing beyond a length counts, and the kernel
// reads no page that the cache has not.
#pragma once

#include "kv_cache/pages/decode_attention.cuh"
#include "kv_cache/pages/prefill_shape.cuh"

namespace gemmill::kv_cache {

template <class Shape>
struct PrefillParams : DecodeParams<Shape::kHeadDim, Shape::kValueDim> {
  ResultParams<Shape::kHeadDim> result;
  bool writes;  // results, not sums
};

// Copies of packed stages, by a warp, in the order of stages.
template <class Shape>
struct PrefillLoader {
  Pieces<Shape> pieces;
  int32_t const* pages;
  uint8_t const* head;
  int64_t page_stride;
  int last_page, end_page, end_stage, known;

  __device__ __forceinline__ PrefillLoader(gemmill_kv_attention_args const& args, PrefillPlace const& at, int lane)
      : pieces(static_cast<int>(args.page_size), lane), page_stride(args.page_stride), end_stage(at.end_stage) {
    int const page_size = static_cast<int>(args.page_size);
    last_page = static_cast<int>(min(args.pages - 1, int64_t{INT32_MAX})), end_page = (at.length + page_size - 1) / page_size;
    pages = args.block_table + at.batch * args.table_stride;
    head = args.cache + at.kv_head * page_size * Shape::kTokenBytes + pieces.from;
    known = exists(at.first_stage, lane) ? pages[pieces.page_of(at.first_stage, lane)] : 0;
  }
  __device__ __forceinline__ bool exists(int stage, int lane) const {
    return stage < end_stage && lane < pieces.count && pieces.page_of(stage, lane) < end_page;
  }
  __device__ __forceinline__ void bring(int stage, uint8_t* to, uint64_t* arrived, int lane) {
    int64_t const page = min(max(known, 0), last_page);
    bool const copies = exists(stage, lane);
    known = exists(stage + 1, lane) ? pages[pieces.page_of(stage + 1, lane)] : 0;
    if (lane == 0) {
      int const left = end_page - pieces.page_of(stage, 0);
      expect_bytes(arrived, pieces.is_half ? Shape::kStageBytes : min(left, pieces.count) * pieces.bytes);
    }
    __syncwarp();
    if (copies) bulk_copy(to + pieces.to, head + page * page_stride + (stage % 2) * pieces.from_odd, pieces.bytes, arrived);
  }
};

// A stage's keys or values to f16, by a warpgroup: a lane takes 32 codes at a time.
template <class Shape, class Codes, int kBytes>
__device__ __forceinline__ void decode_side(CentroidBytes const& table, uint8_t const* packed, int field, int page_shift, uint8_t* tile) {
  constexpr int kParts = Shape::kHeadDim / 32, kTileTokens = 128 / kParts;
  int const thread = threadIdx.x % 128, part = thread % kParts;
#pragma unroll
  for (int round = 0; round < kStageTokens / kTileTokens; ++round) {
    int const token = thread / kParts + round * kTileTokens, piece = token >> page_shift, tokens = 1 << page_shift;
    uint8_t const* const from = packed + piece * tokens * Shape::kTokenBytes + field + (token - piece * tokens) * kBytes;
    Codes codes(from + part * (kBytes / kParts));
    // Lanes of the second half of a vector take their units in another order, or they would meet those of the first half in banks.
    bool const is_second = kParts == 4 && part >= 2;
    uint8_t* const to = tile + part / 2 * Shape::kChunkBytes + token * 128;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t const unit = is_second ? codes.units[i ^ 2] : codes.units[i];
      int const place = part % 2 * 4 + (is_second ? i ^ 2 : i);
      *reinterpret_cast<uint4*>(to + (place ^ token % 8) * 16) = Codes::centroids(table, unit);
    }
  }
}

// A warpgroup's loop over stages: that of keys, whose first warp brings stages too, or that of values.
template <class Shape, bool kOfKeys>
__device__ __forceinline__ void decode_stages(PrefillParams<Shape> const& params, PrefillPlace const& at, uint8_t* shared,
                                              PrefillBarriers<Shape> const& barriers) {
  using Codes = std::conditional_t<kOfKeys, typename Shape::Keys, typename Shape::Values>;
  int const thread = threadIdx.x % 128, lane = thread % 32, count = at.end_stage - at.first_stage;
  CentroidBytes const table(params.centroids.bits[kOfKeys ? 0 : 1] + Codes::kFirst);
  int const tokens = min(static_cast<int>(params.args.page_size), kStageTokens), page_shift = __ffs(tokens) - 1;
  int const field = Shape::field(kOfKeys ? 0 : 2, tokens);
  uint64_t *const full = kOfKeys ? barriers.full_keys : barriers.full_values, *const empty = kOfKeys ? barriers.empty_keys : barriers.empty_values;
  uint8_t *const tiles = shared + (kOfKeys ? 0 : Shape::kValueTiles), *const packed = shared + Shape::kPacked;
  bool const brings = kOfKeys && thread < 32;
  PrefillLoader<Shape> loader(params.args, at, lane);
  if (brings) {
    for (int i = 0; i < min(Shape::kAhead, count); ++i) loader.bring(at.first_stage + i, packed + i * Shape::kStageBytes, &barriers.arrived[i], lane);
  }
  Turn<Shape::kTiles> tile;
  Turn<Shape::kPackedStages> own, next{Shape::kAhead, 0};
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if (brings && i + Shape::kAhead < count) {
      wait(&barriers.decoded[next.slot], next.parity ^ 1);
      loader.bring(at.first_stage + i + Shape::kAhead, packed + next.slot * Shape::kStageBytes, &barriers.arrived[next.slot], lane);
      next.advance();
    }
    uint8_t const* const stage = packed + own.slot * Shape::kStageBytes;
    wait(&barriers.arrived[own.slot], own.parity);
    wait(&empty[tile.slot], tile.parity ^ 1);
    decode_side<Shape, Codes, kOfKeys ? Shape::kKeyBytes : Shape::kValueBytes>(table, stage, field, page_shift, tiles + tile.slot * Shape::kTileBytes);
    if constexpr (kOfKeys) {  // the norms of both sides: weights have values' before values are waited for
      int const of_values = thread / kStageTokens, token = thread % kStageTokens, piece = token >> page_shift;
      int const norm = piece * tokens * Shape::kTokenBytes + Shape::field(of_values != 0 ? 3 : 1, tokens) + (token - piece * tokens) * 2;
      float const factor = to_float(*reinterpret_cast<__half const*>(stage + norm));
      reinterpret_cast<float*>(shared + Shape::kFactors)[tile.slot * 2 * kStageTokens + thread] = of_values != 0 ? factor : params.scale * factor;
    }
    publish_stores();
    __syncwarp();
    if (lane == 0) arrive(&full[tile.slot]), arrive(&barriers.decoded[own.slot]);
    tile.advance(), own.advance();
  }
}

// A warp's running softmax and sums, of rows g and g + 8 of its 16.
template <class Shape>
struct PrefillRunning {
  float max[2] = {kNothing, kNothing}, sum[2] = {};  // of the lane's tokens
  float out[Shape::kHeadDim / 2] = {};
};

// Which tokens the lane's rows see: first <= token <= last.
struct RowsSeen {
  int first[2], last[2];
  int all_from, all_to;  // of tokens that every row of the tile sees

  template <class Params>
  __device__ __forceinline__ RowsSeen(Params const& params, Place const& at, int rows, int own_row) {
    auto const& args = params.args;
    int const window = static_cast<int>(min(args.window, int64_t{1 << 30})), start = static_cast<int>(at.length - args.rows);
    auto const last_of = [&](int64_t row) { return args.causal != 0 ? min(start + static_cast<int>(row / params.group), at.length - 1) : at.length - 1; };
    auto const first_of = [&](int64_t row) { return window > 0 ? start + static_cast<int>(row / params.group) - window + 1 : 0; };
#pragma unroll
    for (int i = 0; i < 2; ++i) first[i] = first_of(at.first_row + own_row + 8 * i), last[i] = last_of(at.first_row + own_row + 8 * i);
    all_from = first_of(at.first_row + rows - 1), all_to = last_of(at.first_row);
  }
  __device__ __forceinline__ bool operator()(int row, int token) const { return token >= first[row] && token <= last[row]; }
  __device__ __forceinline__ bool all(int token) const { return token >= all_from && token + kStageTokens - 1 <= all_to; }
};

// Scores to weights times their values' norms, in place. Returns whether maxima move, with headroom, and so by how much earlier sums shrink.
template <bool kPlain, class Shape>
__device__ __forceinline__ bool weigh_stage(float (&s)[kStageTokens / 2], float (&shrink)[2], PrefillRunning<Shape>& running, RowsSeen const& seen,
                                            float const* factors, int token, float cap, int t) {
  float2 const* const of_keys = reinterpret_cast<float2 const*>(factors) + t;
  float2 const* const of_values = of_keys + kStageTokens / 2;
  float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int j = 0; j < kStageTokens / 8; ++j) {
    float2 const factor = of_keys[4 * j];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float scaled = s[4 * j + i] * (i % 2 == 0 ? factor.x : factor.y);
      if (!kPlain && cap > 0.0f) scaled = cap - 2.0f * cap / (power_of_two(scaled) + 1.0f);  // cap tanh(x), by 2 x
      if (!kPlain && !seen(i / 2, token + 8 * j + 2 * t + i % 2)) scaled = -INFINITY;
      s[4 * j + i] = scaled, largest[i / 2] = fmaxf(largest[i / 2], scaled);
    }
  }
  bool const grows = __any_sync(0xFFFFFFFFu, largest[0] > running.max[0] || largest[1] > running.max[1]);
  if (grows) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      largest[row] = fmaxf(largest[row], __shfl_xor_sync(0xFFFFFFFFu, largest[row], 1));
      largest[row] = fmaxf(largest[row], __shfl_xor_sync(0xFFFFFFFFu, largest[row], 2));
      float const max = largest[row] > running.max[row] ? largest[row] + kHeadroom : running.max[row];
      shrink[row] = power_of_two(running.max[row] - max);
      running.max[row] = max, running.sum[row] *= shrink[row];
    }
  }
#pragma unroll
  for (int j = 0; j < kStageTokens / 8; ++j) {
    float2 const factor = of_values[4 * j];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float const weight = power_of_two(s[4 * j + i] - running.max[i / 2]), weighed = weight * (i % 2 == 0 ? factor.x : factor.y);
      running.sum[i / 2] += weight;
      s[4 * j + i] = kPlain || seen(i / 2, token + 8 * j + 2 * t + i % 2) ? weighed : 0.0f;
    }
  }
  return grows;
}

// S = Q K^T of a stage's tile.
template <class Shape>
__device__ __forceinline__ void begin_scores(float (&s)[kStageTokens / 2], uint32_t const (&q)[Shape::kHeadDim / 16][4], uint32_t tile) {
#pragma unroll
  for (int step = 0; step < Shape::kHeadDim / 16; ++step) {
    multiply_64<false>(s, q[step], columns_in_rows(tile + step / 4 * Shape::kChunkBytes + step % 4 * 32), step > 0);
  }
}

// O += P V of a stage's tile.
template <class Shape>
__device__ __forceinline__ void begin_output(float (&out)[Shape::kHeadDim / 2], uint32_t const (&p)[kStageTokens / 16][4], uint32_t tile) {
#pragma unroll
  for (int step = 0; step < kStageTokens / 16; ++step) {
    uint64_t const b = columns_along_rows<Shape::kChunkBytes>(tile + step * 16 * 128);
    if constexpr (Shape::kHeadDim == 128) multiply_128<true>(out, p[step], b, true);
    else multiply_64<true>(out, p[step], b, true);
  }
}

template <class Shape>
__device__ __forceinline__ void attend_stages(PrefillParams<Shape> const& params, PrefillPlace const& at, uint8_t* shared,
                                              PrefillBarriers<Shape> const& barriers, PrefillRunning<Shape>& running) {
  constexpr int kHeadDim = Shape::kHeadDim;
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, count = at.end_stage - at.first_stage;
  uint32_t q[kHeadDim / 16][4];
  uint16_t const* const own_queries = reinterpret_cast<uint16_t const*>(shared + Shape::kQueries) + (16 * warp + g) * kHeadDim;
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint16_t const* const unit = own_queries + i % 2 * 8 * kHeadDim + 16 * step + i / 2 * 8;
      q[step][i] = unit[Shape::Keys::element(2 * t)] | static_cast<uint32_t>(unit[Shape::Keys::element(2 * t + 1)]) << 16;
    }
  }
  if (count <= 0) return;
  RowsSeen const seen(params, at, Shape::kRows, 16 * warp + g);
  uint32_t const key_tiles = shared_address(shared), value_tiles = key_tiles + Shape::kValueTiles;
  float const* const factors = reinterpret_cast<float const*>(shared + Shape::kFactors);
  Turn<Shape::kTiles> keys, values;
  float s[kStageTokens / 2] = {}, shrink[2];
  uint32_t p[kStageTokens / 16][4];
  auto const weigh = [&](int stage) {  // and lets go of the keys
    int const token = stage * kStageTokens;
    float const* const own = factors + keys.slot * 2 * kStageTokens;
    bool const grows = seen.all(token) && params.cap == 0.0f ? weigh_stage<true>(s, shrink, running, seen, own, token, params.cap, t)
                                                             : weigh_stage<false>(s, shrink, running, seen, own, token, params.cap, t);
    __syncwarp();
    if (lane == 0) arrive(&barriers.empty_keys[keys.slot]);
    keys.advance();
    return grows;
  };
  auto const pack = [&] {
#pragma unroll
    for (int i = 0; i < kStageTokens / 4; ++i) p[i / 4][i % 4] = two_elements<__half>(s[2 * i], s[2 * i + 1]);
  };
  wait(&barriers.full_keys[0], 0);
  begin_products();
  begin_scores<Shape>(s, q, key_tiles);
  end_group_of_products();
  wait_for_products<0>();
  settle(s);
  weigh(at.first_stage);
  pack();
  auto const let_values_go = [&] {
    wait_for_products<0>();
    settle(running.out);
    __syncwarp();
    if (lane == 0) arrive(&barriers.empty_values[values.slot]);
    values.advance();
  };
#pragma unroll 1
  for (int stage = at.first_stage + 1; stage < at.end_stage; ++stage) {
    wait(&barriers.full_keys[keys.slot], keys.parity);
    wait(&barriers.full_values[values.slot], values.parity);
    begin_products();
    begin_scores<Shape>(s, q, key_tiles + keys.slot * Shape::kTileBytes);
    end_group_of_products();
    begin_output<Shape>(running.out, p, value_tiles + values.slot * Shape::kTileBytes);
    end_group_of_products();
    wait_for_products<1>();
    settle(s);
    bool const grows = weigh(stage);
    let_values_go();
    if (grows) {
#pragma unroll
      for (int j = 0; j < kHeadDim / 2; ++j) running.out[j] *= shrink[j / 2 % 2];
    }
    pack();
  }
  wait(&barriers.full_values[values.slot], values.parity);
  begin_products();
  begin_output<Shape>(running.out, p, value_tiles + values.slot * Shape::kTileBytes);
  end_group_of_products();
  let_values_go();
}

// A warp's sums and states to shared memory: [rows][kSumStride] and [rows].
template <class Shape>
__device__ __forceinline__ void leave_prefill_sums(PrefillRunning<Shape> const& running, float* sums, float2* states) {
  int const lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, first = 16 * (threadIdx.x / 32) + g;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float sum = running.sum[row];
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    if (t == 0) states[first + 8 * row] = make_float2(running.max[row], sum);
    float* const to = sums + (first + 8 * row) * Shape::kSumStride;
#pragma unroll
    for (int j = 0; j < Shape::kHeadDim / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) to[8 * j + Shape::Values::element(2 * t + i)] = running.out[4 * j + 2 * row + i];
    }
  }
}

// Rows to the result, or to the sums of a slice. A warp takes a row at a time.
template <class Element, class Shape>
__device__ __forceinline__ void leave_prefill_rows(PrefillParams<Shape> const& params, Place const& at, float const* sums, float2 const* states) {
  constexpr int kOwn = Shape::kHeadDim / 32;
  int const lane = threadIdx.x % 32;
  int64_t const first = static_cast<int64_t>(blockIdx.x) * Shape::kRows;
  for (int row = threadIdx.x / 32; row < Shape::kRows; row += Shape::kConsumerWarps) {
    int64_t const flat = at.first_row + row;
    if (flat >= params.args.rows * params.group) break;
    int64_t const head = at.kv_head * params.group + flat % params.group;
    RowState state(params.writes ? params.result.sinks : nullptr, head);
    float const sink = state.largest, of_sink = state.sum;
    state.largest = fmaxf(sink, states[row].x);
    float const share = power_of_two(states[row].x - state.largest);
    state.sum = of_sink * power_of_two(sink - state.largest) + share * states[row].y;
    float y[kOwn], none[kOwn] = {};
#pragma unroll
    for (int k = 0; k < kOwn; ++k) y[k] = share * sums[row * Shape::kSumStride + 32 * k + lane];
    if (params.writes) {
      finish_row<Element, Shape::kHeadDim>(params.result, at.batch, flat / params.group, head, state, y, none);
    } else {
#pragma unroll
      for (int k = 0; k < kOwn; ++k) params.partial.out[(first + row) * Shape::kHeadDim + 32 * k + lane] = y[k];
      if (lane == 0) params.partial.max_sum[first + row] = make_float2(state.largest, state.sum);
    }
  }
}

// Grid: batch, KV heads, tiles of rows and slices in one number, slices first.
template <class Variant, class Element, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1) attend_rows(__grid_constant__ PrefillParams<Shape> const params) {
  extern __shared__ __align__(128) uint8_t shared[];
  PrefillBarriers<Shape> const barriers(shared);
  if (threadIdx.x == 0) {
    if (shared_address(shared) % 1024 != 0) __trap();  // tiles would not begin where their swizzle does
    barriers.initialise_all();
    publish_barriers();
  }
  __syncthreads();
  wait_for_predecessor();
  PrefillPlace const at(params, Shape::kRows);
  int const group = threadIdx.x / 128;
  if (group >= Shape::kConsumerGroups) {
    leave_registers<Shape::kDecoderRegisters>();
    if (group == Shape::kConsumerGroups) decode_stages<Shape, true>(params, at, shared, barriers);
    else decode_stages<Shape, false>(params, at, shared, barriers);
    return;
  }
  take_registers<Shape::kConsumerRegisters>();
  rotate_queries<Element, Shape>(params, at, reinterpret_cast<__half*>(shared + Shape::kQueries), [](int element, int) { return element; });
  sync_threads(kConsumerBarrier, 32 * Shape::kConsumerWarps);
  PrefillRunning<Shape> running;
  attend_stages<Shape>(params, at, shared, barriers, running);
  float* const sums = reinterpret_cast<float*>(shared);
  float2* const states = reinterpret_cast<float2*>(sums + Shape::kRows * Shape::kSumStride);
  sync_threads(kConsumerBarrier, 32 * Shape::kConsumerWarps);  // every tile has been read: the memory is free
  leave_prefill_sums<Shape>(running, sums, states);
  sync_threads(kConsumerBarrier, 32 * Shape::kConsumerWarps);
  leave_prefill_rows<Element, Shape>(params, at, sums, states);
}

// Host code: launches. The parts of one:
struct PrefillPlan : DecodePlan {
  using DecodePlan::DecodePlan;  // each slice has a block: its warps keep no sums of slices before
  bool writes() const { return slices == 1; }
};

template <int kHeadDim>
int64_t prefill_workspace(gemmill_kv_attention_args const& args, gemmill_launch const& how) {
  constexpr int kRows = PrefillShape<kHeadDim, 4, 4>::kRows;
  PrefillPlan const plan(args, how, kRows);
  return plan.writes() ? 0 : Partial<kHeadDim>::bytes(plan.all_tiles * plan.slices * kRows);
}

template <class Variant, class Element, class Shape>
int32_t prefill_attention(gemmill_kv_attention_args const& args, gemmill_launch const& how, Centroids const& centroids) {
  constexpr int kHeadDim = Shape::kHeadDim;
  PrefillPlan const plan(args, how, Shape::kRows);
  if (plan.all_tiles == 0) return 0;
  int64_t const blocks = plan.all_tiles * plan.slices;
  auto const partial = Partial<kHeadDim>::at(how.workspace, blocks * Shape::kRows);
  auto const signs = signs_of<kHeadDim>(static_cast<uint64_t>(args.seed));
  int const group = static_cast<int>(args.heads / args.kv_heads), slices = static_cast<int>(plan.slices), tiles = static_cast<int>(plan.tiles);
  ResultParams<kHeadDim> const result{args.out, args.lse, args.sinks, args.batch, args.rows, args.heads, args.kv_heads,
                                      args.out_stride, signs, args.seed >= 0 && args.rotated_out == 0, nullptr};
  PrefillParams<Shape> params{{args, partial, signs, centroids, tiles, slices, group, args.scale * kLog2E, 0.0f},
                              result, plan.writes()};
  if (args.softcap > 0.0f) params.cap = args.softcap * kLog2E, params.scale = 2.0f * params.scale / args.softcap;
  constexpr auto attend = attend_rows<Variant, Element, Shape>;
  if (cudaError_t error = allow_shared_memory<attend>(how.device, Shape::kSharedBytes); error != cudaSuccess) return error;
  void* to_attend[] = {&params};
  LaunchShape const attends{dim3(static_cast<unsigned>(blocks)), dim3(Shape::kThreads), dim3(1), Shape::kSharedBytes};
  if (int32_t const error = launch_kernel<attend>(attends, how, to_attend); error != 0 || plan.writes()) return error;
  CombineParams<kHeadDim> combining{result, partial, tiles, slices, Shape::kRows, group};
  void* to_combine[] = {&combining};
  LaunchShape const combines{dim3(static_cast<unsigned>(plan.all_tiles * Shape::kRows / (kCombineThreads / 32))), dim3(kCombineThreads), dim3(1), 0};
  return launch_kernel<combine_slices<Variant, Element, kHeadDim>>(combines, how, to_combine);
}

}  // namespace gemmill::kv_cache
