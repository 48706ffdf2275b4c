// The facts of a grouped GEMM's variants in addition to their rows. Mirrors gemmill.families.grouped_mm.model.
#pragma once

#include "extension/selection.h"

namespace gemmill::moe {

// Row::facts; the order of fields is the interface. `Facts` there describes each.
struct Facts {
  int64_t tile_m, tile_n, tile_k, tiles_together, step_ps, step_of_band_ps, bits, end_ns, alone_permille, first_ns, n_multiple;
};
static_assert(sizeof(Facts) <= sizeof(Row::facts));

enum Size { kSizeM, kSizeN, kSizeK, kSizeExperts };  // places of a call's sizes
enum Aligned { kAlignA, kAlignB, kAlignOut };        // places of its alignments

bool takes(Row const& row, Call const& call);
double model_ns(Row const& row, Call const& call, int64_t sm_count);

}  // namespace gemmill::moe
