// Host code: the arguments of a sparse GEMM's kernels.
#pragma once

#include "core/abi.h"

extern "C" {

// D[m, n] = epilogue(A[m, k] B^T[n, k]), of which B^T is 2:4 sparse. A, kept values and D are row-major; strides in elements.
struct gemmill_sparse_mm_args {
  void const* a;
  void const* values;      // [n, kept]
  void const* meta;        // of n rounded up to 64 rows and k to 128 columns, in the order of the sparse tensor core
  void* d;
  float const* a_scales;   // one value, or m where a_scale_per_row
  float const* b_scales;   // one value, or n where b_scale_per_column
  void const* bias;        // n values of D's type, or null for none
  int32_t const* azp_adj;  // n values, or null for none
  int32_t const* azp;      // m values; null where the zero point is already in azp_adj
  int64_t lda, ldv, ldd;
  int32_t m, n, k;
  int32_t kept;            // columns of kept values, k / 2 or a few more
  int32_t a_scale_per_row;
  int32_t b_scale_per_column;
  int32_t raster_order;    // 0 automatic, 1 along M, 2 along N, of the kernel as compiled
  int32_t swizzle;
};

}  // extern "C"
