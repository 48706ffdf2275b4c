// The facts of an attention's variants in addition to their rows. Mirrors gemmill.families.kv_cache.model.
#pragma once

#include "extension/selection.h"

namespace gemmill::kv_cache {

// Row::facts; the order of fields is the interface. `Facts` there describes each.
struct Facts {
  int64_t half_waves, most_few, few_rows, many_rows, few_tokens, many_tokens, heads, blocks_of_sm;
  int64_t few_ps, many_ps, start_ps, slice_ps, slices, sum_ps, few_groups, many_groups;
};
static_assert(sizeof(Facts) <= sizeof(Row::facts));

enum Size { kSizeBatch, kSizeRows, kSizeHeads, kSizeKvHeads, kSizeLength };  // places of a call's sizes

inline Facts const& facts_of(Row const& row) { return reinterpret_cast<Facts const&>(row.facts); }
double model_ns(Row const& row, Call const& call, int64_t sm_count);

}  // namespace gemmill::kv_cache
