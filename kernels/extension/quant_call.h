// One call of a quantisation op, whichever it is: its tensors by role, and what the checks find out about them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "operand.h"

namespace gemmill {

// In the order of gemmill.space.quant's enumerations.
enum class QuantFamily : int64_t { kStatic, kTensor, kToken, kGroup, kRmsToken, kRmsGroup };
enum class QuantActivation : int64_t { kNone, kSilu, kGeluTanh, kGeluErf };
enum class QuantFormat : int64_t { kF32, kPowerOfTwo, kPackedUe8m0 };

struct QuantCall {
  QuantFamily family;
  QuantActivation activation = QuantActivation::kNone;
  bool knows_activation = true;  // false: the op is told one that does not exist
  bool takes_f32 = true;  // as input
  bool makes_e4m3 = true, makes_s8 = true;
  bool one_scale = false;  // static: no groups

  Operand out, in, scales, azp, scale_ub, weight, residual;
  int64_t group_size = 0;
  bool takes_group_32 = false;
  QuantFormat format = QuantFormat::kF32;
  std::optional<bool> transposed;  // whether scales are said to be M-major; unset where their strides tell
  std::optional<std::vector<int64_t>> group_shape;
  bool truncated = false;  // codes, towards zero
  double epsilon = 0.0;
  bool limits_fit = true;  // whether the codes' limits, where the op takes them, are those of the type

  // Set by `well_formed`.
  int64_t rows = 0, hidden = 0, out_rows = 0;
  int64_t in_stride = 0, out_stride = 0, residual_stride = 0;
  int64_t group_m = 1, group_n = 1, scale_stride_m = 0, scale_stride_n = 0;

  bool grouped() const { return family == QuantFamily::kGroup || family == QuantFamily::kRmsGroup; }
  // Whether scales are written even where rows have no elements.
  bool scale_a_row() const { return family == QuantFamily::kToken || family == QuantFamily::kRmsToken; }
  bool one_azp() const { return family == QuantFamily::kStatic || family == QuantFamily::kTensor; }
  bool makes_scales() const { return family != QuantFamily::kStatic; }  // and zero points: else they are given
  bool gated() const { return activation != QuantActivation::kNone; }
  bool s8() const;
  void note_writes() const;
};

// Whether the call is right. Every check has its sentence in gemmill.runtime.quant_checks.
bool well_formed(QuantCall& x);

}  // namespace gemmill
