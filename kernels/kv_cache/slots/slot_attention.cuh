// Attention over packed keys and values in slots, of a compile-time format (slot_readers.cuh): decode_attention's work, on vectors that
// may begin at any even byte.
//
// A block takes up to eight KV heads of one sequence, a tile of eight rows and a slice of the tokens. Two groups of eight consumer warps
// take stages in turn, or where slices are fixed a run of slices each, a warp 16 tokens of a head; vectors of more than 128 elements have several warps (shares.cuh). Each group has a
// producer warp, which brings its stages by bulk copies: 16 tokens with all their heads at a time, or token by token, where rows of
// memory would meet in shared memory's banks or a token has more heads than a block takes. Copies begin and end at multiples of 16 bytes,
// so they may read up to 15 bytes more than needed, never beyond the 16 bytes of the first or last needed one.
//
// Slices write sums in the values' basis; combine_slices or combine_many_slices adds them in their order, rotates back and rounds. Nothing beyond a length
// counts, and the kernel reads no page that the cache has not.
#pragma once

#include "core/launch.cuh"
#include "core/programmatic.cuh"
#include "kv_cache/shared/decode_tiles.cuh"
#include "kv_cache/slots/slot_queries.cuh"

namespace gemmill::kv_cache {

// Queries of the block's heads in the keys' basis as f16, [heads][rows][d], each element at its place of a row: a warp takes a row at a time.
template <class Element, class Shape>
__device__ __forceinline__ void load_slot_queries(SlotParams<Shape> const& params, SlotPlace const& at, __half* queries) {
  using Keys = typename Shape::Keys;
  constexpr int kHeadDim = Shape::kHeadDim, kOwn = kHeadDim / 32;
  auto const& args = params.args;
  int const lane = threadIdx.x % 32, count = params.heads * Shape::kRows, last = static_cast<int>(args.rows * params.group);
  int const first_row = static_cast<int>(at.first_row());
  int const shift = __ffs(params.heads) - 1;  // heads in turn, so that rows that there are come first
  auto const head_of = [&](int i) { return i & (params.heads - 1); };
  constexpr int kMost = Shape::kMostHeads * Shape::kRows / kSlotConsumers;  // of a warp, which are all under way before one is used
  Element loaded[kMost][kOwn];
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
    int const i = threadIdx.x / 32 + j * kSlotConsumers, flat = first_row + (i >> shift), row = row_of(params, flat);
    int const head = (at.first_head + head_of(i)) * params.group + flat - row * params.group;
    Element const* const from = static_cast<Element const*>(args.q) + at.batch * args.q_batch_stride + row * args.q_row_stride +
                                head * args.q_head_stride + lane;
    bool const exists = i < count && flat < last;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) loaded[j][k] = exists ? from[32 * k] : to_element<Element>(0.0f);
  }
  bool const turns = Keys::kRotation != kNone && args.seed >= 0;
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
    int const i = threadIdx.x / 32 + j * kSlotConsumers, row = i >> shift;
    if (i >= count) break;
    float y[kOwn];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) y[k] = to_float(loaded[j][k]);
    if (turns && first_row + row < last) turn<kHeadDim>(y, Keys::kRotation, params.signs);
    __half* const to = queries + (head_of(i) * Shape::kRows + row) * kHeadDim;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) to[QueryPlaces<Keys::kQueryUnit>()(32 * k + lane, row)] = to_element<__half>(turns ? y[k] * kInverseRoot<kHeadDim> : y[k]);
  }
}

// Brings a group's stages, one after the other: a lane a piece, of the first span or, from lane 16 on, of the second.
template <class Shape, bool kByGroup>
__device__ __forceinline__ void produce_slots(SlotParams<Shape> const& params, SlotPlace const& at, DealtPart const& dealt, uint8_t* shared,
                                              uint64_t* full, uint64_t* empty) {
  constexpr int kStep = kByGroup ? 1 : kSlotGroups;
  auto const& args = params.args;
  int const lane = threadIdx.x % 32, piece = lane % 16, group = threadIdx.x / 32 - kSlotConsumers;
  Run const run = at.template run<kByGroup>(params, dealt, group);
  bool const takes_second = lane >= 16 && params.span_count == 2;
  SlotSpan const& span = params.spans[takes_second ? 1 : 0];
  int const tokens = params.by_token ? 1 : kWarpTokens, pieces = at.stage_tokens / tokens;
  bool const is_used = piece < pieces && (lane < 16 || takes_second);
  int const to = span.begin + piece * (params.by_token ? span.stride : span.tile_stride);
  int64_t const head_group = at.first_head / params.heads;
  int const misaligned = span.misaligned(head_group);
  uint8_t const* const base = span.first(head_group) - misaligned;
  int const page_size = static_cast<int>(args.page_size), last_page = static_cast<int>(min(args.pages - 1, int64_t{INT32_MAX}));
  int32_t const* const table = args.block_table == nullptr ? nullptr : args.block_table + at.batch * args.table_stride;
  auto const token_of_stage = [&](int stage) { return stage * at.stage_tokens + piece * tokens; };
  auto const exists = [&](int stage) { return is_used && stage < run.end_stage && token_of_stage(stage) < at.length; };
  auto const page_of = [&](int stage) {
    return table == nullptr ? static_cast<int>(at.batch) : exists(stage) ? table[token_of_stage(stage) / page_size] : 0;
  };
  int const first = run.first_stage + (kByGroup ? 0 : group);
  int known = page_of(first), slot = group, phase = 1;
#pragma unroll 1
  for (int stage = first; stage < run.end_stage; stage += kStep) {
    int64_t const page = min(max(known, 0), last_page);
    bool const copies = exists(stage);
    int const place = token_of_stage(stage) % page_size, count = min(tokens, page_size - place);
    int const wanted = misaligned + (count - 1) * span.token_stride + span.token_bytes;
    int const bytes = copies ? (wanted + 15) / 16 * 16 : 0;
    known = page_of(stage + kStep);
    int const all = static_cast<int>(__reduce_add_sync(0xFFFFFFFFu, static_cast<unsigned>(bytes)));
    wait(&empty[slot], phase);
    if (lane == 0) expect_bytes(&full[slot], all);
    __syncwarp();
    if (copies) {
      uint8_t const* const from = base + page * span.page_stride + static_cast<int64_t>(place) * span.token_stride;
      bulk_copy(shared + params.stage(slot) + to, from, bytes, &full[slot]);
    }
    if ((slot += kSlotGroups) >= params.stages) slot -= params.stages, phase ^= 1;
  }
}

// Scores to output. Each use computes again which tokens a row sees: few tiles need it, and registers are few.
template <bool kPlain, class Shape>
__device__ __forceinline__ void weigh_slots(float (&s)[1][4], Running<Shape>& running, typename Shape::Values& values,
                                            SlotParams<Shape> const& params, SlotPlace const& at, float const (&of_key)[2],
                                            SlotTile const& of_values, int token, uint32_t pairs) {
  int const lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  Seen<Shape> const seen(params, fresh(at.tile) * kRowsOfTile, fresh(at.length), fresh(t));
  settle_scores<kPlain>(s, running, seen, of_key, token, params.cap, g);
  weigh_scores(s, running);
  values.template add<kPlain>(running, s, seen, token, of_values, pairs, g, t);
}

// A warp's sums and states to shared memory, as decode_attention leaves them.
template <class Shape, int kCount>
__device__ __forceinline__ void leave_slot_sums(Running<Shape> const& running, typename Shape::Values const& values, int warp, int first,
                                                int end, float* sums, float2* states) {
  int const lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    int const at = 2 * t + row;
    float sum = running.sum[0][row], zeros = running.zeros[0][row];
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
      if constexpr (Shape::kHasZeros) zeros += __shfl_xor_sync(0xFFFFFFFFu, zeros, distance);
    }
    if (g == 0 && first == 0) states[warp * Shape::kRows + at] = make_float2(running.max[0][row], sum);
    if (at < first || at >= end) continue;
    float* const to = sums + (warp * kCount + at - first) * Shape::kSumStride;
#pragma unroll
    for (int step = 0; step < Shape::kSteps; ++step) {
      float const(&own)[4] = running.out[0][step];
      *reinterpret_cast<float2*>(to + Shape::Values::element(g, step)) =
          make_float2(__fmaf_rn(own[row], values.factor(2 * step), zeros), __fmaf_rn(own[2 + row], values.factor(2 * step + 1), zeros));
    }
  }
}

// The sums of each head's warps to one, in the order of the `kWarps` warps, and to memory. A warp takes a share of a row at a time, a lane
// as many of its elements as any.
template <class Shape, int kWarps, int kCount>
__device__ __forceinline__ void join_slot_sums(SlotParams<Shape> const& params, SlotBlock const& at, int own_warp, int64_t place, int slices, int first,
                                               int end, float const* sums, float2 const* states) {
  constexpr int kHeadDim = Shape::kHeadDim, kRows = Shape::kRows;
  constexpr int kShares = Shape::kShares, kShareDim = Shape::kShareDim, kOwn = kShareDim / 32;
  static_assert(kOwn == 2 || kOwn == 4, "A lane's elements are one load.");
  using Own = std::conditional_t<kOwn == 4, float4, float2>;
  int const lane = threadIdx.x % 32;
  for (int i = own_warp; i < params.heads * (end - first) * kShares; i += kWarps) {
    int const which = i % kShares, head = i / kShares & (params.heads - 1), row = i / kShares >> (__ffs(params.heads) - 1);
    float largest = kNothing, sum = 0.0f, out[kOwn] = {};
    for (int w = head; w < kWarps / kShares; w += params.heads) largest = fmaxf(largest, states[w * kShares * kRows + first + row].x);
    for (int w = head; w < kWarps / kShares; w += params.heads) {
      int const warp = w * kShares + which;
      float2 const state = states[warp * kRows + first + row];
      float const share = power_of_two(state.x - largest);
      Own const loaded = reinterpret_cast<Own const*>(sums + (warp * kCount + row) * Shape::kSumStride)[lane];
      float own[kOwn];
      memcpy(own, &loaded, sizeof own);
      sum = __fmaf_rn(share, state.y, sum);
#pragma unroll
      for (int j = 0; j < kOwn; ++j) out[j] = __fmaf_rn(share, own[j], out[j]);
    }
    if constexpr (Shape::Values::kIsScaled) {
      float const scale = scale_of_head(params.args.value_scales, at.first_head + head);
#pragma unroll
      for (int j = 0; j < kOwn; ++j) out[j] *= scale;
    }
    int64_t const to = (place + static_cast<int64_t>(head * params.tiles) * slices) * kRows + first + row;
    Own stored;
    memcpy(&stored, out, sizeof stored);
    reinterpret_cast<Own*>(params.partial.out + to * kHeadDim + which * kShareDim)[lane] = stored;
    if (lane == 0 && which == 0) params.partial.max_sum[to] = make_float2(largest, sum);
  }
}

// The running sums of all warps, or with `kByGroup` of the group's, as those of a sequence's slice, `kCount` rows at a time. A head's only
// warp of a group waits for nobody.
template <class Shape, int kCount, bool kByGroup>
__device__ __forceinline__ void store_slot_slice(SlotParams<Shape> const& params, Running<Shape> const& running,
                                                 typename Shape::Values const& values, int batch, int slice, uint8_t* memory) {
  constexpr int kWarps = kByGroup ? kSlotGroupWarps : kSlotConsumers;
  SlotBlock const at(params, fresh(blockIdx.x));
  int const valid_rows = static_cast<int>(min(params.args.rows * params.group - at.first_row(), int64_t{Shape::kRows}));
  int const group = kByGroup ? threadIdx.x / (32 * kSlotGroupWarps) : 0, warp = threadIdx.x / 32 % kWarps;
  float2* const states = reinterpret_cast<float2*>(memory) + group * kWarps * Shape::kRows;
  float* const sums = reinterpret_cast<float*>(memory + Shape::kStateBytes) + group * kWarps * kCount * Shape::kSumStride;
  bool const is_alone = kByGroup && Shape::kShares == 1 && params.heads == Shape::kMostHeads;
  // Slices of a tile follow one another where they are fixed, else the tiles of a part.
  int const slices = kByGroup ? params.slices : 1, number = kByGroup ? batch : at.part;
  int64_t const tiles = (static_cast<int64_t>(number) * params.args.kv_heads + at.first_head) * params.tiles + at.tile;
  int64_t const place = kByGroup ? tiles * slices + slice : tiles;
  auto const meet = [&] {
    if (is_alone) __syncwarp();
    else sync_threads(kByGroup ? kGroupBarrier + group : kConsumerBarrier, 32 * kWarps);
  };
  for (int first = 0; first < valid_rows; first += kCount) {
    int const end = min(first + kCount, valid_rows);
    meet();
    leave_slot_sums<Shape, kCount>(running, values, warp, first, end, sums, states);
    meet();
    join_slot_sums<Shape, kWarps, kCount>(params, at, warp, place, slices, first, end, sums, states);
  }
}

template <class Shape, bool kByGroup>
__device__ __forceinline__ void consume_slots(SlotParams<Shape> const& params, Running<Shape>& running, typename Shape::Values& values,
                                              SlotPlace const& at, Run const& run, uint8_t* shared, uint64_t* full, uint64_t* empty) {
  using Keys = typename Shape::Keys;
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  Shares<Shape::kShares> shares(shared + Shape::kScoreParts, warp);
  int const own = warp % kSlotGroupWarps / Shape::kShares, head = own % params.heads, tile = own / params.heads;
  SlotQuery<Shape::kHeadDim> q[Keys::kParts];
#pragma unroll
  for (int part = 0; part < Keys::kParts; ++part) {
    __half const* const row = reinterpret_cast<__half const*>(shared + Shape::kQueries) + ((head * Shape::kRows + g) * Keys::kParts + part) * Shape::kHeadDim;
    int const share = shares.share * Shape::kShareDim;
#pragma unroll
    for (int step = 0; step < Shape::kSteps; ++step) {
      if constexpr (Keys::kParts == 1) {
        q[part][step] = *reinterpret_cast<uint2 const*>(row + QueryPlaces<Keys::kQueryUnit>()(share + Keys::element(part, t, step, 0), g));
      } else {
        uint16_t bits[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) memcpy(&bits[i], row + share + Keys::element(part, t, step, i), sizeof bits[i]);
        q[part][step] = make_uint2(bits[0] | static_cast<uint32_t>(bits[1]) << 16, bits[2] | static_cast<uint32_t>(bits[3]) << 16);
      }
    }
  }
  uint32_t const key_pairs = shared_address(shared + Shape::kTable) + (Shape::kHasFours ? lane % 16 * 8 : lane * 4), value_pairs = key_pairs + 128;
  int64_t const head_group = at.first_head / params.heads;
  auto const begin_of = [&](SlotField const& side, SlotSpan const& span) {
    return side.begin + span.misaligned(head_group) + tile * side.tile_stride + head * side.head_stride;
  };
  int const key_begin = begin_of(params.keys, params.spans[0]), value_begin = begin_of(params.values, params.spans[1]);
  float const scale = Shape::Values::kIsScaled ? params.scale * scale_of_head(params.args.key_scales, at.first_head + head) : params.scale;
  constexpr int kStep = kByGroup ? 1 : kSlotGroups;
  // The warp's slice, stages of a slice, the run's end and the sequence lie in shared memory: in registers they spilled others.
  int slot = warp / kSlotGroupWarps, phase = 0;
  int4 volatile* const left = reinterpret_cast<int4 volatile*>(shared + Shape::kRuns) + warp;
  if (kByGroup) left->x = run.first_slice, left->y = run.of_slice, left->z = run.end_stage, left->w = at.batch;
  for (int stage = run.first_stage + (kByGroup ? 0 : slot);;) {
    int const end = kByGroup ? min(stage + left->y, left->z) : run.end_stage;
    for (; stage < end; stage += kStep) {
      int const begin = params.stage(slot), token = stage * at.stage_tokens + tile * kWarpTokens;
      wait(&full[slot], phase);
      if (token < at.length) {
        SlotTile const of_keys{shared, begin + key_begin, fresh(params.keys.stride), shares.share};
        SlotTile const of_values{shared, begin + value_begin, fresh(params.values.stride), shares.share};
        float s[1][4] = {}, square[2] = {}, of_key[2] = {scale, scale};
        Keys::score(s[0], square, of_keys, q, key_pairs, g, t);
        shares.template add<Keys::kHasSquares>(s[0], square, lane);
        Keys::factor(of_key, square, of_keys, g);
        if (at.length - token <= params.reach && token + kWarpTokens <= at.length - params.unseen && params.cap == 0.0f) {
          weigh_slots<true, Shape>(s, running, values, params, at, of_key, of_values, token, value_pairs);
        } else {
          weigh_slots<false, Shape>(s, running, values, params, at, of_key, of_values, token, value_pairs);
        }
      }
      __syncwarp();
      if (lane == 0) arrive(&empty[slot]);
      if ((slot += kSlotGroups) >= params.stages) slot -= params.stages, phase ^= 1;
    }
    if constexpr (!kByGroup) return;
    if (params.waits) sync_threads(kConsumerBarrier, 32 * kSlotConsumers);
    store_slot_slice<Shape, Shape::kRoundRows, true>(params, running, values, left->w, left->x, shared + Shape::kSums);
    if (stage >= left->z) return;
    if (lane == 0) left->x = left->x + 1;
    __syncwarp();
    running = Running<Shape>(), values = typename Shape::Values();
  }
}

// States of slices without stages, whose sums nobody reads: a block leaves its share of them.
template <class Shape>
__device__ __forceinline__ void leave_empty_slot_slices(SlotParams<Shape> const& params, SlotPlace const& at, DealtPart const& dealt, Run const& run) {
  int64_t const heads = static_cast<int64_t>(at.batch) * params.args.kv_heads + at.first_head;
  int const head = static_cast<int>(threadIdx.x) / kRowsOfTile, row = static_cast<int>(threadIdx.x) % kRowsOfTile;
  if (head >= params.heads) return;
  for (int slice = run.filled + dealt.part; slice < params.slices; slice += dealt.parts) {
    int64_t const to = (((heads + head) * params.tiles + at.tile) * params.slices + slice) * kRowsOfTile + row;
    params.partial.max_sum[to] = make_float2(kNothing, 0.0f);
  }
}

// The part that the lengths deal out to a block.
template <class Shape, bool kByGroup>
__device__ __forceinline__ DealtPart part_of_block(SlotParams<Shape> const& params, uint2* tried) {
  constexpr int kWarps = kSlotThreads / 32;
  auto const stages_of = [&](int i) { return static_cast<float>(SlotPlace(params, i).stages(params)); };
  int const batch = static_cast<int>(params.args.batch);
  if constexpr (!kByGroup) return deal_by_length<kWarps>(params.by_length, FreeParts{kSlotStartStages}, batch, stages_of, tried);
  FixedParts const kind{kSlotStartStages, static_cast<float>(params.slices), static_cast<float>(kLeastStages), static_cast<float>(kSlotGroups), kSlotSumStages, params.waits};
  return deal_by_length<kWarps>(params.by_length, kind, batch, stages_of, tried);
}

// Grid: parts of all sequences, blocks' heads and tiles of rows in one number, tiles first. A block's part is a slice, or with `kByGroup` a
// run of slices of each of its groups.
template <class Variant, class Element, class Shape, bool kByGroup>
__global__ void __launch_bounds__(kSlotThreads, 1) attend_slots(__grid_constant__ SlotParams<Shape> const params) {
  extern __shared__ __align__(128) uint8_t shared[];
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared);
  uint64_t* const empty = full + kMostSlotStages;
  if (threadIdx.x == 0) {
    if (shared_address(shared) != kReserved) __trap();  // the table would not begin where its addresses say
    for (int i = 0; i < params.stages; ++i) initialise(&full[i], 1), initialise(&empty[i], kSlotGroupWarps);
    publish_barriers();
  }
  __syncthreads();
  bool const produces = threadIdx.x / 32 >= kSlotConsumers;
  auto const make = [&] {
    if constexpr (Shape::kHasFours) make_table_of_fours<Shape>(params.centroids, shared + Shape::kTable);
    else if constexpr (Shape::kHasTable) make_table<Shape>(params.centroids, shared + Shape::kTable);
  };
  // Beyond a round a block may have nothing to do: then it ends before it makes a table.
  bool const is_late = blockIdx.x >= static_cast<uint32_t>(params.by_length.capacity);
  if (!produces && !is_late) make();
  bool const is_even = params.by_length.even_parts > 0;
  DealtPart dealt;
  if (is_even) dealt = even_part(params.by_length);
  wait_for_predecessor();

  if (!is_even) dealt = part_of_block<Shape, kByGroup>(params, reinterpret_cast<uint2*>(shared + Shape::kRuns));
  if (!dealt.exists) return;
  if (!produces && is_late) make();
  if (produces) {
    leave_registers<Shape::kProducerRegisters>();
    if (threadIdx.x / 32 < kSlotConsumers + kSlotGroups) produce_slots<Shape, kByGroup>(params, SlotPlace(params, dealt.batch), dealt, shared, full, empty);
    return;
  }
  take_registers<Shape::kConsumerRegisters>();
  SlotPlace const at(params, dealt.batch);
  Running<Shape> running;
  typename Shape::Values values;
  __half* const queries = reinterpret_cast<__half*>(shared + Shape::kQueries);
  if constexpr (Shape::Keys::kParts == 2) copy_slot_queries<Shape>(params, at, queries);
  else load_slot_queries<Element, Shape>(params, at, queries);
  Run const run = at.template run<kByGroup>(params, dealt, threadIdx.x / (32 * kSlotGroupWarps));  // waits for the length
  if constexpr (kByGroup) leave_empty_slot_slices<Shape>(params, at, dealt, run);
  sync_threads(kConsumerBarrier, 32 * kSlotConsumers);
  if constexpr (kByGroup) {
    if (run.first_slice < run.end_slice) consume_slots<Shape, true>(params, running, values, at, run, shared, full, empty);
    else if (params.waits) sync_threads(kConsumerBarrier, 32 * kSlotConsumers);
  } else {
    consume_slots<Shape, false>(params, running, values, at, run, shared, full, empty);
    // Every copy has landed and been read behind a barrier: the memory is free.
    store_slot_slice<Shape, Shape::kRows, false>(params, running, values, 0, 0, shared);
  }
}

// Host code: launches.

struct SlotPlan {
  int heads = 1;  // of a block
  int64_t group = 0, tiles = 0, all_tiles = 0, batch = 0;
  int64_t blocks_of_part = 0, parts = 0, even_parts = 0;  // as decode_attention has them
  int64_t slices = 1;
  bool by_group = false, waits = false;

  // `group_tiles` are those of a shape.
  SlotPlan(gemmill_kv_packed_attention_args const& args, gemmill_launch const& how, int group_tiles) {
    if (args.kv_heads == 0) return;
    while (heads < group_tiles && args.kv_heads % (2 * heads) == 0) heads *= 2;
    group = args.heads / args.kv_heads, tiles = (args.rows * group + kRowsOfTile - 1) / kRowsOfTile;
    all_tiles = args.batch * args.kv_heads * tiles;
    if (all_tiles == 0) return;
    int64_t const tokens = kWarpTokens * group_tiles / heads, pages = args.block_table == nullptr ? 1 : args.table_pages;
    int64_t stages = (pages * args.page_size + tokens - 1) / tokens;
    if (args.window > 0) stages = std::min(stages, std::min(args.window, stages * tokens) / tokens + 2);
    slices = slices_of(all_tiles / heads, stages, how.sm_count, args.half_waves, args.slices), by_group = args.slices > 1;
    batch = args.batch, blocks_of_part = args.kv_heads / heads * tiles;
    int64_t const half_waves = args.half_waves + (by_group || batch == 1 ? 0 : 1);  // a block has all heads, so short sequences leave few parts
    parts = parts_of(batch, blocks_of_part, stages, how.sm_count, half_waves, args.slices);
    if (batch == 1 || !by_group) even_parts = even_parts_of(batch, parts, blocks_of_part, std::max<int64_t>(stages, 1), how.sm_count, 1, kSlotGroups);
    if (even_parts > 0) parts = batch * even_parts;
  }
  // Gives each slice a block, whose sums take the memory of stages.
  void share_nothing() { parts = batch * slices, even_parts = batch == 1 ? parts : 0, waits = true; }
  // Sums of slices, each of a tile's rows.
  int64_t sums() const { return kRowsOfTile * (by_group ? all_tiles * slices : parts * blocks_of_part * heads); }
  // Of sums, and behind them where each sequence has its slices.
  template <int kHeadDim>
  int64_t partial_bytes() const {
    return (Partial<kHeadDim>::bytes(sums()) + (by_group ? 0 : batch * static_cast<int64_t>(sizeof(int2))) + 15) / 16 * 16;
  }
};

template <class Shape>
int64_t slot_workspace(gemmill_kv_packed_attention_args const& args, gemmill_launch const& how) {
  int64_t const of_slices = SlotPlan(args, how, Shape::kGroupTiles).template partial_bytes<Shape::kHeadDim>();
  return of_slices + (Shape::Keys::kParts == 2 ? slot_query_bytes<Shape>(args) : 0);
}

// How a span of `bytes` of each head's slot from `first` on lies in memory and in a stage.
inline SlotSpan span_of(gemmill_kv_packed_attention_args const& args, SlotPlan const& plan, uint8_t const* first, int64_t page_stride,
                        int64_t token_stride, int64_t head_stride, int bytes, bool by_token) {
  SlotSpan span{};
  span.base = first, span.page_stride = args.pages > 1 ? page_stride : 0, span.token_stride = static_cast<int>(token_stride);
  span.heads_stride = static_cast<int>(plan.heads * head_stride);
  int const misaligned = span.heads_stride % 16 == 0 ? static_cast<int>(reinterpret_cast<uintptr_t>(first) % 16) : 15;  // at most
  span.token_bytes = static_cast<int>((plan.heads - 1) * head_stride + bytes);
  int const copied = (misaligned + span.token_bytes + 15) / 16 * 16;
  span.stride = by_token ? copied / 16 % 2 == 0 ? copied + 16 : copied : span.token_stride;  // rows of odd pieces of 16 do not meet
  span.tile_stride = by_token ? kWarpTokens * span.stride : kWarpTokens * span.token_stride + 32;
  return span;
}

// Where spans and fields lie in a stage, and how many stages there are.
template <class Shape>
void lay_out(SlotParams<Shape>& params, SlotPlan const& plan) {
  constexpr int kKeyBytes = Shape::Keys::kBytes, kValueBytes = Shape::Values::kBytes;
  auto const& args = params.args;
  bool const has_one = args.kv_heads == 1;
  int64_t const key_head = has_one ? args.key_token_stride : args.key_head_stride;
  int64_t const value_head = has_one ? args.value_token_stride : args.value_head_stride;
  bool const same = args.key_page_stride == args.value_page_stride && args.key_token_stride == args.value_token_stride && key_head == value_head;
  int64_t const apart = args.values - args.keys;
  bool const are_joined = same && apart < key_head && -apart < key_head;
  auto const is_whole = [&](int64_t token_stride) { return token_stride % 16 == 0; };
  auto const is_even = [&](int64_t token_stride) { return token_stride / 16 % 2 == 0; };
  params.by_token = plan.heads == Shape::kMostHeads && is_whole(args.key_token_stride) && is_whole(args.value_token_stride) &&
                    (args.kv_heads > plan.heads || is_even(args.key_token_stride) || is_even(args.value_token_stride));
  int64_t const key_at = are_joined && apart < 0 ? -apart : 0, value_at = are_joined && apart > 0 ? apart : 0;
  int64_t const joined = std::max(key_at + kKeyBytes, value_at + kValueBytes);
  params.spans[0] = span_of(args, plan, args.keys - key_at, args.key_page_stride, args.key_token_stride, key_head,
                            are_joined ? static_cast<int>(joined) : kKeyBytes, params.by_token);
  params.spans[1] = params.spans[0], params.span_count = 1;
  int const tiles = Shape::kGroupTiles / plan.heads;
  params.stage_bytes = tiles * params.spans[0].tile_stride;
  if (!are_joined) {
    params.spans[1] = span_of(args, plan, args.values, args.value_page_stride, args.value_token_stride, value_head, kValueBytes, params.by_token);
    params.spans[1].begin = params.stage_bytes, params.span_count = 2;
    params.stage_bytes += tiles * params.spans[1].tile_stride;
  }
  auto const field = [](SlotSpan const& span, int64_t begin, int64_t head_stride) {
    return SlotField{static_cast<int>(span.begin + begin), static_cast<int>(head_stride), span.stride, span.tile_stride};
  };
  params.keys = field(params.spans[0], key_at, key_head), params.values = field(params.spans[1], value_at, value_head);
  params.stage_bytes = (params.stage_bytes + 127) / 128 * 128;
  int const below = std::min((Shape::kTable - Shape::kFirstStages) / params.stage_bytes, kMostSlotStages);
  int const end = plan.by_group && !plan.waits ? Shape::kSums : Shape::kEnd, above = (end - Shape::kMoreStages) / params.stage_bytes;
  params.stages = std::min(below + above, kMostSlotStages) / kSlotGroups * kSlotGroups, params.stages_below = below;
}

template <class Variant, class Element, class Shape>
int32_t attend_in_slots(gemmill_kv_packed_attention_args const& args, gemmill_launch const& how, Centroids const& centroids) {
  constexpr int kHeadDim = Shape::kHeadDim;
  SlotPlan plan(args, how, Shape::kGroupTiles);
  if (plan.all_tiles == 0) return 0;
  Signs<kHeadDim> const own = args.seed >= 0 ? signs_of<kHeadDim>(static_cast<uint64_t>(args.seed)) : Signs<kHeadDim>{};
  SlotParams<Shape> params{};
  params.args = args, params.centroids = centroids;
  params.partial = Partial<kHeadDim>::at(how.workspace, plan.sums());
  params.signs = Shape::Keys::kRotation == kHadamardOfSigns ? own : Signs<kHeadDim>{};
  params.heads = plan.heads;
  lay_out(params, plan);
  if (params.stages < kSlotGroups && plan.by_group) plan.share_nothing(), lay_out(params, plan);  // tokens lie far apart
  if (params.stages < kSlotGroups) return cudaErrorInvalidValue;
  params.tiles = static_cast<int>(plan.tiles), params.slices = static_cast<int>(plan.slices), params.group = static_cast<int>(plan.group);
  params.waits = plan.waits, params.scale = args.scale * kLog2E;
  bool const is_dealt = !plan.by_group && plan.even_parts == 0;
  params.by_length = LengthDeal{is_dealt ? reinterpret_cast<int2*>(params.partial.max_sum + plan.sums()) : nullptr, static_cast<int>(plan.parts),
                                static_cast<int>(plan.even_parts), static_cast<int>(plan.blocks_of_part), how.sm_count};
  if (args.softcap > 0.0f) params.cap = args.softcap * kLog2E, params.scale = 2.0f * params.scale / args.softcap;
  params.reach = args.window > 0 ? static_cast<int>(std::min(args.window, int64_t{INT32_MAX})) : INT32_MAX;
  params.unseen = args.causal != 0 ? static_cast<int>(args.rows - 1) : 0;
  if constexpr (Shape::Keys::kParts == 2) {
    params.queries = reinterpret_cast<__half*>(static_cast<uint8_t*>(how.workspace) + plan.template partial_bytes<kHeadDim>());
    params.projection = projection_stream(args.seed);
    if (int32_t const error = launch_slot_queries<Variant, Element, Shape>(params, how); error != 0) return error;
  }
  void* to_attend[] = {&params};
  LaunchShape const attends{dim3(static_cast<unsigned>(plan.parts * plan.blocks_of_part)), dim3(kSlotThreads), dim3(1), Shape::kEnd};
  auto const launch = [&]<bool kByGroup>() -> int32_t {
    constexpr auto attend = attend_slots<Variant, Element, Shape, kByGroup>;
    if (cudaError_t error = allow_shared_memory<attend>(how.device, Shape::kEnd); error != cudaSuccess) return error;
    return launch_kernel<attend>(attends, how, to_attend);
  };
  int32_t const error = plan.by_group ? launch.template operator()<true>() : launch.template operator()<false>();
  if (error != 0) return error;
  ResultParams<kHeadDim> const result{args.out, args.lse, args.sinks, args.batch, args.rows, args.heads, args.kv_heads, args.out_stride,
                                      own, Shape::Values::kIsRotated && args.seed >= 0 && args.rotated_out == 0, nullptr};
  CombineParams<kHeadDim> combining{result, params.partial, params.tiles, plan.by_group ? params.slices : params.by_length.even_parts, Shape::kRows, params.group, !plan.by_group, params.by_length.of_sequence};
  void* to_combine[] = {&combining};
  int64_t const rows = plan.all_tiles * Shape::kRows, most = plan.parts - plan.batch + 1;  // slices of a sequence
  if (plan.by_group || adds_by_block(args.batch * args.rows * args.heads, most, how.sm_count)) {
    LaunchShape const combines{dim3(static_cast<unsigned>(rows)), dim3(kManyThreads), dim3(1), kManyThreads / 32 * (kHeadDim + 2) * 4};
    return launch_kernel<combine_many_slices<Variant, Element, kHeadDim>>(combines, how, to_combine);
  }
  LaunchShape const combines{dim3(static_cast<unsigned>(rows / (kCombineThreads / 32))), dim3(kCombineThreads), dim3(1), 0};
  return launch_kernel<combine_slices<Variant, Element, kHeadDim>>(combines, how, to_combine);
}

}  // namespace gemmill::kv_cache
