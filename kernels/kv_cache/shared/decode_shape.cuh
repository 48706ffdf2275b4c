// The shape of an attention over a compressed cache: sizes, shared memory, arguments.
#pragma once

#include <algorithm>

#include "kv_cache/abi.h"
#include "kv_cache/shared/bulk_copy.cuh"
#include "kv_cache/shared/combine_slices.cuh"
#include "kv_cache/shared/length_deal.cuh"
#include "kv_cache/shared/packed_codes.cuh"
#include "kv_cache/shared/shares.cuh"
#include "kv_cache/shared/stored.cuh"

namespace gemmill::kv_cache {

constexpr int kStageTiles = 4;  // of 16 tokens
constexpr int kWarpTokens = 16;
constexpr int kStageTokens = kStageTiles * kWarpTokens;
constexpr int kTableBytes = 64 * 1024;  // [bytes of codes][keys, values][lanes] of f16 pairs
constexpr int kMostShared = 227 * 1024;
constexpr int kMostStages = 16;
constexpr int kConsumerBarrier = 1, kGroupBarrier = 12;  // and one for each group
constexpr int kFields = 4;  // of a head's page: codes and norms of keys, then of values

// Rows of a round: the largest power of two for which there is room, as a lane has rows in pairs.
constexpr int round_rows(int room, int row_bytes, int rows) {
  while (rows > 2 && rows * row_bytes > room) rows /= 2;
  return rows;
}

// `kAskedWarps`: of consumers of 128 elements at most; 0 for 16 of a tile of eight rows, and 8 of others.
template <int kElements, int kBitsOfKeys, int kBitsOfValues, int kTilesOfRows, int kAskedWarps, int kElementsOfValues = kElements>
struct DecodeShapeOfWarps {
  static constexpr int kHeadDim = kElements, kValueDim = kElementsOfValues, kKeyBits = kBitsOfKeys, kValueBits = kBitsOfValues;
  static constexpr int kRowTiles = kTilesOfRows, kRows = kRowsOfTile * kRowTiles;
  // Warps that share vectors, where one would have too few registers for its queries and sums: 6 d rows / 128 of them.
  static constexpr int kShares = kHeadDim > 256 ? kHeadDim / 128 : 1, kKeyShareDim = kHeadDim / kShares, kShareDim = kValueDim / kShares;
  static constexpr int kKeySteps = kKeyShareDim / 16, kSteps = kShareDim / 16;  // of keys, of values
  static_assert(kValueDim <= kHeadDim, "The first signs of keys are those of values.");
  static constexpr bool kHasZeros = false;
  static constexpr bool kIsStepped = kKeyBits == 3 && kValueBits == 3 && kHeadDim == kValueDim;  // both sides' tables are one: entries in turn begin at bits 0 and 2
  static constexpr bool kLoadsAhead = kIsStepped;  // codes of values before the softmax: of 4 bits registers were spilled
  static constexpr int kKeyBytes = kHeadDim * kKeyBits / 8, kValueBytes = kValueDim * kValueBits / 8;
  static constexpr int kTokenBytes = kKeyBytes + kValueBytes + 2 * 2;
  static constexpr int kStageBytes = kStageTokens * kTokenBytes;
  // Groups of warps take stages in turn, as many as registers allow.
  static constexpr int kGroupWarps = kStageTiles * kShares;
  static constexpr int kGroups = (kAskedWarps > 0 ? kAskedWarps : kRowTiles == 1 && kKeyShareDim <= 128 ? 16 : 8) / kGroupWarps;
  static constexpr int kConsumerWarps = kGroups * kGroupWarps;
  static constexpr bool kHasChains = kRowTiles == 1;  // two tiles of rows are two chains of products by themselves
  static constexpr bool kGivesRegisters = kConsumerWarps >= 12;  // four warps do it together, so some produce nothing
  // Stages in whose time a block starts and ends: 6.1 us, where one of 128 elements takes 0.27 (H200, 2026-11-28, 1cc0c57f).
  static constexpr int kStartStages = 23 * 256 / (kHeadDim + kValueDim) * 2 / (kRowTiles + 1);
  static constexpr int kThreads = 32 * (kConsumerWarps + (kGivesRegisters ? 4 : kGroups));  // each group has a producer
  static constexpr int kConsumerRegisters = kConsumerWarps == 12 ? 160 : 112, kProducerRegisters = 32;
  // Shared memory: stages, barriers, then the table where 64 KiB begin, then more stages, the queries and parts of scores.
  static constexpr int kQueryBytes = kRows * kHeadDim * 2, kPartsBytes = Shares<kShares>::bytes(kConsumerWarps);
  static constexpr int kMostBelow = std::min((kTableBytes - kReserved - kMostStages * 16) / kStageBytes, kMostStages);
  static constexpr int kMostAbove = (kMostShared + kReserved - 2 * kTableBytes - kQueryBytes - kPartsBytes) / kStageBytes;
  static constexpr int kStages = std::min(kMostBelow + kMostAbove, kMostStages) / kGroups * kGroups;
  static constexpr int kStagesBelow = std::min(kMostBelow, kStages);
  static constexpr int kBarriers = kStagesBelow * kStageBytes;
  static constexpr int kTable = kTableBytes - kReserved;
  static constexpr int kQueries = kTable + kTableBytes + (kStages - kStagesBelow) * kStageBytes;
  static constexpr int kScoreParts = kQueries + kQueryBytes, kEnd = kScoreParts + kPartsBytes;
  // Of groups with slices of their own: states, the place of the tile's sums, and sums in rounds of `kRoundRows` rows. Sums lie behind the
  // rest, or in place of a stage of each group. A block's only slice takes all memory for its sums.
  static constexpr int kSumStride = kShareDim + 4;  // of a row of sums, which lanes write to neighbouring words
  static constexpr int kStateBytes = kConsumerWarps * kRows * 8, kRowBytes = kConsumerWarps * kSumStride * 4;
  static constexpr int kTileSums = kEnd + kStateBytes, kBehind = kTileSums + 16;
  static constexpr bool kSumsAreLast = kMostShared - kBehind >= 4 * kRowBytes;
  static constexpr int kRunStages = kSumsAreLast ? kStages : kStages - kGroups;
  static constexpr int kSums = kSumsAreLast ? kBehind : kTable + kTableBytes + (kRunStages - kStagesBelow) * kStageBytes;
  static constexpr int kRoundRows = round_rows((kSumsAreLast ? kMostShared : kQueries) - kSums, kRowBytes, kRows);
  static constexpr int kSharedBytes = kSumsAreLast ? kSums + kRoundRows * kRowBytes : kBehind;
  static_assert(kRunStages >= std::max(kGroups, kStagesBelow) && kSharedBytes <= kMostShared, "Stages fit next to the table.");
  static_assert(kSums + kRoundRows * kRowBytes <= (kSumsAreLast ? kSharedBytes : kQueries), "Sums of a round fit.");
  static_assert(kConsumerWarps * kRows * (kSumStride + 2) * 4 <= kSharedBytes, "Sums reuse all of it.");
  static_assert(deal_bytes(kThreads / 32) <= kStateBytes, "Tried shares lie where groups' states do.");
  static_assert(kSums % 16 == 0 && kBehind % 16 == 0 && kRowBytes % 16 == 0, "Lanes write 16 bytes.");

  static __device__ __forceinline__ uint8_t* stage(uint8_t* shared, int index) {
    return shared + (index < kStagesBelow ? index * kStageBytes : kTable + kTableBytes + (index - kStagesBelow) * kStageBytes);
  }
  // Where a field begins in a head's page of so many tokens.
  static __device__ __forceinline__ int field(int index, int tokens) {
    return tokens * (index == 0 ? 0 : index == 1 ? kKeyBytes : index == 2 ? kKeyBytes + 2 : kKeyBytes + 2 + kValueBytes);
  }
  static __device__ __forceinline__ int field_bytes(int index, int tokens) {
    return (index == 0 ? kKeyBytes : index == 2 ? kValueBytes : 2) * tokens;
  }
};

template <int kElements, int kBitsOfKeys, int kBitsOfValues, int kTilesOfRows, int kElementsOfValues = kElements>
struct DecodeShape : DecodeShapeOfWarps<kElements, kBitsOfKeys, kBitsOfValues, kTilesOfRows, 0, kElementsOfValues> {};

template <int kHeadDim, int kValueDim>
struct DecodeParams {
  gemmill_kv_attention_args args;
  Partial<kValueDim> partial;
  Signs<kHeadDim> signs;      // of which the first are those of values
  Centroids centroids;
  int tiles;                  // of rows, of a KV head and sequence
  int slices;                 // of a tile
  int group;                  // query heads of a KV head; flat row r * group + h is query row r of head h
  float scale;                // of scores, times log2(e); with a cap, of twice their part of it
  float cap;                  // times log2(e); 0 for none
  LengthDeal by_length;
};

// The slices of a sequence's stages, and a taker's run of them. Slices have as many stages as any, but for the last one that has some:
// how many follows from that sequence alone. The run's slices have `of_slice` each from `first_stage` on, up to `end_stage`.
struct Run {
  int of_slice, first_stage, end_stage;
  int first_slice, end_slice;
  int filled;  // slices that have stages

  __device__ __forceinline__ Run(int begin, int count, int slices, int takers, int least, int taker) {
    of_slice = max((count + slices - 1) / slices, least);
    filled = (count + of_slice - 1) / of_slice;
    first_slice = taker * filled / takers, end_slice = (taker + 1) * filled / takers;
    first_stage = begin + first_slice * of_slice, end_stage = begin + min(end_slice * of_slice, count);
  }
};

// A number from which the compiler precomputes nothing: registers of loops are few.
template <class Number>
__device__ __forceinline__ Number fresh(Number x) {
  asm volatile("" : "+r"(x));
  return x;
}

template <class Params>
__device__ __forceinline__ int rows_of_tile(Params const& params, uint32_t tile, int rows) {
  int64_t const left = params.args.rows * params.group - static_cast<int64_t>(tile) * rows;
  return static_cast<int>(min(left, int64_t{rows}));
}

// The query row of a flat row. One row needs no division.
template <class Params>
__device__ __forceinline__ int row_of(Params const& params, int flat) {
  return params.args.rows == 1 ? 0 : static_cast<int>(static_cast<uint32_t>(flat) / static_cast<uint32_t>(params.group));
}

// The sums of a block's tile: where those of its slices begin, and how many rows it has.
struct TileSums {
  int64_t first;
  int rows;

  template <class Params>
  __device__ __forceinline__ TileSums(Params const& params, int batch, int tile_rows) {
    uint32_t const tiles = params.by_length.blocks_of_part, tile = blockIdx.x % tiles;
    first = (static_cast<int64_t>(batch) * tiles + tile) * params.slices;
    rows = rows_of_tile(params, tile % static_cast<uint32_t>(params.tiles), tile_rows);
  }
};

// A block's part of the work.
struct Place {
  int64_t batch, kv_head, first_row;  // the first of the tile's flat rows
  int length;                         // of the sequence
  int block;                          // of the tile's, one a slice, or the sequence's part

  template <class Params>
  __device__ Place(Params const& params, int rows) {
    auto const& args = params.args;
    uint32_t const slices = params.slices, tiles = params.tiles, heads = static_cast<uint32_t>(args.kv_heads);
    uint32_t const tile = blockIdx.x / slices, of_heads = tile / tiles;
    block = static_cast<int>(blockIdx.x % slices);
    batch = of_heads / heads, kv_head = of_heads % heads;
    first_row = static_cast<int64_t>(tile % tiles) * rows;
    length = length_of(args, batch);
  }
  // Where lengths deal tokens out.
  template <class Params>
  __device__ Place(Params const& params, int rows, DealtPart const& dealt) : batch(dealt.batch), block(dealt.part) {
    uint32_t const tiles = params.tiles, of_heads = blockIdx.x % static_cast<uint32_t>(params.by_length.blocks_of_part);
    kv_head = of_heads / tiles, first_row = static_cast<int64_t>(of_heads % tiles) * rows;
    length = length_of(params.args, batch);
  }
  static __device__ __forceinline__ int length_of(gemmill_kv_attention_args const& args, int64_t batch) {
    int64_t const reach = args.pages > 0 ? args.table_pages * args.page_size : 0;
    return static_cast<int>(min(static_cast<int64_t>(max(args.seq_lens[batch], 0)), reach));
  }
  // The first stage of which a row sees a token.
  static __device__ __forceinline__ int first_stage_of(gemmill_kv_attention_args const& args, int length) {
    int64_t const first_seen = args.window > 0 ? length - args.rows + 1 - args.window : 0;  // by the first row
    return static_cast<int>(max(first_seen, int64_t{0})) / kStageTokens;
  }
  static __device__ __forceinline__ int stages_of(gemmill_kv_attention_args const& args, int length) {
    return (length + kStageTokens - 1) / kStageTokens - first_stage_of(args, length);
  }
  // Of the `taker`-th of the block's `kTakers` takers of `slices`.
  template <int kTakers>
  __device__ Run run(gemmill_kv_attention_args const& args, DealtPart const& dealt, int slices, int least, int taker) const {
    return Run(first_stage_of(args, length), stages_of(args, length), slices, dealt.parts * kTakers, least, block * kTakers + taker);
  }
};

}  // namespace gemmill::kv_cache
