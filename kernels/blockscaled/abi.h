// Host code: the arguments of the kernels whose weights, or both operands, are block-scaled.
#pragma once

#include "core/abi.h"

extern "C" {

// D[m, n] = alpha * sum over k of A[m, k] B[n, k] + bias[n]. Rows of A, B and D are contiguous.
struct gemmill_blockscaled_args {
  void const* a;              // 16-bit numbers, or codes
  void const* b;              // codes, or packed blocks of codes and scales
  void const* a_sf;           // scales of A, swizzled; with folded weights f32, of rows or of 128 columns each; null where it has none
  void const* b_sf;           // scales of B; of packed blocks the f32 factors of rows, or of 128 columns of each
  float const* alpha;         // one value, or null for 1
  void const* bias;           // n values of D's type, or null for none
  void* d;
  int64_t lda, ldb, ldd;      // from row to row, in elements of A and B as torch has them: bytes where codes are smaller
  int32_t m, n, k;
  int32_t splits;             // slices of K
};

}  // extern "C"
