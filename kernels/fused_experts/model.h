// The facts of a variant of fused experts in addition to its row. Mirrors gemmill.families.fused_experts.model.
#pragma once

#include "extension/selection.h"

namespace gemmill::fused_moe {

// Row::facts; the order of fields is the interface. `Facts` there describes each.
struct Facts {
  int64_t tile_tokens, bits, tile_ps, begin_ns, apart, streamed, code_ps, coders, alone_ps, few_ps, many_ps, tile_n, ctas_of_sm;
};
static_assert(sizeof(Facts) <= sizeof(Row::facts));

enum Size { kSizePairs, kSizeInner, kSizeHidden, kSizeExperts };  // places of a call's sizes
enum Aligned { kAlignX, kAlignW13, kAlignW2 };                    // places of its alignments

double model_ns(Row const& row, Call const& call, int64_t sm_count);

}  // namespace gemmill::fused_moe
