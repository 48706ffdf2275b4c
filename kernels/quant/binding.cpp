// The quantisation ops: special checks, and what a kernel is given.
#include <algorithm>

#include "extension/dtypes.h"
#include "extension/family.h"
#include "extension/layout.h"
#include "quant/abi.h"

namespace gemmill {
namespace {

// In the order of gemmill.families.quant.config's enumerations.
enum Scaling : int64_t { kStatic, kTensor, kToken, kGroup, kRmsToken, kRmsGroup };
enum ScaleFormat : int64_t { kF32, kPowerOfTwo, kPackedUe8m0 };

enum Role { kOut, kIn, kScales, kAzp, kScaleUb, kWeight, kResidual };
enum Value {
  kScaling, kActivation, kScaleFormat, kGroupSize, kRows, kHidden, kOutRows, kInStride, kOutStride,
  kResidualStride, kEps, kWords, kScaleRows, kTransposed, kTakesGroupShape, kGroupShape
};
// What the special checks find out.
enum Found { kGroupM, kGroupN, kScaleStrideM, kScaleStrideN };

// Smallest scales of the ops that have one, as in gemmill.families.quant.reference.
constexpr float kSmallestE4m3Scale = 1.0f / (448.0f * 512.0f), kSmallestS8Scale = 1.1920929e-07f;

bool to_s8(OpCall const& x) { return x.tensor(kOut).dtype == dtypes().s8; }

// Whether scales that are given fit the codes and the group shape.
bool static_scales_fit(OpCall& x) {
  Operand const& scales = x.tensor(kScales);
  auto const* shape = x.list(kGroupShape);
  int64_t const sizes[2] = {x.value(kRows), x.value(kHidden)};
  x.found[kGroupM] = x.found[kGroupN] = 1;
  if (shape && (shape->size() != 2 || !std::all_of(shape->begin(), shape->end(), [](int64_t n) { return n == -1 || n > 0; }))) return false;
  if (scales.numel() == 1) return true;
  if (!x.value(kTakesGroupShape)) return false;
  if (scales.rank == 1) {
    if (!shape) return false;
    bool const by_row = (*shape)[0] == 1 && (*shape)[1] == -1, by_column = (*shape)[0] == -1 && (*shape)[1] == 1;
    if ((!by_row && !by_column) || scales.sizes[0] != sizes[by_column]) return false;
    x.found[by_row ? kScaleStrideM : kScaleStrideN] = scales.strides[0];
    x.found[by_row ? kGroupN : kGroupM] = std::max<int64_t>(sizes[by_row], 1);
    return true;
  }
  if (scales.rank != 2) return false;
  for (int i = 0; i < 2; ++i) {
    int64_t const count = scales.sizes[i];
    if (sizes[i] == 0 ? count > 1 : count < 1 || sizes[i] % count != 0) return false;
    int64_t const group = sizes[i] == 0 ? 1 : sizes[i] / count;
    if (shape && sizes[i] > 0 && (*shape)[i] != group && !((*shape)[i] == -1 && count == 1)) return false;
    x.found[kGroupM + i] = group, x.found[kScaleStrideM + i] = scales.strides[i];
  }
  return true;
}

// Scales (or words of four) by row and group, at strides that keep them apart.
bool group_scales_fit(OpCall& x) {
  Operand const& s = x.tensor(kScales);
  Operand const& in = x.tensor(kIn);
  bool const packed = x.value(kScaleFormat) == kPackedUe8m0;
  int64_t const transposed = x.value(kTransposed);  // -1 where their strides tell
  int64_t const rows = x.value(kRows), columns = x.value(kWords), padded = packed ? x.value(kScaleRows) : rows;
  bool const as_rows = (s.rank == 2 && s.sizes[0] == rows && s.sizes[1] == columns) ||
                       (s.rank >= 1 && s.rank == in.rank && s.sizes[s.rank - 1] == columns && std::equal(s.sizes, s.sizes + s.rank - 1, in.sizes));
  // Strides that are never taken are made those of the layout: padding is written at the second row of the only one.
  auto fits = [&](int64_t m, int64_t g, bool m_major) {
    if (rows <= 1 || columns == 0) m = m_major ? 1 : columns;
    if (columns <= 1 || rows == 0) g = m_major ? padded : 1;
    x.found[kScaleStrideM] = m, x.found[kScaleStrideN] = g;
    return m_major ? m == 1 && g >= padded : g == 1 && m >= columns;
  };
  if (as_rows) {
    int64_t const m = s.rank == 2 ? s.strides[0] : stride_of_rows(s), g = s.strides[s.rank - 1];
    if (m < 0) return false;
    if (packed) return fits(m, g, true);
    if (transposed < 0) return fits(m, g, false) || fits(m, g, true);
    if (fits(m, g, transposed != 0)) return true;
  }
  if (transposed <= 0 || packed) return false;
  // [groups, rows], as it lies in memory.
  return s.rank == 2 && s.sizes[0] == columns && s.sizes[1] == rows && fits(s.strides[1], s.strides[0], true);
}

template <class T>
T* data_of(OpCall const& x, Role role) {
  return static_cast<T*>(x.tensor(role).data);
}

void launch_static(OpCall const& x, Chosen const& chosen) {
  gemmill_static_quant_args const args{x.tensor(kIn).data, x.tensor(kOut).data, data_of<float const>(x, kScales),
                                       data_of<int32_t const>(x, kAzp), x.value(kRows), x.value(kHidden), x.value(kInStride),
                                       x.value(kOutStride), x.found[kGroupM], x.found[kGroupN], x.found[kScaleStrideM],
                                       x.found[kScaleStrideN]};
  chosen.launch(&args);
}

void launch_tensor(OpCall const& x, Chosen const& chosen) {
  gemmill_tensor_quant_args const args{x.tensor(kIn).data, x.tensor(kOut).data, data_of<float>(x, kScales), data_of<int32_t>(x, kAzp),
                                       x.value(kRows), x.value(kHidden), x.value(kInStride), x.value(kOutStride)};
  chosen.launch(&args);
}

void launch_token(OpCall const& x, Chosen const& chosen) {
  gemmill_token_quant_args const args{x.tensor(kIn).data, x.tensor(kOut).data, data_of<float>(x, kScales), data_of<int32_t>(x, kAzp),
                                      data_of<float const>(x, kScaleUb), x.value(kRows), x.value(kHidden), x.value(kInStride),
                                      x.value(kOutStride)};
  chosen.launch(&args);
}

void launch_group(OpCall const& x, Chosen const& chosen) {
  float const smallest_scale = x.value(kActivation) == 0 ? 0.0f : to_s8(x) ? kSmallestS8Scale : kSmallestE4m3Scale;
  gemmill_group_quant_args const args{x.tensor(kIn).data, x.tensor(kOut).data, x.tensor(kScales).data, data_of<int32_t>(x, kAzp),
                                      data_of<float const>(x, kScaleUb), x.value(kRows), x.value(kHidden), x.value(kInStride),
                                      x.value(kOutStride), x.found[kScaleStrideM], x.found[kScaleStrideN], x.value(kScaleRows),
                                      x.value(kOutRows), static_cast<float>(x.real(kEps)), smallest_scale};
  chosen.launch(&args);
}

void launch_rms_norm(OpCall const& x, Chosen const& chosen) {
  int64_t const stride_m = x.value(kScaling) == kRmsToken ? 1 : x.found[kScaleStrideM];
  gemmill_rms_norm_quant_args const args{x.tensor(kIn).data, x.tensor(kWeight).data, x.tensor(kResidual).data, x.tensor(kOut).data,
                                         data_of<float>(x, kScales), data_of<float const>(x, kScaleUb), x.value(kRows),
                                         x.value(kHidden), x.value(kInStride), x.value(kOutStride), x.value(kResidualStride),
                                         stride_m, x.found[kScaleStrideN], static_cast<float>(x.real(kEps))};
  chosen.launch(&args);
}

void launch(OpCall const& x, Chosen const& chosen) {
  switch (x.value(kScaling)) {
    case kStatic: return launch_static(x, chosen);
    case kTensor: return launch_tensor(x, chosen);
    case kToken: return launch_token(x, chosen);
    case kGroup: return launch_group(x, chosen);
    default: return launch_rms_norm(x, chosen);
  }
}

bool asks(OpCall const& x, Call&) {
  // What belongs to an empty tensor, or to a row without elements, is written: scale and zero point.
  int64_t const scaling = x.value(kScaling), rows = x.value(kRows);
  bool const writes_scales = scaling == kTensor || ((scaling == kToken || scaling == kRmsToken) && rows > 0);
  return rows * x.value(kHidden) != 0 || writes_scales;
}

Family const quant{
    "quant",
    {"out", "input", "scales", "azp", "scale_ub", "weight", "residual"},
    {"scaling", "chosen", "scale_format", "group_size", "rows", "hidden", "out_rows", "input_stride", "out_stride", "residual_stride",
     "eps", "words", "scale_rows", "is_scale_transposed", "takes_group_shape", "group_shape"},
    {{"static_scales", static_scales_fit}, {"group_scales", group_scales_fit}},
    asks,
    launch,
};

}  // namespace
}  // namespace gemmill
