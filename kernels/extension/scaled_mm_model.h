// What is known of a scaled GEMM's variants beside their rows. Mirrors gemmill.families.scaled_mm.model.
#pragma once

#include "selection.h"

namespace gemmill {

// Row::facts; the order of fields is the interface.
struct GemmFacts {
  int64_t raster_order, swizzle, splits;
  int64_t tile_m, tile_n, tile_k;  // along M, N and K of the op; tile_k in bytes
  int64_t columns;                 // of the tile, as the tensor core sees it: tile_n, or tile_m of a transposed kernel
  int64_t sharers_a, sharers_b;    // CTAs of a cluster that load a tile of A, of B, together
  int64_t pads;                    // whether it rounds the tiles of a call up to whole bands, as CUTLASS's scheduler does
  int64_t ctas_of_sm;              // that fit on an SM
  int64_t overlaps;                // whether a tile is stored while the next is multiplied
  int64_t promotes;                // whether sums leave the tensor core's accumulator before the end of K
  int64_t divides_k;               // whether slices of K are added up in the shared memory of a cluster
  int64_t cost_permille;           // how much longer than the model's time this schedule takes, 1000 for the same
};
static_assert(sizeof(GemmFacts) <= sizeof(Row::facts));

inline GemmFacts const& gemm_facts(Row const& row) { return reinterpret_cast<GemmFacts const&>(row.facts); }

enum GemmSize { kSizeM, kSizeN, kSizeK };// places of a call's sizes
enum GemmOperand { kAlignA, kAlignB, kAlignD };// places of its alignments

extern Model const scaled_mm_model;

}  // namespace gemmill
