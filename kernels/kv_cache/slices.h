// Host code: of how many slices the tokens of a sequence are, and how many blocks share them. Both are settings of a variant's launch,
// which is chosen as any variant is (model.cpp, tuned tables).
#pragma once

#include <algorithm>
#include <cstdint>

namespace gemmill::kv_cache {

// `tiles` have `stages` of tokens each, and a device holds `blocks` at a time. `fixed` is how many there are where it is not 0: then a
// sequence's slices do not depend on the batch. Mirrored by gemmill.families.kv_cache.model.
inline int64_t slices_of(int64_t tiles, int64_t stages, int64_t blocks, int64_t half_waves, int64_t fixed) {
  if (fixed > 0) return fixed;
  int64_t const wanted = half_waves * blocks / (2 * std::max<int64_t>(tiles, 1));
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(stages, 1));
}

// Slices of a tile, the blocks that share them in runs, and the fewest stages of a slice. Slices and `least` decide the order of a
// sequence's sums, so they follow from a variant alone where it fixes them. The number of blocks decides nothing but time.
struct Deal {
  int64_t slices, blocks, least;
};

constexpr int64_t kLeastStages = 8;                   // of a fixed slice: each one costs its block a sum of all warps
constexpr int64_t kStartStages = 12, kSumStages = 1;  // in which a block starts and ends, and sums a slice

// The same for kernels whose blocks take runs of slices, on a device that holds `capacity` blocks at a time. Mirrored by gemmill.families.kv_cache.model.
inline Deal deal_of(int64_t tiles, int64_t stages, int64_t capacity, int64_t half_waves, int64_t fixed) {
  if (fixed == 0) {
    int64_t const slices = slices_of(tiles, stages, capacity, half_waves, 0);
    return {slices, slices, 1};
  }
  auto const parts = [](int64_t x, int64_t y) { return (x + y - 1) / y; };
  int64_t const of_slice = std::max(parts(stages, fixed), kLeastStages);
  int64_t const filled = std::max<int64_t>(parts(stages, of_slice), 1);
  Deal deal{fixed, 1, kLeastStages};
  int64_t best = INT64_MAX;
  for (int64_t blocks = 1; blocks <= filled; ++blocks) {
    int64_t const cost = parts(tiles * blocks, capacity) * (parts(filled, blocks) * (of_slice + kSumStages) + kStartStages);
    if (cost < best) best = cost, deal.blocks = blocks;
  }
  return deal;
}

}  // namespace gemmill::kv_cache
