// The shape of an attention over a compressed cache: sizes, shared memory, arguments.
#pragma once

#include <algorithm>

#include "kv_cache/abi.h"
#include "kv_cache/bulk_copy.cuh"
#include "kv_cache/combine_slices.cuh"
#include "kv_cache/packed_codes.cuh"
#include "kv_cache/shares.cuh"
#include "kv_cache/stored.cuh"

namespace gemmill::kv_cache {

constexpr int kStageTiles = 4;  // of 16 tokens
constexpr int kWarpTokens = 16;
constexpr int kStageTokens = kStageTiles * kWarpTokens;
constexpr int kTableBytes = 64 * 1024;  // [bytes of codes][keys, values][lanes] of f16 pairs
constexpr int kMostShared = 227 * 1024;
constexpr int kMostStages = 16;
constexpr int kConsumerBarrier = 1;
constexpr int kFields = 4;  // of a head's page: codes and norms of keys, then of values

// `kAskedWarps`: of consumers of 128 elements at most; 0 for 16 of a tile of eight rows, and 8 of others.
template <int kElements, int kBitsOfKeys, int kBitsOfValues, int kTilesOfRows, int kAskedWarps>
struct DecodeShapeOfWarps {
  static constexpr int kHeadDim = kElements, kKeyBits = kBitsOfKeys, kValueBits = kBitsOfValues;
  static constexpr int kRowTiles = kTilesOfRows, kRows = kRowsOfTile * kRowTiles;
  // Warps that share vectors, where one would have too few registers for its queries and sums: 6 d rows / 128 of them.
  static constexpr int kShares = kHeadDim > 256 ? kHeadDim / 128 : 1, kShareDim = kHeadDim / kShares;
  static constexpr int kSteps = kShareDim / 16;
  static constexpr bool kHasZeros = false;
  static constexpr bool kIsStepped = kKeyBits == 3 && kValueBits == 3;  // both sides' tables are one: entries in turn begin at bits 0 and 2
  static constexpr bool kLoadsAhead = kIsStepped;  // codes of values before the softmax: of 4 bits registers were spilled
  static constexpr int kKeyBytes = kHeadDim * kKeyBits / 8, kValueBytes = kHeadDim * kValueBits / 8;
  static constexpr int kTokenBytes = kKeyBytes + kValueBytes + 2 * 2;
  static constexpr int kStageBytes = kStageTokens * kTokenBytes;
  // Groups of warps take stages in turn, as many as registers allow.
  static constexpr int kGroupWarps = kStageTiles * kShares;
  static constexpr int kGroups = (kAskedWarps > 0 ? kAskedWarps : kRowTiles == 1 && kShareDim <= 128 ? 16 : 8) / kGroupWarps;
  static constexpr int kConsumerWarps = kGroups * kGroupWarps;
  static constexpr bool kHasChains = kRowTiles == 1;  // two tiles of rows are two chains of products by themselves
  static constexpr bool kGivesRegisters = kConsumerWarps >= 12;  // four warps do it together, so some produce nothing
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
  static constexpr int kScoreParts = kQueries + kQueryBytes, kSharedBytes = kScoreParts + kPartsBytes;
  static constexpr int kSumStride = kShareDim + 4;  // of a row of sums, which lanes write to neighbouring words
  static_assert(kStages >= kGroups && kSharedBytes <= kMostShared, "Stages fit beside the table.");
  static_assert(kConsumerWarps * kRows * (kSumStride + 2) * 4 <= kSharedBytes, "Sums reuse all of it.");

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

template <int kElements, int kBitsOfKeys, int kBitsOfValues, int kTilesOfRows>
struct DecodeShape : DecodeShapeOfWarps<kElements, kBitsOfKeys, kBitsOfValues, kTilesOfRows, 0> {};

template <int kHeadDim>
struct DecodeParams {
  gemmill_kv_attention_args args;
  Partial<kHeadDim> partial;
  Signs<kHeadDim> signs;
  Centroids centroids;
  int tiles;                  // of rows, of a KV head and sequence
  int slices;
  int group;                  // query heads of a KV head; flat row r * group + h is query row r of head h
  float scale;                // of scores, times log2(e); with a cap, of twice their part of it
  float cap;                  // times log2(e); 0 for none
};

// A block's part of the work.
struct Place {
  int64_t batch, kv_head, first_row;  // the first of the tile's flat rows
  int length;                         // of the sequence
  int first_stage, end_stage;         // of 64 tokens, of this slice

  template <class Params>
  __device__ Place(Params const& params, int rows) {
    auto const& args = params.args;
    uint32_t const slices = params.slices, tiles = params.tiles, heads = static_cast<uint32_t>(args.kv_heads);
    uint32_t const tile = blockIdx.x / slices, of_heads = tile / tiles;
    int const slice = static_cast<int>(blockIdx.x % slices);
    batch = of_heads / heads, kv_head = of_heads % heads;
    first_row = static_cast<int64_t>(tile % tiles) * rows;
    int64_t const reach = args.pages > 0 ? args.table_pages * args.page_size : 0;
    length = static_cast<int>(min(static_cast<int64_t>(max(args.seq_lens[batch], 0)), reach));
    int64_t const first_seen = args.window > 0 ? length - args.rows + 1 - args.window : 0;  // by the first row
    int const begin = static_cast<int>(max(first_seen, int64_t{0})) / kStageTokens;
    int const count = (length + kStageTokens - 1) / kStageTokens - begin;
    int const of_slice = (count + params.slices - 1) / params.slices;
    first_stage = begin + min(slice * of_slice, count);
    end_stage = begin + min((slice + 1) * of_slice, count);
  }
};

}  // namespace gemmill::kv_cache
