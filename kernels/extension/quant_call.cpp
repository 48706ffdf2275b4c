#include "quant_call.h"

#include <algorithm>
#include <array>
#include <utility>

#include "dtypes.h"

namespace gemmill {
namespace {

int64_t rows_of(Operand const& x) {
  int64_t rows = 1;
  for (int64_t i = 0; i + 1 < x.rank; ++i) rows *= x.sizes[i];
  return rows;
}

// The stride of all dimensions but the last taken as one, whatever the stride of the last: -1 where they cannot be. Where a
// stride means nothing, for it is never taken (a single row, no element), it is that of dense rows.
int64_t stride_of_rows(Operand const& x) {
  int64_t stride = x.sizes[x.rank - 1], expected = -1;
  if (x.numel() == 0) return stride;
  for (int64_t i = x.rank - 2; i >= 0; --i) {
    if (x.sizes[i] == 1) continue;
    if (expected >= 0 && x.strides[i] != expected) return -1;
    if (expected < 0) stride = x.strides[i];
    expected = x.strides[i] * x.sizes[i];
  }
  return stride;
}

// The same for rows whose elements lie beside one another: -1 where they do not.
int64_t row_stride(Operand const& x) {
  bool const apart = x.numel() > 0 && x.sizes[x.rank - 1] > 1 && x.strides[x.rank - 1] != 1;
  return apart ? -1 : stride_of_rows(x);
}

bool is_dense(Operand const& x) {
  if (x.numel() == 0) return true;
  int64_t expected = 1;
  for (int64_t i = x.rank - 1; i >= 0; --i) {
    if (x.sizes[i] > 1 && x.strides[i] != expected) return false;
    expected *= x.sizes[i];
  }
  return true;
}

bool has_values(Operand const& x, int32_t dtype, int64_t count) { return x.dtype == dtype && x.numel() == count && is_dense(x); }

bool same_shape(Operand const& x, Operand const& y, int64_t last) {
  if (x.rank != y.rank || x.sizes[x.rank - 1] != last) return false;
  return std::equal(x.sizes, x.sizes + x.rank - 1, y.sizes);
}

// Whether elements of two tensors of one shape lie at the same offsets.
bool same_places(Operand const& x, Operand const& y) {
  for (int64_t i = 0; i < x.rank && x.numel() > 0; ++i) {
    if (x.sizes[i] > 1 && x.strides[i] != y.strides[i]) return false;
  }
  return true;
}

bool written_rows(Operand const& x, int64_t rows, int64_t stride) {
  return stride >= 0 && (rows <= 1 || stride >= x.sizes[x.rank - 1]);
}

bool sizes_fit(QuantCall& x) {
  if (x.in.rank < 1 || x.out.rank < 1) return false;
  int64_t const width = x.in.sizes[x.in.rank - 1];
  if (x.gated() && width % 2 != 0) return false;
  x.hidden = x.gated() ? width / 2 : width;
  x.rows = rows_of(x.in), x.out_rows = rows_of(x.out);
  // Packed scales are padded to four rows, and so may the codes be.
  bool const padded = x.format == QuantFormat::kPackedUe8m0 && x.out.rank == 2 && x.out_rows >= x.rows && x.out.sizes[1] == x.hidden;
  if (!padded && !same_shape(x.out, x.in, x.hidden)) return false;
  x.in_stride = row_stride(x.in), x.out_stride = row_stride(x.out);
  return x.in_stride >= 0 && written_rows(x.out, x.out_rows, x.out_stride);
}

bool dtypes_fit(QuantCall const& x) {
  if (!x.knows_activation) return false;
  Dtypes const& d = dtypes();
  bool const in = x.in.dtype == d.bf16 || x.in.dtype == d.f16 || (x.takes_f32 && x.in.dtype == d.f32);
  return in && ((x.makes_e4m3 && x.out.dtype == d.e4m3) || (x.makes_s8 && x.out.dtype == d.s8));
}

bool static_scales_fit(QuantCall& x) {
  if (x.scales.dtype != dtypes().f32) return false;
  auto const& shape = x.group_shape;
  if (shape && (shape->size() != 2 || !std::all_of(shape->begin(), shape->end(), [](int64_t n) { return n == -1 || n > 0; }))) return false;
  if (x.scales.numel() == 1) return true;
  if (x.one_scale) return false;
  if (x.scales.rank == 1) {
    if (!shape) return false;
    int64_t const stride = x.scales.strides[0], count = x.scales.sizes[0];
    if ((*shape)[0] == 1 && (*shape)[1] == -1 && count == x.rows) {
      x.scale_stride_m = stride, x.group_n = std::max<int64_t>(x.hidden, 1);
      return true;
    }
    if ((*shape)[0] == -1 && (*shape)[1] == 1 && count == x.hidden) {
      x.scale_stride_n = stride, x.group_m = std::max<int64_t>(x.rows, 1);
      return true;
    }
    return false;
  }
  if (x.scales.rank != 2) return false;
  int64_t const sizes[2] = {x.rows, x.hidden};
  int64_t groups[2];
  for (int i = 0; i < 2; ++i) {
    int64_t const count = x.scales.sizes[i];
    if (sizes[i] == 0 ? count > 1 : count < 1 || sizes[i] % count != 0) return false;
    groups[i] = sizes[i] == 0 ? 1 : sizes[i] / count;
    if (shape && sizes[i] > 0 && (*shape)[i] != groups[i] && !((*shape)[i] == -1 && count == 1)) return false;
  }
  x.group_m = groups[0], x.group_n = groups[1];
  x.scale_stride_m = x.scales.strides[0], x.scale_stride_n = x.scales.strides[1];
  return true;
}

// Scales (or words of four) by row and group, at strides that keep them apart.
bool group_scales_fit(QuantCall& x) {
  Operand const& s = x.scales;
  bool const packed = x.format == QuantFormat::kPackedUe8m0;
  if (s.dtype != (packed ? dtypes().s32 : dtypes().f32)) return false;
  int64_t const groups = x.hidden / x.group_size;
  int64_t const columns = packed ? (groups + 3) / 4 : groups;
  int64_t const rows = packed ? (x.rows + 3) / 4 * 4 : x.rows;
  bool const as_rows = (s.rank == 2 && s.sizes[0] == x.rows && s.sizes[1] == columns) ||
                       (s.rank >= 1 && same_shape(s, x.in, columns));
  // Strides that are never taken are made those of the layout: padding is written at the second row of the only one.
  auto fits = [&](int64_t m, int64_t g, bool m_major) {
    if (x.rows <= 1 || columns == 0) m = m_major ? 1 : columns;
    if (columns <= 1 || x.rows == 0) g = m_major ? rows : 1;
    x.scale_stride_m = m, x.scale_stride_n = g;
    return m_major ? m == 1 && g >= rows : g == 1 && m >= columns;
  };
  if (as_rows) {
    int64_t const m = s.rank == 2 ? s.strides[0] : stride_of_rows(s), g = s.strides[s.rank - 1];
    if (m < 0) return false;
    if (packed) return fits(m, g, true);
    if (!x.transposed) return fits(m, g, false) || fits(m, g, true);
    if (fits(m, g, *x.transposed)) return true;
  }
  if (!x.transposed.value_or(false) || packed) return false;
  // [groups, rows], as it lies in memory.
  return s.rank == 2 && s.sizes[0] == columns && s.sizes[1] == x.rows && fits(s.strides[1], s.strides[0], true);
}

bool scales_fit(QuantCall& x) {
  switch (x.family) {
    case QuantFamily::kStatic: return static_scales_fit(x);
    case QuantFamily::kTensor: return x.scales.dtype == dtypes().f32 && x.scales.numel() >= 1;
    case QuantFamily::kToken:
    case QuantFamily::kRmsToken: x.scale_stride_m = 1; return has_values(x.scales, dtypes().f32, x.rows);
    default: break;
  }
  bool const offered = x.group_size == 64 || x.group_size == 128 || (x.takes_group_32 && x.group_size == 32);
  return offered && x.hidden % x.group_size == 0 && group_scales_fit(x);
}

bool others_fit(QuantCall& x) {
  if (x.azp.given() && x.family == QuantFamily::kGroup) {
    if (x.azp.dtype != dtypes().s32 || x.azp.rank != x.scales.rank) return false;
    if (!std::equal(x.azp.sizes, x.azp.sizes + x.azp.rank, x.scales.sizes)) return false;
    if (!same_places(x.azp, x.scales)) return false;
  } else if (x.azp.given() && !has_values(x.azp, dtypes().s32, x.one_azp() ? 1 : x.rows)) return false;
  if (x.scale_ub.given() && (x.s8() || x.scale_ub.dtype != dtypes().f32 || x.scale_ub.numel() != 1)) return false;
  if (x.weight.given() && (x.weight.rank != 1 || !has_values(x.weight, x.in.dtype, x.hidden))) return false;
  if (x.residual.given()) {
    if (x.residual.dtype != x.in.dtype || x.residual.rank < 1 || !same_shape(x.residual, x.in, x.hidden)) return false;
    x.residual_stride = row_stride(x.residual);
    if (!written_rows(x.residual, x.rows, x.residual_stride)) return false;
  }
  return x.limits_fit && x.epsilon >= 0.0;
}

bool places_fit(QuantCall const& x) {
  int64_t const in_bytes = x.in.dtype == dtypes().f32 ? 4 : 2;
  struct Place {
    Operand const* operand;
    int64_t element_bytes;
    bool written;
  };
  std::array<Place, 7> const places{{{&x.out, 1, true},
                                     {&x.in, in_bytes, false},
                                     {&x.scales, 4, x.makes_scales()},
                                     {&x.azp, 4, x.makes_scales()},
                                     {&x.scale_ub, 4, false},
                                     {&x.weight, in_bytes, false},
                                     {&x.residual, in_bytes, true}}};
  for (size_t i = 0; i < places.size(); ++i) {
    Operand const& a = *places[i].operand;
    if (!a.given()) continue;
    if (a.device != x.out.device || a.is_differentiated()) return false;
    for (size_t j = 0; j < i; ++j) {
      Operand const& b = *places[j].operand;
      if (!b.given() || !(places[i].written || places[j].written)) continue;
      if (overlap(a.data, a.span_bytes(places[i].element_bytes), b.data, b.span_bytes(places[j].element_bytes))) return false;
    }
  }
  return true;
}

}  // namespace

bool QuantCall::s8() const { return out.dtype == dtypes().s8; }

void QuantCall::note_writes() const {
  out.note_write(), residual.note_write();
  if (makes_scales()) scales.note_write(), azp.note_write();
}

bool well_formed(QuantCall& x) { return dtypes_fit(x) && sizes_fit(x) && scales_fit(x) && others_fit(x) && places_fit(x); }

}  // namespace gemmill
