// The shape of an attention of many query rows over a compressed cache: sizes, shared memory, a block's part of the work.
#pragma once

#include "kv_cache/shared/decode_shape.cuh"
#include "kv_cache/shared/tile_codes.cuh"
#include "kv_cache/shared/wgmma.cuh"

namespace gemmill::kv_cache {

template <int kElements, int kBitsOfKeys, int kBitsOfValues>
struct PrefillShape : DecodeShape<kElements, kBitsOfKeys, kBitsOfValues, 1> {
  using Pages = DecodeShape<kElements, kBitsOfKeys, kBitsOfValues, 1>;
  static_assert(kElements == 64 || kElements == 128, "Rows of a tile have 64 elements, and sums of a warpgroup's rows lie in registers.");
  using Keys = TileCodes<kBitsOfKeys>;
  using Values = TileCodes<kBitsOfValues>;
  static constexpr int kConsumerGroups = 2, kConsumerWarps = 4 * kConsumerGroups, kRows = 64 * kConsumerGroups;
  static constexpr int kThreads = 32 * (kConsumerWarps + 8);  // a warpgroup decodes keys, another one values
  static constexpr int kConsumerRegisters = 200, kDecoderRegisters = 56;
  // Shared memory: tiles of keys and of values in f16, packed stages, factors of tokens, queries, barriers.
  static constexpr int kTiles = 3, kPackedStages = 4, kAhead = 2;  // stages that copies are ahead of decoding
  static constexpr int kChunkBytes = kStageTokens * 128, kTileBytes = kElements / 64 * kChunkBytes;
  static constexpr int kValueTiles = kTiles * kTileBytes, kPacked = 2 * kTiles * kTileBytes;
  static constexpr int kFactors = kPacked + kPackedStages * Pages::kStageBytes;  // [tiles][keys, values][tokens]
  static constexpr int kQueries = kFactors + kTiles * 2 * kStageTokens * 4;
  static constexpr int kBarriers = kQueries + kRows * kElements * 2;
  static constexpr int kSumStride = kElements + 4;
  static constexpr int kSharedBytes = kBarriers + (4 * kTiles + 2 * kPackedStages) * 8;
  static_assert(Pages::kStageBytes % 16 == 0 && kSharedBytes <= kMostShared, "Stages begin at multiples of 16 bytes, and fit.");
  static_assert(kRows * (kSumStride + 2) * 4 <= kBarriers, "Sums reuse tiles and queries.");
};

// Barriers of a block. Each is waited for by the number of times that its slot was used.
template <class Shape>
struct PrefillBarriers {
  uint64_t *full_keys, *empty_keys, *full_values, *empty_values, *arrived, *decoded;

  __device__ __forceinline__ explicit PrefillBarriers(uint8_t* shared) {
    full_keys = reinterpret_cast<uint64_t*>(shared + Shape::kBarriers), empty_keys = full_keys + Shape::kTiles;
    full_values = empty_keys + Shape::kTiles, empty_values = full_values + Shape::kTiles;
    arrived = empty_values + Shape::kTiles, decoded = arrived + Shape::kPackedStages;
  }
  __device__ __forceinline__ void initialise_all() const {
    for (int i = 0; i < Shape::kTiles; ++i) {
      initialise(&full_keys[i], 4), initialise(&full_values[i], 4);
      initialise(&empty_keys[i], Shape::kConsumerWarps), initialise(&empty_values[i], Shape::kConsumerWarps);
    }
    for (int i = 0; i < Shape::kPackedStages; ++i) initialise(&arrived[i], 1), initialise(&decoded[i], 8);
  }
};

// A slot of a ring and the parity of its use.
template <int kSlots>
struct Turn {
  int slot = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == kSlots) slot = 0, parity ^= 1;
  }
};

// A block's part of the work: of a tile's rows, a slice of the tokens that any of them sees.
struct PrefillPlace : Place {
  int first_stage, end_stage;

  template <class Params>
  __device__ PrefillPlace(Params const& params, int rows) : Place(params, rows) {
    auto const& args = params.args;
    int64_t const first_position = length - args.rows + first_row / params.group;
    int64_t const last_row = min(first_row + rows, args.rows * params.group) - 1;
    int64_t const last_position = length - args.rows + last_row / params.group;
    int const end = args.causal != 0 ? static_cast<int>(max(last_position + 1, int64_t{0})) : length;
    int64_t const first_seen = args.window > 0 ? first_position + 1 - args.window : 0;
    int const begin = min(static_cast<int>(max(first_seen, int64_t{0})), end) / kStageTokens;
    int const count = (end + kStageTokens - 1) / kStageTokens - begin, of_slice = (count + params.slices - 1) / params.slices;
    first_stage = begin + min(block * of_slice, count);
    end_stage = begin + min((block + 1) * of_slice, count);
  }
};

}  // namespace gemmill::kv_cache
