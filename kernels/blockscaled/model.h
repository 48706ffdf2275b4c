// The facts of a block-scaled GEMM's variants in addition to their rows. Mirrors gemmill.families.blockscaled.model.
#pragma once

#include "extension/selection.h"

namespace gemmill::blockscaled {

// Row::facts; the order of fields is the interface. `Facts` there describes each.
struct Facts {
  int64_t splits, tile_m, tile_n, sms, ctas_of_sm, step_columns, step_ps, shared_permille, left_permille, a_bits, b_bits, memory, k_multiple;
};
static_assert(sizeof(Facts) <= sizeof(Row::facts));

inline Facts const& facts_of(Row const& row) { return reinterpret_cast<Facts const&>(row.facts); }

enum Size { kSizeM, kSizeN, kSizeK };         // places of a call's sizes
enum Aligned { kAlignA, kAlignB, kAlignOut, kAlignScales };  // places of its alignments

bool takes(Row const& row, Call const& call);
double model_ns(Row const& row, Call const& call, int64_t sm_count);

}  // namespace gemmill::blockscaled
