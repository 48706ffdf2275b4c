// Scales in groups along K: which kind a call has, by shapes and strides. Mirrored by gemmill.runtime.scales.
#pragma once

#include <cstdint>

#include "gemmill/group_abi.h"
#include "operand.h"

namespace gemmill {

struct GroupedScales {
  int64_t code = 0;  // a part of Call::problem (problem.h); 0 where scales are in no groups that exist
  int64_t a_stride_m = 0, a_stride_k = 0, b_stride_n = 0, b_stride_k = 0;

  bool given() const { return code != 0; }
  void tell(gemmill_group_scaled_mm_args& args) const;
};

// For scales that are not per tensor or channel: those of a good call, or none.
GroupedScales group_scales(Operand const& a_scales, Operand const& b_scales, int64_t m, int64_t n, int64_t k);

}  // namespace gemmill
