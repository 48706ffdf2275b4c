// The special checks: layouts of scales, as in gemmill.families.quant.layouts.
#include <algorithm>

#include "extension/layout.h"
#include "quant/call.h"

namespace gemmill::quant {

// Whether given scales fit the codes and the group shape.
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
    int64_t counts[2];
    for (int i = 0; i < 2; ++i) {
      int64_t const asked = (*shape)[i];
      if (asked != -1 && sizes[i] % asked != 0) return false;
      x.found[kGroupM + i] = asked == -1 ? std::max<int64_t>(sizes[i], 1) : asked;
      counts[i] = asked == -1 ? 1 : sizes[i] / asked;
    }
    if ((counts[0] != 1 && counts[1] != 1) || scales.sizes[0] != counts[0] * counts[1]) return false;
    x.found[counts[0] == 1 ? kScaleStrideN : kScaleStrideM] = scales.strides[0];
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
  bool const packed = x.value(kPacked) != 0;
  int64_t const transposed = x.value(kTransposed);  // -1 where their strides tell
  int64_t const rows = x.value(kRows), columns = x.value(kWords), padded = x.value(kScaleRows);
  x.found[kGroupM] = 1, x.found[kGroupN] = x.value(kGroupSize);
  bool const as_rows = (s.rank == 2 && s.sizes[0] == rows && s.sizes[1] == columns) ||
                       (s.rank >= 1 && s.rank == in.rank && s.sizes[s.rank - 1] == columns && std::equal(s.sizes, s.sizes + s.rank - 1, in.sizes));
  // Strides that no access takes become those of the layout: padding goes to the place of a second row.
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

}  // namespace gemmill::quant
