// The facts of a gated GEMM's variants in addition to their rows. Mirrors gemmill.families.gated_mm.model.
#pragma once

#include "extension/selection.h"

namespace gemmill::gated_mm {

// Row::facts; the order of fields is the interface. `Facts` there describes each.
struct Facts {
  int64_t tile_m, tile_n, ctas_of_sm, step_ps, overlaps, parts, cluster;
};
static_assert(sizeof(Facts) <= sizeof(Row::facts));

enum Size { kSizeM, kSizeN, kSizeK, kSizeExperts };  // places of a call's sizes
enum Aligned { kAlignA, kAlignB, kAlignOut };  // places of its alignments

double model_ns(Row const& row, Call const& call, int64_t sm_count);

}  // namespace gemmill::gated_mm
