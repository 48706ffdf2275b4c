// Host code: of how many slices the tokens of a sequence are, a setting of a variant's launch, which is chosen as any variant is (model.cpp,
// tuned tables); and how many blocks share them, as the model sees it.
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

// The most parts of all of `batch` sequences where the device deals tokens out by lengths (length_deal.cuh): a wave of them, as many as fill
// the half waves with `blocks_of_part` blocks each. Where sequences are more than half as many, each has one and a wave's others come to
// them. None has more parts than stages, or than `fixed` slices where that is not 0. Mirrored by gemmill.families.kv_cache.model.
inline int64_t parts_of(int64_t batch, int64_t blocks_of_part, int64_t stages, int64_t capacity, int64_t half_waves, int64_t fixed) {
  int64_t const wave = std::max<int64_t>(half_waves * capacity / (2 * std::max<int64_t>(blocks_of_part, 1)), 1);
  int64_t const most = fixed > 0 ? std::min(stages, fixed) : stages;
  return std::min(2 * batch <= wave ? wave : batch + wave - 1, batch * std::max<int64_t>(most, 1));
}

// How many of these parts each sequence has whatever its length, 0 where lengths are dealt out. That takes a block longer than `most_stages`
// stages at a time, so where all sequences have room for parts of no more, in a round of the device, each has as many as the longest.
// A part has `least_stages` where there are as many, which take no longer than one.
inline int64_t even_parts_of(int64_t batch, int64_t parts, int64_t blocks_of_part, int64_t stages, int64_t capacity, int64_t least_stages, int64_t most_stages) {
  int64_t const enough = (stages + least_stages - 1) / least_stages;
  if (batch == 1 || parts == batch) return std::min(parts / batch, enough);
  int64_t const most = std::min(std::min(parts, capacity / blocks_of_part) / batch, enough);
  return most * most_stages >= stages ? most : 0;
}

// Slices of a tile, the blocks that share them in runs, and the fewest stages of a slice. Slices and `least` decide the order of a
// sequence's sums, so they follow from a variant alone where it fixes them. The number of blocks decides nothing but time.
struct Deal {
  int64_t slices, blocks, least;
};

constexpr int64_t kLeastStages = 8;                   // of a fixed slice: each one costs its group a sum of all its warps
constexpr int64_t kStartStages = 12, kSumStages = 2;  // in which a block starts and ends, and a group sums a slice

// The longest run of a group, and how many groups of a block are at work: they share it evenly, and as many as half of them keep it busy.
// Stages of a block pass in a `groups`-th of a group's time.
struct Shared {
  int64_t run, stages_of_stage;
  Shared(int64_t filled, int64_t blocks, int64_t groups) : run((filled + blocks * groups - 1) / (blocks * groups)) {
    int64_t const busy = std::min(groups, (filled + blocks - 1) / blocks);
    stages_of_stage = std::max(busy, (groups + 1) / 2);
  }
};

// The same for kernels whose blocks have `groups` of warps that take runs of slices, on a device that holds `capacity` blocks at a time.
// One slice has a whole block. Mirrored by gemmill.families.kv_cache.model.
inline Deal deal_of(int64_t tiles, int64_t stages, int64_t capacity, int64_t half_waves, int64_t fixed, int64_t groups) {
  if (fixed <= 1) {
    int64_t const slices = slices_of(tiles, stages, capacity, half_waves, fixed);
    return {slices, slices, 1};
  }
  auto const parts = [](int64_t x, int64_t y) { return (x + y - 1) / y; };
  int64_t const of_slice = std::max(parts(stages, fixed), kLeastStages);
  int64_t const filled = std::max<int64_t>(parts(stages, of_slice), 1);
  Deal deal{fixed, 1, kLeastStages};
  int64_t best = INT64_MAX;
  for (int64_t blocks = 1; blocks <= filled; ++blocks) {
    Shared const shared(filled, blocks, groups);
    int64_t const cost = parts(tiles * blocks, capacity) * (shared.run * (of_slice + kSumStages) * shared.stages_of_stage + kStartStages);
    if (cost < best) best = cost, deal.blocks = blocks;
  }
  return deal;
}

}  // namespace gemmill::kv_cache
