// The facts of a sparse GEMM's variants in addition to their rows. Mirrors gemmill.families.sparse_mm.model.
#pragma once

#include "extension/selection.h"

namespace gemmill::sparse_mm {

// Row::facts; the order of fields is the interface. `Facts` there describes each.
struct Facts {
  int64_t raster_order, swizzle, tile_m, tile_n, cluster_m, cluster_n, tile_k, step_ps, tile_ns, bits, join_ns, ctas_of_sm, turn_ns;
};
static_assert(sizeof(Facts) <= sizeof(Row::facts));

inline Facts const& facts_of(Row const& row) { return reinterpret_cast<Facts const&>(row.facts); }

enum Size { kSizeM, kSizeN, kSizeK };                      // places of a call's sizes
enum Aligned { kAlignA, kAlignValues, kAlignMeta, kAlignOut };  // places of its alignments

double model_ns(Row const& row, Call const& call, int64_t sm_count);

}  // namespace gemmill::sparse_mm
