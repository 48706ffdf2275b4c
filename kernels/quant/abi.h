// Host code: the arguments of the quantisation kernels. Sizes and strides are in elements.
// Rows are contiguous along the last dimension; row strides may be larger than the row. Zero rows are legal.
#pragma once

#include "core/abi.h"

extern "C" {

// out = code(x / scale), where x is in, activation(gate) * up of in = [rows, 2 hidden] = gate then up, the RMS norm of in (+ residual,
// into which the rounded sum goes) times weight, GELU of in, or in * (1 + mod_scale) + mod_shift.
struct gemmill_quant_args {
  void const* in;
  void* out;
  void* scales;                 // f32, given or written; of packed groups words, of block-scaled ones bytes
  int32_t* azp;                 // s32, given or written where scales are; null for symmetric
  float const* scale_ub;        // bound of the absolute maximum, or of the scale of a gated group; or null
  void const* weight;           // RMS norm: [hidden], of in's type
  void* residual;               // RMS norm: of in's type, or null
  float const* global_scale;    // nvfp4: one value, or one for each expert
  void const* mod_scale;        // of in's type
  void const* mod_shift;
  int32_t const* expert_offsets;  // experts: the first row of each, ascending, and the end of the last
  int32_t const* scale_offsets;   // experts: the first row of each among the scales, a multiple of 128, and the end
  int64_t rows, hidden;
  int64_t in_stride, out_stride, residual_stride;
  // Given, and of groups, which have group_n elements each: the scale of (row, column) is at
  // row / group_m * scale_stride_m + column / group_n * scale_stride_n; packed: words of four groups, at group / 4 * scale_stride_n.
  int64_t scale_stride_m, scale_stride_n, group_m, group_n;
  int64_t scale_rows;           // packed: rows up to which zeros are the padding, the last word column excepted
  int64_t out_rows;             // packed: rows of out, of which those from rows to scale_rows become zeros
  int64_t is_swizzled;          // block-scaled: whether scales lie in tiles of 128 rows x 4, else in rows
  int64_t scales_stride;        // block-scaled, in rows: from one row's to the next's
  int64_t rounds_up;            // mx: whether a scale rounds up, else down as the specification has it
  int64_t rounds_to_input;      // GELU, modulated: whether the values round to in's type before coding
  int64_t padded;               // block-scaled: columns of the codes, of which those from hidden on become zeros
  int64_t mod_scale_stride, mod_shift_stride;  // 0 where rows share one
  int64_t experts;
  int32_t* row_sums;            // of the codes of each row, or null
  float eps;                    // groups: a group's absolute maximum is at least this; RMS norm: added to the mean square
};

enum { gemmill_tensor_quant_workspace_bytes = 4096 };

}  // extern "C"
