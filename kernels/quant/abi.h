// Host code: the arguments of the quantisation kernels. Sizes and strides are in elements.
// Rows are contiguous along the last dimension; row strides may be larger than the row. Zero rows are legal.
#pragma once

#include "core/abi.h"

extern "C" {

// out = code(activation(in) x 1/scale) (s8 symmetric: / scale). With an activation, in is [rows, 2 hidden]: gate, then up.
struct gemmill_static_quant_args {
  void const* in;
  void* out;
  float const* scales;          // scale of (row, column) at scales[row / group_m * stride_m + column / group_n * stride_n]
  int32_t const* azp;           // one value; null for symmetric
  int64_t rows, hidden;
  int64_t in_stride, out_stride;
  int64_t group_m, group_n, scale_stride_m, scale_stride_n;
};

// One scale for the tensor, written to scale[0].
struct gemmill_tensor_quant_args {
  void const* in;
  void* out;
  float* scale;
  int32_t* azp;                 // null where codes are symmetric
  int64_t rows, hidden;
  int64_t in_stride, out_stride;
};

// One scale a row. With an activation, in is [rows, 2 hidden].
struct gemmill_token_quant_args {
  void const* in;
  void* out;
  float* scales;                // [rows]
  int32_t* azps;                // [rows]; null for symmetric
  float const* scale_ub;        // bound of the row's absolute maximum, or null
  int64_t rows, hidden;
  int64_t in_stride, out_stride;
};

// One scale for each group of a row. With an activation, in is [rows, 2 hidden].
struct gemmill_group_quant_args {
  void const* in;
  void* out;
  void* scales;                 // f32 at row * scale_stride_m + group * scale_stride_g; packed ue8m0: see below
  int32_t* azps;                // s32 with the scales' strides; null for symmetric
  float const* scale_ub;        // bound of the scale, or null
  int64_t rows, hidden;
  int64_t in_stride, out_stride;
  int64_t scale_stride_m, scale_stride_g;  // packed: words of four groups at row * stride_m + group / 4 * stride_g
  int64_t scale_rows;           // packed: rows up to which padding is zeroed, the last word column excepted
  int64_t out_rows;             // packed: rows of out, of which those from rows to scale_rows are zeroed
  float smallest_amax;          // a group's absolute maximum is at least this
  float smallest_scale;         // its scale is at least this
};

// x = in (+ residual, which is replaced by x rounded); out = code(round(x / rms) * weight).
struct gemmill_rms_norm_quant_args {
  void const* in;
  void const* weight;           // [hidden], of in's type
  void* residual;               // or null
  void* out;
  float* scales;                // [rows], or row * scale_stride_m + group * scale_stride_g
  float const* scale_ub;        // bound of the absolute maximum, or null
  int64_t rows, hidden;
  int64_t in_stride, out_stride, residual_stride;
  int64_t scale_stride_m, scale_stride_g;
  float epsilon;
};

enum { gemmill_tensor_quant_workspace_bytes = 4096 };

}  // extern "C"
