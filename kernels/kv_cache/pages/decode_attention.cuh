// Attention over pages of keys and values in 2 to 4 bits (eden or turboquant_mse, layout heads).
//
// A block takes one KV head of one sequence, a tile of 8 or 16 rows and a slice of the tokens. The rows are query rows times
// the query heads of the KV head. Groups of four consumer warps take stages of 64 tokens in turn, each warp 16 tokens; of 512
// elements sixteen, of which four share 16 tokens (shares.cuh). Where slices are fixed, each group takes a run of them for itself, so a
// slice's end stops nobody else. Each group has a producer warp, which brings its stages by bulk copies, a lane for each piece: whole pages of a head are one piece
// of memory, half a page of 128 tokens is four. One producer for all would be too slow. A stage is:
//
//   scores    S^T[16 x rows] = K Q^T    Q stays in registers as f16, rotated; keys are centroids
//   softmax   online, in f32; each key's norm is a factor of its row
//   output    O^T[d x rows] += V^T P    each value's norm is a factor of P's row, so values are centroids as well
//
// Warps decode elements once for all rows, two by one load: a byte that begins with two codes indexes a table of pairs of centroids in
// shared memory (packed_codes.cuh). The table has a copy for each lane's bank and begins at a multiple of 64 KiB, entries of keys and
// values in turn, so that one byte permutation of codes and the lane's base makes the whole address. The order of summed elements is free
// where both operands agree, so codes are read as they lie and never moved to where an instruction wants them.
//
// Slices write sums in the rotated basis; combine_slices, or where many are fixed combine_many_slices, adds them in their order, rotates
// back and rounds.
//
// Nothing beyond a length counts: a replacement takes the place of a masked token's score and weight, so whatever lies in its page, NaN
// included, does not show. A NaN norm of a visible token does. Pages that the cache has not are not read. Blocks make barriers and the
// table before the predecessor has ended, and read its possible outputs after.
#pragma once

#include "core/launch.cuh"
#include "core/programmatic.cuh"
#include "kv_cache/shared/decode_tiles.cuh"

namespace gemmill::kv_cache {

constexpr int kManySlices = 32;  // that are fixed, from which on eight warps add those of a row

// The tile's queries in the rotated basis as f16, [rows][d], each element at its place of a row: a warp takes a row at a time.
template <class Element, class Shape, class PlaceOf>
__device__ __forceinline__ void rotate_queries(DecodeParams<Shape::kHeadDim, Shape::kValueDim> const& params, Place const& at,
                                               __half* queries, PlaceOf const& place_of) {
  constexpr int kHeadDim = Shape::kHeadDim, kOwn = kHeadDim / 32;
  auto const& args = params.args;
  int const lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < Shape::kRows; row += Shape::kConsumerWarps) {
    int const flat = static_cast<int>(at.first_row) + row;
    float y[kOwn] = {};
    if (flat < args.rows * params.group) {
      int const of_row = row_of(params, flat);
      int64_t const head = at.kv_head * params.group + flat - of_row * params.group;
      Element const* const from = static_cast<Element const*>(args.q) + at.batch * args.q_batch_stride + of_row * args.q_row_stride +
                                  head * args.q_head_stride + lane;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) y[i] = to_float(from[32 * i]);
    }
    if (args.seed >= 0) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) y[i] *= params.signs(32 * i + lane) ? -kInverseRoot<kHeadDim> : kInverseRoot<kHeadDim>;
      hadamard_of_warp<kHeadDim>(y);
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) queries[row * kHeadDim + place_of(32 * i + lane, row)] = to_element<__half>(y[i]);
  }
}

// The copies of a lane of the producer in each stage: a whole page, or a field of half a page.
template <class Shape>
struct Pieces {
  int count;       // of a stage
  int page_shift;  // stages of a page, or pages of a stage, as a power of two
  bool is_half;
  int bytes, to, from, from_odd;  // `from_odd`: in addition to `from`, of a page's second half

  __device__ Pieces(int page_size, int lane) : is_half(page_size > kStageTokens) {
    page_shift = is_half ? 1 : __ffs(kStageTokens / page_size) - 1;
    count = is_half ? kFields : 1 << page_shift;
    bytes = is_half ? Shape::field_bytes(lane % kFields, kStageTokens) : page_size * Shape::kTokenBytes;
    to = is_half ? Shape::field(lane % kFields, kStageTokens) : lane * bytes;
    from = is_half ? Shape::field(lane % kFields, page_size) : 0;
    from_odd = is_half ? bytes : 0;
  }
  __device__ __forceinline__ int page_of(int stage, int lane) const { return is_half ? stage / 2 : (stage << page_shift) + lane; }
};

// Brings a group's stages, one after the other.
template <class Shape, bool kByGroup>
__device__ __forceinline__ void produce(gemmill_kv_attention_args const& args, Place const& at, Run const& run, uint8_t* shared, uint64_t* full,
                                        uint64_t* empty) {
  constexpr int kStages = kByGroup ? Shape::kRunStages : Shape::kStages, kStep = kByGroup ? 1 : Shape::kGroups;
  int const lane = threadIdx.x % 32, group = threadIdx.x / 32 - Shape::kConsumerWarps;
  int const page_size = static_cast<int>(args.page_size), last_page = static_cast<int>(min(args.pages - 1, int64_t{INT32_MAX}));
  int const end_page = (at.length + page_size - 1) / page_size;
  Pieces<Shape> const pieces(page_size, lane);
  int32_t const* const pages = args.block_table + at.batch * args.table_stride;
  uint8_t const* const head = args.cache + at.kv_head * page_size * Shape::kTokenBytes + pieces.from;
  auto const exists = [&](int stage) {
    return stage < run.end_stage && lane < pieces.count && pieces.page_of(stage, lane) < end_page;
  };
  int const first = run.first_stage + (kByGroup ? 0 : group);
  int known = exists(first) ? pages[pieces.page_of(first, lane)] : 0;
  int slot = group, phase = 1;
  for (int stage = first; stage < run.end_stage; stage += kStep) {
    int64_t const page = min(max(known, 0), last_page);
    bool const copies = exists(stage);
    int const next = stage + kStep;
    known = exists(next) ? pages[pieces.page_of(next, lane)] : 0;
    wait(&empty[slot], phase);
    if (lane == 0) {
      int const left = end_page - pieces.page_of(stage, 0);
      expect_bytes(&full[slot], pieces.is_half ? Shape::kStageBytes : min(left, pieces.count) * pieces.bytes);
    }
    __syncwarp();
    if (copies) {
      uint8_t const* const from = head + page * args.page_stride + (stage % 2) * pieces.from_odd;
      bulk_copy(Shape::stage(shared, slot) + pieces.to, from, pieces.bytes, &full[slot]);
    }
    if ((slot += Shape::kGroups) >= kStages) slot -= kStages, phase ^= 1;
  }
}

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
// theirs. Products and sums are fused by name: every copy of this code gives the same bits.
template <class Shape, int kWarps, int kCount>
__device__ __forceinline__ void join_sums(Partial<Shape::kValueDim> const& partial, int thread, int64_t to, int first, int end,
                                          float const* sums, float2 const* states) {
  constexpr int kQuarters = Shape::kValueDim / 4, kRows = Shape::kRows, kShares = Shape::kShares, kShareDim = Shape::kShareDim;
  for (int i = thread; i < (end - first) * kQuarters; i += 32 * kWarps) {
    int const row = i / kQuarters, quarter = i % kQuarters, which = 4 * quarter / kShareDim;
    float2 const* const of_row = states + first + row;
    float const* const own = sums + (which * kCount + row) * Shape::kSumStride + 4 * quarter % kShareDim;
    float largest = kNothing, sum = 0.0f;
    float4 out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < kWarps; w += kShares) largest = fmaxf(largest, of_row[w * kRows].x);
#pragma unroll
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

// The running sums of a group as those of a slice that it alone took, in rounds of `kRoundRows` rows. Other groups go on.
template <class Shape>
__device__ __forceinline__ void store_slice_of_group(Partial<Shape::kValueDim> const& partial, Running<Shape> const& running, int slice,
                                                     uint8_t* shared) {
  constexpr int kThreads = 32 * Shape::kGroupWarps;
  int const group = threadIdx.x / kThreads, thread = threadIdx.x % kThreads;
  float2* const states = reinterpret_cast<float2*>(shared + Shape::kEnd) + group * Shape::kGroupWarps * Shape::kRows;
  float* const sums = reinterpret_cast<float*>(shared + Shape::kSums) + group * Shape::kGroupWarps * Shape::kRoundRows * Shape::kSumStride;
  TileSums const tile = *reinterpret_cast<TileSums const*>(shared + Shape::kTileSums);
  for (int first = 0; first < tile.rows; first += Shape::kRoundRows) {
    int const end = min(first + Shape::kRoundRows, tile.rows);
    sync_threads(kGroupBarrier + group, kThreads);
    leave_sums<Shape, Shape::kRoundRows>(running, thread / 32, first, end, sums, states);
    sync_threads(kGroupBarrier + group, kThreads);
    join_sums<Shape, Shape::kGroupWarps, Shape::kRoundRows>(partial, thread, (tile.first + slice) * Shape::kRows, first, end, sums, states);
  }
}

template <class Shape, bool kByGroup>
__device__ __forceinline__ void consume(DecodeParams<Shape::kHeadDim, Shape::kValueDim> const& params, Running<Shape>& running,
                                        Place const& at, Run const& run, uint8_t* shared, uint64_t* full, uint64_t* empty) {
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  Shares<Shape::kShares> shares(shared + Shape::kScoreParts, warp);
  // Summed places 2t, 2t + 1, 2t + 8, 2t + 9 of step k are elements n / 4 t + 4 k to n / 4 t + 4 k + 3 of the warp's n: the lane's part.
  uint2 q[Shape::kRowTiles][Shape::kKeySteps];
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    __half const* const row = reinterpret_cast<__half const*>(shared + Shape::kQueries) + (8 * r + g) * Shape::kHeadDim;
    int const own = shares.share * Shape::kKeyShareDim + Shape::kKeyShareDim / 4 * t;
#pragma unroll
    for (int step = 0; step < Shape::kKeySteps; ++step) q[r][step] = *reinterpret_cast<uint2 const*>(row + QueryPlaces<Shape::kHeadDim>()(own + 4 * step, g));
  }
  Seen<Shape> const seen(params, at.first_row, at.length, t);
  uint32_t const key_pairs = shared_address(shared + Shape::kTable) + 4 * lane, value_pairs = key_pairs + (Shape::kIsStepped ? 0 : 128);

  // The warp's 16 tokens lie in a piece of a page's fields.
  int const tokens = min(static_cast<int>(params.args.page_size), kStageTokens);
  int const place = kWarpTokens * (warp % Shape::kGroupWarps / Shape::kShares), within = place % tokens;
  int const piece = place / tokens * tokens * Shape::kTokenBytes;
  int const key_codes = piece + Shape::field(0, tokens) + within * Shape::kKeyBytes + shares.share * (Shape::kKeyBytes / Shape::kShares);
  int const key_norms = piece + Shape::field(1, tokens) + within * 2;
  int const value_codes = piece + Shape::field(2, tokens) + within * Shape::kValueBytes + shares.share * (Shape::kValueBytes / Shape::kShares);
  int const value_norms = piece + Shape::field(3, tokens) + within * 2;

  constexpr int kStages = kByGroup ? Shape::kRunStages : Shape::kStages, kStep = kByGroup ? 1 : Shape::kGroups;
  static_assert(kStages % Shape::kGroups == 0, "A group's slots keep their remainder.");
  int slot = warp / Shape::kGroupWarps, phase = 0, slice = run.first_slice;
  for (int stage = run.first_stage + (kByGroup ? 0 : slot);; ++slice) {
    int const end = kByGroup ? min(stage + run.of_slice, run.end_stage) : run.end_stage;
    for (; stage < end; stage += kStep) {
      uint8_t const* const bytes = Shape::stage(shared, slot);
      int const token = stage * kStageTokens + place;
      wait(&full[slot], phase);
      if (token < at.length) {
        float s[Shape::kRowTiles][4] = {};
        uint32_t p[Shape::kRowTiles][2];
        score_tile<Shape>(s, bytes + key_codes, q, key_pairs, g, t);
        if constexpr (Shape::kShares > 1) {
          float none[2];
          shares.template add<false>(s[0], none, lane);
        }
        ValueCodes<Shape> of_token[4];
        if constexpr (Shape::kLoadsAhead) load_values<Shape>(of_token, bytes + value_codes, g, t);
        __half const* const of_keys = reinterpret_cast<__half const*>(bytes + key_norms);
        __half const* const of_values = reinterpret_cast<__half const*>(bytes + value_norms);
        if (seen.all(token) && params.cap == 0.0f) {
          softmax_tile<true>(p, s, running, seen, of_keys, of_values, token, params.scale, params.cap, g);
        } else {
          softmax_tile<false>(p, s, running, seen, of_keys, of_values, token, params.scale, params.cap, g);
        }
        if constexpr (!Shape::kLoadsAhead) load_values<Shape>(of_token, bytes + value_codes, g, t);
        weigh_tile<Shape>(running, of_token, p, value_pairs);
      }
      __syncwarp();
      if (lane == 0) arrive(&empty[slot]);
      if ((slot += Shape::kGroups) >= kStages) slot -= kStages, phase ^= 1;
    }
    if constexpr (!kByGroup) return;
    store_slice_of_group(params.partial, running, slice, shared);
    if (stage >= run.end_stage) return;
    running = Running<Shape>();
  }
}

// States of slices without stages, whose sums nobody reads: a block leaves its share of them.
template <class Params>
__device__ __forceinline__ void leave_empty_slices(Params const& params, DealtPart const& dealt, Run const& run, int rows) {
  int64_t const first = TileSums(params, dealt.batch, rows).first;
  for (int slice = run.filled + dealt.part; slice < params.slices; slice += dealt.parts) {
    if (threadIdx.x < rows) params.partial.max_sum[(first + slice) * rows + threadIdx.x] = make_float2(kNothing, 0.0f);
  }
}

// The part that the lengths deal out to a block.
template <class Shape, bool kByGroup, class Params>
__device__ __forceinline__ DealtPart part_of_block(Params const& params, uint2* tried) {
  constexpr int kWarps = Shape::kThreads / 32;
  constexpr float kStart = static_cast<float>(Shape::kStartStages);
  auto const stages_of = [&](int i) { return static_cast<float>(Place::stages_of(params.args, Place::length_of(params.args, i))); };
  int const batch = static_cast<int>(params.args.batch);
  if constexpr (!kByGroup) return deal_by_length<kWarps>(params.by_length, FreeParts{kStart}, batch, stages_of, tried);
  FixedParts const kind{kStart, static_cast<float>(params.slices), static_cast<float>(kLeastStages), static_cast<float>(Shape::kGroups), static_cast<float>(kSumStages)};
  return deal_by_length<kWarps>(params.by_length, kind, batch, stages_of, tried);
}

// Grid: parts of all sequences, KV heads and tiles of rows in one number, tiles first. A block's part is a slice, or with `kByGroup` a run of
// slices of each of its groups.
template <class Variant, class Element, class Shape, bool kByGroup>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    attend_slice(__grid_constant__ DecodeParams<Shape::kHeadDim, Shape::kValueDim> const params) {
  extern __shared__ __align__(128) uint8_t shared[];
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + Shape::kBarriers);
  uint64_t* const empty = full + Shape::kStages;
  if (threadIdx.x == 0) {
    if (shared_address(shared) != kReserved) __trap();  // the table would not begin where its addresses say
    for (int i = 0; i < Shape::kStages; ++i) initialise(&full[i], 1), initialise(&empty[i], Shape::kGroupWarps);
    publish_barriers();
  }
  __syncthreads();
  int const warp = threadIdx.x / 32;
  bool const produces = warp >= Shape::kConsumerWarps;
  // Beyond a round a block may have nothing to do: then it ends before it makes a table.
  bool const is_late = blockIdx.x >= static_cast<uint32_t>(params.by_length.capacity);
  if (!produces && !is_late) make_table<Shape>(params.centroids, shared + Shape::kTable);
  bool const is_even = params.by_length.even_parts > 0;
  DealtPart dealt;
  if (is_even) dealt = even_part(params.by_length);
  wait_for_predecessor();

  constexpr int kTakers = kByGroup ? Shape::kGroups : 1;
  if (!is_even) dealt = part_of_block<Shape, kByGroup>(params, reinterpret_cast<uint2*>(shared + Shape::kEnd));
  if (!dealt.exists) return;
  if (!produces && is_late) make_table<Shape>(params.centroids, shared + Shape::kTable);
  if (kByGroup && threadIdx.x == 0) *reinterpret_cast<TileSums*>(shared + Shape::kTileSums) = TileSums(params, dealt.batch, Shape::kRows);
  Place const at(params, Shape::kRows, dealt);
  Running<Shape> running;
  int const group = produces ? warp - Shape::kConsumerWarps : warp / Shape::kGroupWarps;
  auto const run_of_group = [&] {
    return at.run<kTakers>(params.args, dealt, kByGroup ? params.slices : dealt.parts, kByGroup ? static_cast<int>(kLeastStages) : 1, kByGroup ? group : 0);
  };
  if (produces) {
    if constexpr (Shape::kGivesRegisters) leave_registers<Shape::kProducerRegisters>();
    if (group < Shape::kGroups) produce<Shape, kByGroup>(params.args, at, run_of_group(), shared, full, empty);
    return;
  }
  if constexpr (Shape::kGivesRegisters) take_registers<Shape::kConsumerRegisters>();
  // Before the run, which waits for the length.
  rotate_queries<Element, Shape>(params, at, reinterpret_cast<__half*>(shared + Shape::kQueries), QueryPlaces<Shape::kHeadDim>());
  Run const run = run_of_group();
  if constexpr (kByGroup) leave_empty_slices(params, dealt, run, Shape::kRows);
  sync_threads(kConsumerBarrier, 32 * Shape::kConsumerWarps);
  if constexpr (kByGroup) {
    if (run.first_slice < run.end_slice) consume<Shape, true>(params, running, at, run, shared, full, empty);
  } else {
    consume<Shape, false>(params, running, at, run, shared, full, empty);
    float2* const states = reinterpret_cast<float2*>(shared);
    float* const sums = reinterpret_cast<float*>(shared + Shape::kStateBytes);
    sync_threads(kConsumerBarrier, 32 * Shape::kConsumerWarps);  // every copy has landed and been read: the memory is free
    int const rows = rows_of_tile(params, fresh(blockIdx.x) % static_cast<uint32_t>(params.tiles), Shape::kRows);
    leave_sums<Shape, Shape::kRows>(running, warp, 0, rows, sums, states);
    sync_threads(kConsumerBarrier, 32 * Shape::kConsumerWarps);
    int64_t const to = static_cast<int64_t>(fresh(blockIdx.x)) * Shape::kRows;
    join_sums<Shape, Shape::kConsumerWarps, Shape::kRows>(params.partial, threadIdx.x, to, 0, rows, sums, states);
  }
}

// Host code: launches.

constexpr int64_t kLeastEvenStages = 2, kEvenStages = 4;  // that a block's groups take at a time, in place of a deal by lengths

// The parts of a launch.
struct DecodePlan {
  int64_t tiles;  // of rows, of one KV head and sequence
  int64_t all_tiles;
  int64_t slices;                 // of a tile
  int64_t blocks_of_part, parts;  // of all sequences, at most, where lengths deal tokens out
  int64_t even_parts = 0;         // of each sequence, where they do not
  bool is_fixed;                  // each tile has `slices` then; else each part is one

  DecodePlan(gemmill_kv_attention_args const& args, gemmill_launch const& how, int tile_rows) {
    int64_t const group = args.kv_heads == 0 ? 0 : args.heads / args.kv_heads;
    tiles = (args.rows * group + tile_rows - 1) / tile_rows;
    all_tiles = args.batch * args.kv_heads * tiles;
    int64_t stages = (args.table_pages * args.page_size + kStageTokens - 1) / kStageTokens;
    if (args.window > 0) stages = std::min(stages, std::min(args.window, stages * kStageTokens) / kStageTokens + 2);
    slices = slices_of(all_tiles, stages, how.sm_count, args.half_waves, args.slices);
    blocks_of_part = args.kv_heads * tiles, is_fixed = args.slices > 1;
    parts = parts_of(args.batch, blocks_of_part, stages, how.sm_count, args.half_waves, args.slices);
    if (all_tiles == 0) return;
    if (args.batch == 1 || !is_fixed) even_parts = even_parts_of(args.batch, parts, blocks_of_part, std::max<int64_t>(stages, 1), how.sm_count, is_fixed ? 1 : kLeastEvenStages, kEvenStages);
    if (even_parts > 0) parts = args.batch * even_parts;
  }
  int64_t blocks() const { return parts * blocks_of_part; }
  // Sums of slices, each of a tile's rows.
  int64_t sums() const { return is_fixed ? all_tiles * slices : blocks(); }
  // Of sums, and behind them where each sequence has its slices.
  template <int kValueDim>
  int64_t workspace(int tile_rows, int64_t batch) const {
    return Partial<kValueDim>::bytes(sums() * tile_rows) + (is_fixed ? 0 : batch * static_cast<int64_t>(sizeof(int2)));
  }
};

// Rows of a tile: eight where they are enough, or where registers hold no more.
template <int kHeadDim>
int tile_rows_of(gemmill_kv_attention_args const& args) {
  bool const is_narrow = args.kv_heads == 0 || args.rows * (args.heads / args.kv_heads) <= kRowsOfTile;
  return is_narrow || kHeadDim > 128 ? kRowsOfTile : 2 * kRowsOfTile;
}

template <int kHeadDim, int kValueDim = kHeadDim>
int64_t decode_workspace(gemmill_kv_attention_args const& args, gemmill_launch const& how) {
  int const tile_rows = tile_rows_of<kHeadDim>(args);
  return DecodePlan(args, how, tile_rows).workspace<kValueDim>(tile_rows, args.batch);
}

template <class Variant, class Element, class Shape>
int32_t attend_and_combine(gemmill_kv_attention_args const& args, gemmill_launch const& how, Centroids const& centroids) {
  constexpr int kHeadDim = Shape::kHeadDim, kValueDim = Shape::kValueDim, kSharedBytes = Shape::kSharedBytes;
  DecodePlan const plan(args, how, Shape::kRows);
  if (plan.all_tiles == 0) return 0;
  int64_t const sums = plan.sums() * Shape::kRows;
  auto const partial = Partial<kValueDim>::at(how.workspace, sums);
  auto const signs = signs_of<kHeadDim>(static_cast<uint64_t>(args.seed));
  int const group = static_cast<int>(args.heads / args.kv_heads), slices = static_cast<int>(plan.slices);
  int const tiles = static_cast<int>(plan.tiles);
  bool const is_dealt = !plan.is_fixed && plan.even_parts == 0;
  LengthDeal const by_length{is_dealt ? reinterpret_cast<int2*>(partial.max_sum + sums) : nullptr, static_cast<int>(plan.parts),
                             static_cast<int>(plan.even_parts), static_cast<int>(plan.blocks_of_part), how.sm_count};
  DecodeParams<kHeadDim, kValueDim> params{args, partial, signs, centroids, tiles, slices, group, args.scale * kLog2E, 0.0f, by_length};
  if (args.softcap > 0.0f) params.cap = args.softcap * kLog2E, params.scale = 2.0f * params.scale / args.softcap;
  void* to_attend[] = {&params};
  LaunchShape const attends{dim3(static_cast<unsigned>(plan.blocks())), dim3(Shape::kThreads), dim3(1), kSharedBytes};
  auto const launch = [&]<bool kByGroup>() -> int32_t {
    constexpr auto attend = attend_slice<Variant, Element, Shape, kByGroup>;
    if (cudaError_t error = allow_shared_memory<attend>(how.device, kSharedBytes); error != cudaSuccess) return error;
    return launch_kernel<attend>(attends, how, to_attend);
  };
  int32_t const error = args.slices > 1 ? launch.template operator()<true>() : launch.template operator()<false>();
  if (error != 0) return error;
  Signs<kValueDim> value_signs;
  std::copy_n(signs.words, kValueDim / 32, value_signs.words);
  ResultParams<kValueDim> const result{args.out, args.lse, args.sinks, args.batch, args.rows, args.heads, args.kv_heads,
                                       args.out_stride, value_signs, args.seed >= 0 && args.rotated_out == 0, nullptr};
  int64_t const most = plan.is_fixed ? slices : plan.parts - args.batch + 1;  // of a sequence
  int const own_slices = plan.is_fixed ? slices : static_cast<int>(plan.even_parts);
  CombineParams<kValueDim> combining{result, partial, tiles, own_slices, Shape::kRows, group, !plan.is_fixed, by_length.of_sequence};
  void* to_combine[] = {&combining};
  int64_t const rows = plan.all_tiles * Shape::kRows;
  // Eight warps add a row's slices where those are many, or long.
  bool const are_many = !plan.is_fixed && adds_by_block(args.batch * args.rows * args.heads, most, how.sm_count);
  if (args.slices >= kManySlices || are_many || (kValueDim > 256 && most > kManyThreads / 32)) {
    LaunchShape const combines{dim3(static_cast<unsigned>(rows)), dim3(kManyThreads), dim3(1), kManyThreads / 32 * (kValueDim + 2) * 4};
    return launch_kernel<combine_many_slices<Variant, Element, kValueDim>>(combines, how, to_combine);
  }
  LaunchShape const combines{dim3(static_cast<unsigned>(rows / (kCombineThreads / 32))), dim3(kCombineThreads), dim3(1), 0};
  return launch_kernel<combine_slices<Variant, Element, kValueDim>>(combines, how, to_combine);
}

template <class Variant, class Element, int kHeadDim, int kKeyBits, int kValueBits, int kValueDim = kHeadDim>
int32_t decode_attention(gemmill_kv_attention_args const& args, gemmill_launch const& how, Centroids const& centroids) {
  if constexpr (kHeadDim <= 128) {
    if (tile_rows_of<kHeadDim>(args) > kRowsOfTile) {
      return attend_and_combine<Variant, Element, DecodeShape<kHeadDim, kKeyBits, kValueBits, 2, kValueDim>>(args, how, centroids);
    }
  }
  return attend_and_combine<Variant, Element, DecodeShape<kHeadDim, kKeyBits, kValueBits, 1, kValueDim>>(args, how, centroids);
}

}  // namespace gemmill::kv_cache
