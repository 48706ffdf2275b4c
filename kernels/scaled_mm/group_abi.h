// The C boundary of kernels with scales in groups along K. They sit in the same table as the others and are called with
// a pointer to `mm`, which comes first: a caller always passes the whole of this structure.
#pragma once

#include "scaled_mm/abi.h"

extern "C" {

// a_scales are [m, k/g], b_scales [k/g, n/g] (blocks) or [k/g, n] (rows), sizes rounded up; strides in elements.
struct gemmill_group_scaled_mm_args {
  gemmill_scaled_mm_args mm;
  int64_t a_scale_stride_m;  // from one row of A to the next
  int64_t a_scale_stride_k;  // from one group along K to the next
  int64_t b_scale_stride_n;  // from one block of columns to the next; for rows, from one column to the next
  int64_t b_scale_stride_k;
};

}  // extern "C"

inline gemmill_group_scaled_mm_args const& group_args(gemmill_scaled_mm_args const& mm) {
  return reinterpret_cast<gemmill_group_scaled_mm_args const&>(mm);
}
