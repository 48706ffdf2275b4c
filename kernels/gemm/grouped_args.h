// Host code: the arguments of grouped GEMMs' kernels.
#pragma once

#include "core/abi.h"

extern "C" {

// D[i, n] = epilogue(A[r, k] B[e, n, k]), e being the expert of row i, and r its row of A: i, or token_ids[i]. A and D are
// row-major; strides in elements. Packed weights are blocks of codes and scales (docs/formats.md): b_scales are their bases,
// [weights, n], and b_stride_expert is in bytes.
struct gemmill_grouped_mm_args {
  void const* a;              // [tokens, k]
  void const* b;              // [weights, n, k]
  void* d;                    // [m, n]
  float const* a_scales;      // one value, or of each row of A where a_scale_per_row; null, as b_scales is, of 16-bit operands
  float const* b_scales;      // of each expert one value, or n where b_scale_per_column
  // Rows of expert e: offsets[e] up to offsets[e + 1], of experts + 1; or, where slot is not 0, offsets[e] of the rows from
  // e * slot on, of experts. Each offset is offset_words words of 32 bits, of which the lowest counts.
  int32_t const* offsets;
  int32_t const* expert_map;  // which of b an expert multiplies by, -1 for none; null where expert e has weights e
  // Of each row of D, each id_words words of 32 bits, of which the lowest counts; null where rows of A are in order. Zeros stand
  // for rows that A has not.
  int32_t const* token_ids;
  int64_t lda, ldb, ldd;
  int64_t b_stride_expert;
  int32_t m, n, k;
  int32_t tokens;
  int32_t experts;
  int32_t weights;
  int32_t slot;
  int32_t offset_words;
  int32_t id_words;
  int32_t a_scale_per_row;
  int32_t b_scale_per_column;
  // Of scales in groups along K, in elements; the last one of all scales of B.
  int64_t a_scale_stride_m;
  int64_t a_scale_stride_k;
  int64_t b_scale_stride_n;
  int64_t b_scale_stride_k;
  int64_t b_scale_stride_expert;
  // Of packed weights; null for none.
  float const* alpha;         // of each of the weights one value
  void const* bias;           // [weights, n], of D's type
};

}  // extern "C"
