// The shape of attention over packed vectors in slots: sizes, shared memory, arguments.
//
// Slots of a page lie token by token, and of a token head by head, as vLLM's pages have them: keys and values in one slot, or keys and
// values in tensors of their own. A block takes one, two, four or eight KV heads of up to 128 elements, so that its bytes lie together:
// of 256 elements up to four, whose vectors two warps share, of 512 up to two, whose vectors four share.
#pragma once

#include "kv_cache/shared/combine_slices.cuh"
#include "kv_cache/shared/length_deal.cuh"
#include "kv_cache/shared/shares.cuh"
#include "kv_cache/shared/vector_coding.cuh"
#include "kv_cache/slots/slot_readers.cuh"

namespace gemmill::kv_cache {

constexpr int kSlotGroups = 2, kSlotGroupWarps = 8;  // groups of consumers have a producer each; a stage has 16 tokens of a share a warp
constexpr int kSlotConsumers = kSlotGroups * kSlotGroupWarps, kSlotThreads = 32 * (kSlotConsumers + 4);
constexpr int kMostSlotStages = 8;
// Stages in whose time a block starts and ends, and a group sums up a slice: 7 and 4.5 us, where a block takes a stage of 4bit_nc in 0.78
// (H200, 2026-11-28, 1cc0c57f). A group takes twice that.
constexpr float kSlotStartStages = 9.0f, kSlotSumStages = 3.0f;

// Where one side's tokens are, or both sides' where slots have both, and how they lie in a stage.
struct SlotSpan {
  uint8_t const* base;                // of page 0
  int64_t page_stride;
  int token_stride, heads_stride;     // bytes of memory from token to token, and from a block's heads to the next block's
  int token_bytes;                    // that a block reads of a token
  int begin, stride, tile_stride;     // in a stage: of tokens, and of 16 of them

  __device__ __forceinline__ uint8_t const* first(int64_t head_group) const { return base + head_group * heads_stride; }
  // Copied bytes before a block's first, back to a multiple of 16. They are nobody's.
  __device__ __forceinline__ int misaligned(int64_t head_group) const {
    return static_cast<int>(reinterpret_cast<uintptr_t>(first(head_group)) % 16);
  }
};

// The place of a side's vectors in a stage, behind the extra bytes.
struct SlotField {
  int begin, head_stride, stride, tile_stride;
};

template <class KeyReader, class ValueReader>
struct SlotShape {
  using Keys = KeyReader;
  using Values = ValueReader;
  static constexpr int kHeadDim = Keys::kDim, kShareDim = kSlotShare<kHeadDim>, kShares = kHeadDim / kShareDim;
  static_assert(Values::kDim == kHeadDim && kShares * kShareDim == kHeadDim, "Shares are alike.");
  static constexpr int kGroupTiles = kSlotGroupWarps / kShares;  // of 16 tokens of a head, that a group takes at a time
  static constexpr int kMostHeads = kGroupTiles;
  static constexpr int kSteps = kSlotSteps<kHeadDim>, kRowTiles = 1, kRows = kRowsOfTile;
  static constexpr int kKeyBits = Keys::kTableBits, kValueBits = Values::kTableBits, kConsumerWarps = kSlotConsumers;
  static constexpr bool kHasZeros = Values::kHasZeros;
  static constexpr bool kIsStepped = false;
  static constexpr bool kHasFours = kKeyBits == 2;  // four codes of two bits index the table, else two
  static_assert(kHasFours == (kValueBits == 2), "Both sides' tables are alike.");
  // Of 96 registers that a thread begins with; they move from four warps to others.
  static constexpr int kConsumerRegisters = Keys::kParts == 1 ? 104 : 112, kProducerRegisters = Keys::kParts == 1 ? 56 : 32;
  // Shared memory: barriers, runs of warps, stages, the table where 64 KiB begin, queries, parts of scores, more stages. Without a table all stages come last.
  static constexpr bool kHasTable = kKeyBits + kValueBits > 0;
  static constexpr int kRuns = 2 * kMostSlotStages * 8, kFirstStages = kRuns + kSlotConsumers * 16, kTable = kHasTable ? kTableBytes - kReserved : kFirstStages;
  static constexpr int kQueries = kTable + (kHasTable ? kTableBytes : 0), kQueryBytes = kMostHeads * kRows * Keys::kParts * kHeadDim * 2;
  static constexpr int kScoreParts = kQueries + kQueryBytes;
  static constexpr int kMoreStages = kScoreParts + Shares<kShares>::bytes(kConsumerWarps), kEnd = kMostShared / 128 * 128;
  // Sums as decode_attention has them: those of groups with slices of their own lie behind the stages, two rows a round.
  static constexpr int kSumStride = kShareDim + 4, kStateBytes = kConsumerWarps * kRows * 8, kRoundRows = 2;
  static constexpr int kSums = kEnd - kStateBytes - kRoundRows * kConsumerWarps * kSumStride * 4;
  static_assert(kConsumerWarps * kRows * (kSumStride + 2) * 4 <= kEnd, "Sums reuse it.");
};

template <class OfShape>
struct SlotParams {
  using Shape = OfShape;
  gemmill_kv_packed_attention_args args;
  Partial<Shape::kHeadDim> partial;
  Signs<Shape::kHeadDim> signs;
  __half* queries;      // projected ones, and the stream of S that projects them
  uint64_t projection;
  Centroids centroids;
  SlotSpan spans[2];
  SlotField keys, values;
  int span_count;
  bool by_token;               // whether each token has a copy of its own
  bool waits;                  // whether groups, of at most one slice each, leave sums in place of stages
  int stage_bytes, stages, stages_below;
  LengthDeal by_length;
  int tiles, slices, group;    // as decode_attention has them
  int heads;                   // KV heads of a block
  int reach, unseen;           // of a sequence's tokens: as many as every row sees back from its end, but for the last so many
  float scale, cap;

  __device__ __forceinline__ int stage(int index) const {
    return index < stages_below ? Shape::kFirstStages + index * stage_bytes : Shape::kMoreStages + (index - stages_below) * stage_bytes;
  }
};

// Which heads and rows a block has, of which part of all.
struct SlotBlock {
  int first_head, tile, part;
  __device__ __forceinline__ int64_t first_row() const { return static_cast<int64_t>(tile) * kRowsOfTile; }

  template <class Params>
  __device__ SlotBlock(Params const& params, uint32_t index) {
    uint32_t const blocks = params.by_length.blocks_of_part, tiles = params.tiles;
    uint32_t const of_all = blocks == 1 ? index : index / blocks, of_part = index - of_all * blocks, of_heads = tiles == 1 ? of_part : of_part / tiles;
    part = static_cast<int>(of_all), tile = static_cast<int>(of_part - of_heads * tiles), first_head = static_cast<int>(of_heads * params.heads);
  }
};

// Its part of the work.
struct SlotPlace : SlotBlock {
  int batch, length, stage_tokens;

  template <class Params>
  __device__ SlotPlace(Params const& params, int of_batch) : SlotBlock(params, blockIdx.x), batch(of_batch) {
    auto const& args = params.args;
    int64_t const reach = args.pages == 0 ? 0 : args.block_table == nullptr ? args.page_size : args.table_pages * args.page_size;
    length = static_cast<int>(min(static_cast<int64_t>(max(args.seq_lens[batch], 0)), reach));
    stage_tokens = kWarpTokens * Params::Shape::kGroupTiles >> (__ffs(params.heads) - 1);
  }
  // The first stage of which a row sees a token, and how many follow.
  template <class Params>
  __device__ __forceinline__ int first_stage(Params const& params) const {
    int64_t const first_seen = params.args.window > 0 ? length - params.args.rows + 1 - params.args.window : 0;  // by the first row
    return static_cast<int>(max(first_seen, int64_t{0})) >> stage_shift();
  }
  template <class Params>
  __device__ __forceinline__ int stages(Params const& params) const {
    return static_cast<int>((static_cast<uint32_t>(length) + stage_tokens - 1) >> stage_shift()) - first_stage(params);
  }
  __device__ __forceinline__ int stage_shift() const { return __ffs(stage_tokens) - 1; }  // a power of two, as heads are

  // Of a group, or of the block.
  template <bool kByGroup, class Params>
  __device__ Run run(Params const& params, DealtPart const& dealt, int group) const {
    constexpr int kTakers = kByGroup ? kSlotGroups : 1;
    int const taker = kByGroup ? dealt.part * kTakers + group : dealt.part, slices = kByGroup ? params.slices : dealt.parts;
    return Run(first_stage(params), stages(params), slices, dealt.parts * kTakers, kByGroup ? static_cast<int>(kLeastStages) : 1, taker);
  }
};

}  // namespace gemmill::kv_cache
