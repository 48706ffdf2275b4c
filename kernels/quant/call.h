// What the binding reads of a call of a quantisation op.
#pragma once

#include "extension/call.h"

namespace gemmill::quant {

enum Role { kOut, kIn, kScales, kAzp, kScaleUb, kWeight, kResidual };
inline constexpr char const* kRoleNames[] = {"out", "input", "scales", "azp", "scale_ub", "weight", "residual"};

enum Value {
  kRows, kHidden, kOutRows, kInStride, kOutStride, kResidualStride, kEps, kWords, kScaleRows, kWorks, kPacked, kTransposed,
  kTakesGroupShape, kGroupShape
};
inline constexpr char const* kValueNames[] = {
    "rows", "hidden", "out_rows", "input_stride", "out_stride", "residual_stride", "eps", "words", "scale_rows", "works", "packed",
    "is_scale_transposed", "takes_group_shape", "group_shape"};

// What the special checks leave behind.
enum Found { kGroupM, kGroupN, kScaleStrideM, kScaleStrideN };

// The special checks: whether scales that are given, or scales of groups, fit the call.
bool static_scales_fit(OpCall& call);
bool group_scales_fit(OpCall& call);

}  // namespace gemmill::quant
