// The binding's view of a call of a quantisation op, by the places in binding.cpp's lists of names.
#pragma once

#include "extension/call.h"

namespace gemmill::quant {

enum Role { kOut, kIn, kScales, kAzp, kScaleUb, kWeight, kResidual, kGlobalScale, kModScale, kModShift, kExpertOffsets, kScaleOffsets, kRowSums };

enum Value {
  kRows, kHidden, kOutRows, kInStride, kOutStride, kResidualStride, kEps, kWords, kScaleRows, kWorks, kPacked, kTransposed,
  kTakesGroupShape, kGroupShape, kIsSwizzled, kScalesStride, kRoundsUp, kPadded, kModScaleStride, kModShiftStride,
  kExperts, kGroupSize, kRoundsToInput
};

// The results of the special checks.
enum Found { kGroupM, kGroupN, kScaleStrideM, kScaleStrideN };

// The special checks: whether given scales, or scales of groups, fit the call.
bool static_scales_fit(OpCall& call);
bool group_scales_fit(OpCall& call);

}  // namespace gemmill::quant
