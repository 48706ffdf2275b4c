#include "kv_cache/model.h"

#include <algorithm>

#include "extension/layout.h"
#include "kv_cache/slices.h"

namespace gemmill::kv_cache {

namespace {

constexpr int64_t kDefaultHalfWaves = 2;
constexpr double kOtherSetting = 1.5;
constexpr int64_t kShortStages = 5, kFewTiles = 8;

// Mirrored by gemmill.families.kv_cache.model, which says why.
double by_length_ns(Facts const& row, int64_t batch, int64_t tiles, int64_t stages, int64_t capacity, int64_t stage_ps) {
  auto const picoseconds = [&](int64_t slices) {
    double const block = static_cast<double>(ceil_div(stages, slices)) * static_cast<double>(stage_ps) + static_cast<double>(row.start_ps);
    return static_cast<double>(ceil_div(tiles * slices, capacity)) * block + static_cast<double>(slices) * static_cast<double>(row.slice_ps);
  };
  bool const has_heads = row.heads > 1;
  bool const is_short = has_heads && stages <= kShortStages * capacity && kFewTiles * tiles <= capacity;
  bool is_other = row.half_waves != (is_short ? 1 : kDefaultHalfWaves) || row.slices > 0;
  double best = 0.0;
  if (batch <= 1) {
    best = picoseconds(std::max<int64_t>(parts_of(1, tiles, stages, capacity, row.half_waves, row.slices), 1));
    is_other = is_other && is_short;
  } else {
    int64_t const most = parts_of(batch, tiles / batch, stages, capacity, row.half_waves + (has_heads ? 1 : 0), row.slices) / batch;
    best = picoseconds(1);
    for (int64_t slices = 2; slices <= most; ++slices) best = std::min(best, picoseconds(slices));
  }
  return best * (is_other ? kOtherSetting : 1.0) / 1000.0;
}

}  // namespace

// Mirrored by gemmill.families.kv_cache.model, which says why.
double model_ns(Row const& of, Call const& call, int64_t sm_count) {
  Facts const& row = facts_of(of);
  if (row.half_waves == 0) return 0.0;
  int64_t const kv_heads = std::max<int64_t>(call.sizes[kSizeKvHeads], 1), flat = call.sizes[kSizeRows] * (call.sizes[kSizeHeads] / kv_heads);
  bool const has_many = flat > row.most_few;
  int64_t heads = 1;
  while (heads < row.heads && kv_heads % (2 * heads) == 0) heads *= 2;
  int64_t const tiles = call.sizes[kSizeBatch] * (kv_heads / heads) * ceil_div(flat, has_many ? row.many_rows : row.few_rows);
  int64_t const stages = ceil_div(call.sizes[kSizeLength], (has_many ? row.many_tokens : row.few_tokens) / heads);
  int64_t const capacity = sm_count * row.blocks_of_sm;
  int64_t slices = 0, blocks = 0, of_all = 0, of_run = 0;
  if (row.sum_ps != 0 && row.slices <= 1) {
    return by_length_ns(row, call.sizes[kSizeBatch], tiles, stages, capacity, has_many ? row.many_ps : row.few_ps);
  }
  if (row.sum_ps != 0) {
    int64_t const groups = has_many ? row.many_groups : row.few_groups;
    Deal const deal = deal_of(tiles, stages, capacity, row.half_waves, row.slices, groups);
    int64_t const of_slice = std::max(ceil_div(stages, deal.slices), deal.least);
    slices = std::max<int64_t>(ceil_div(stages, of_slice), 1), blocks = deal.blocks;
    Shared const shared(slices, blocks, groups);
    of_run = shared.stages_of_stage * shared.run;
    of_all = shared.stages_of_stage * std::min(shared.run * of_slice, stages);
  } else {
    slices = blocks = slices_of(tiles, stages, capacity, row.half_waves, row.slices);
    of_all = ceil_div(stages, slices);
  }
  int64_t const rounds = ceil_div(tiles * blocks, capacity);
  double const block = static_cast<double>(of_all) * static_cast<double>(has_many ? row.many_ps : row.few_ps) + static_cast<double>(row.start_ps + of_run * row.sum_ps);
  return (static_cast<double>(rounds) * block + static_cast<double>(slices) * static_cast<double>(row.slice_ps)) / 1000.0;
}

}  // namespace gemmill::kv_cache
