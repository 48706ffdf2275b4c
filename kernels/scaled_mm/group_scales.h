// Scales in groups along K: which kind a call has, by shapes and strides. Mirrored by gemmill.families.scaled_mm.scales.
#pragma once

#include <cstdint>

#include "scaled_mm/abi.h"
#include "extension/operand.h"

namespace gemmill {

struct GroupedScales {
  int64_t code = 0;  // a part of Call::problem (problem.h); 0 where scales are in no groups that exist
  int64_t a_stride_m = 0, a_stride_k = 0, b_stride_n = 0, b_stride_k = 0;

  // As a special check leaves them behind.
  explicit GroupedScales(int64_t const* found)
      : code(found[0]), a_stride_m(found[1]), a_stride_k(found[2]), b_stride_n(found[3]), b_stride_k(found[4]) {}
  GroupedScales() = default;
  // Returns false where there are none.
  bool keep(int64_t* found) const {
    found[0] = code, found[1] = a_stride_m, found[2] = a_stride_k, found[3] = b_stride_n, found[4] = b_stride_k;
    return code != 0;
  }
  void tell(gemmill_scaled_mm_args& args) const;
};

// For scales of float32 that are not per tensor or channel: those of a good call, or none.
GroupedScales group_scales(Operand const& a_scales, Operand const& b_scales, int64_t m, int64_t n, int64_t k);

}  // namespace gemmill
