// The facts of a scaled GEMM's variants in addition to their rows. Mirrors gemmill.families.scaled_mm.model.
#pragma once

#include "extension/selection.h"

namespace gemmill {

// Row::facts; the order of fields is the interface. `Facts` there describes each.
struct GemmFacts {
  int64_t raster_order, swizzle, splits, tile_m, tile_n, tile_k, columns, sharers_a, sharers_b;
  int64_t pads, ctas_of_sm, overlaps, promotes, meets, stages, box_rows, partials, by_turns, cost_permille;
};
static_assert(sizeof(GemmFacts) <= sizeof(Row::facts));

inline GemmFacts const& gemm_facts(Row const& row) { return reinterpret_cast<GemmFacts const&>(row.facts); }

enum Meeting { kInMemory, kInCluster, kInRegisters };  // where slices of K are added up
enum GemmSize { kSizeM, kSizeN, kSizeK };         // places of a call's sizes
enum GemmOperand { kAlignA, kAlignB, kAlignD };  // places of its alignments

bool takes(Row const& row, Call const& call);
double model_ns(Row const& row, Call const& call, int64_t sm_count);
double least_ns(Row const& row, Call const& call, int64_t sm_count);
bool pads_more(Row const& row, int64_t const* measured, int64_t const* sizes);

}  // namespace gemmill
