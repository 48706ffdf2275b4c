// Host code: the arguments of a scaled GEMM's kernels.
#pragma once

#include "core/abi.h"

extern "C" {

// D[m, n] = epilogue(A[m, k] B[k, n]). A and D are row-major, B is column-major; leading dimensions in elements.
struct gemmill_scaled_mm_args {
  void const* a;
  void const* b;
  void* d;
  float const* a_scales;      // one value, or m where a_scale_per_row
  float const* b_scales;      // one value, or n where b_scale_per_column
  void const* bias;           // n values of D's type, or null for none
  int32_t const* azp_adj;     // n values; null outside the azp epilogues
  int32_t const* azp;         // m values; null where the zero point is already in azp_adj
  int64_t lda, ldb, ldd;
  int32_t m, n, k;
  int32_t a_scale_per_row;
  int32_t b_scale_per_column;
  int32_t raster_order;       // 0 automatic, 1 along M, 2 along N, of the kernel as compiled
  int32_t swizzle;
  int32_t splits;             // slices of K; 0 lets the kernel choose
  // Of scales in groups along K, in elements: a_scales are [m, k/g], b_scales [k/g, n/g] (blocks) or [k/g, n] (rows), sizes
  // rounded up.
  int64_t a_scale_stride_m;  // from one row of A to the next
  int64_t a_scale_stride_k;  // from one group along K to the next
  int64_t b_scale_stride_n;  // from one block of columns to the next; for rows, from one column to the next
  int64_t b_scale_stride_k;
  // Of a user's epilogue: values of rows and of columns, and from one to the next, 0 where there is one alone; and numbers.
  void const *row0, *row1, *row2, *row3;
  void const *column0, *column1, *column2, *column3;
  int32_t row0_step, row1_step, row2_step, row3_step;
  int32_t column0_step, column1_step, column2_step, column3_step;
  float scalar0, scalar1, scalar2, scalar3;
};

}  // extern "C"
