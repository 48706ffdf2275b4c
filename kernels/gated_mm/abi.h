// Host code: the arguments of gated GEMMs' kernels.
#pragma once

#include "core/abi.h"

extern "C" {

// D[m, h] = activation(gate) up, gate and up being columns of epilogue(A[m, k] B[k, n]), n = 2 h. A and D are row-major, B is
// column-major, its columns in the order of gemmill.formats.gate_up; leading dimensions in elements.
struct gemmill_gated_mm_args {
  void const* a;
  void const* b;
  void* d;
  float const* a_scales;      // one value, or m where a_scale_per_row; or of each row and 128 of K
  float const* b_scales;      // one value, or n where b_scale_per_column; or of 128 gates or ups and 128 of K
  float const* static_scale;  // one value, the scale of D's codes; null for others
  float* out_scales;          // of each row and 128 columns of D; null where the kernel finds none
  int64_t lda, ldb, ldd;
  int64_t out_scale_stride_m;
  int64_t out_scale_stride_g;
  int64_t a_scale_stride_m;  // of scales in groups, from one row of A to the next
  int64_t a_scale_stride_k;
  int64_t b_scale_stride_n;  // from gates' to their ups', to the next gates'
  int64_t b_scale_stride_k;
  int32_t m, n, k;
  int32_t a_scale_per_row;
  int32_t b_scale_per_column;
  float alpha, limit, beta;   // of swiglu
  int32_t activation;         // for kernels that serve all: silu, gelu, gelu_tanh, swiglu
  // Of rows that belong to experts; b is [weights, n, k] then, row-major, and its scales are of [weights] first. Rows of expert e:
  // offsets[e] up to offsets[e + 1], of experts + 1; or, where slot is not 0, offsets[e] of the rows from e * slot on, of experts.
  // Each offset is offset_words words of 32 bits, of which the lowest counts.
  int32_t const* offsets;
  int32_t const* expert_map;  // which of b an expert multiplies by, -1 for none; null where expert e has weights e
  int64_t b_stride_expert;
  int64_t b_scale_stride_expert;
  int32_t experts, weights, slot, offset_words;
  // Of each row of D its row of A, each id_words words of 32 bits, of which the lowest counts; null where rows of A are in order.
  // Zeros stand for rows that A has not.
  int32_t const* token_ids;
  int32_t tokens;             // rows of A
  int32_t id_words;
};

}  // extern "C"
