// Scales of A and B: vectors, or in groups along K. Mirrored by gemmill.families.scaled_mm.scales.
#pragma once

#include <cstdint>

#include "extension/operand.h"

namespace gemmill {

// The facts of scales in groups: their part of Call::call_class (classes.h), 0 where there are none, and strides.
enum FoundScales { kScaleGroups, kAScaleStrideM, kAScaleStrideK, kBScaleStrideN, kBScaleStrideK };

// Whether scales are one value, or one for each row of A (column of B), as [length] or [length, 1] ([1, length]); with `either`
// along either dimension.
inline bool is_vector_of(Operand const& x, int64_t length, int64_t dim, bool either) {
  if (!x.is_vector() || (x.numel() != 1 && x.numel() != length)) return false;
  if (x.numel() == 1 || x.rank == 1) return true;
  return x.rank == 2 && (x.sizes[dim] == length || (either && x.sizes[1 - dim] == length));
}

// Whether scales of float32 other than vectors are the groups of a legal call; leaves their facts behind.
bool find_groups(Operand const& a_scales, Operand const& b_scales, int64_t m, int64_t n, int64_t k, int64_t* found);

// The facts of scales of a kind, by its place in gemmill.vocab.SCALE_GROUPS.
void describe_groups(int64_t kind, Operand const& a_scales, Operand const& b_scales, int64_t m, int64_t* found);

}  // namespace gemmill
