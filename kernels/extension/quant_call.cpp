#include "quant_call.h"

#include <algorithm>
#include <array>
#include <utility>

#include "dtypes.h"

namespace gemmill {
namespace {

// The stride of rows, all dimensions but the last taken as one: -1 where they cannot be. Rows of no dimension, or only
// one row, have the stride of dense ones.
int64_t row_stride(Operand const& x) {
  int64_t const hidden = x.sizes[x.rank - 1];
  if (hidden > 1 && x.strides[x.rank - 1] != 1) return -1;
  int64_t stride = hidden, expected = -1;
  for (int64_t i = x.rank - 2; i >= 0; --i) {
    if (x.sizes[i] == 1) continue;
    if (expected >= 0 && x.strides[i] != expected) return -1;
    if (expected < 0) stride = x.strides[i];
    expected = x.strides[i] * x.sizes[i];
  }
  return stride;
}

bool is_dense(Operand const& x) {
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

bool written_rows(Operand const& x, int64_t rows, int64_t stride) {
  return stride >= 0 && (rows <= 1 || stride >= x.sizes[x.rank - 1]);
}

bool sizes_fit(QuantCall& x) {
  if (x.in.rank < 1 || x.out.rank < 1) return false;
  int64_t const width = x.in.sizes[x.in.rank - 1];
  if (x.gated() && width % 2 != 0) return false;
  x.hidden = x.gated() ? width / 2 : width;
  x.rows = 1;
  for (int64_t i = 0; i + 1 < x.in.rank; ++i) x.rows *= x.in.sizes[i];
  if (!same_shape(x.out, x.in, x.hidden)) return false;
  x.in_stride = row_stride(x.in), x.out_stride = row_stride(x.out);
  return x.in_stride >= 0 && written_rows(x.out, x.rows, x.out_stride);
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
    if (count < 1 || sizes[i] % count != 0) return false;
    groups[i] = std::max<int64_t>(sizes[i] / count, 1);
    if (shape && (*shape)[i] != groups[i] && !((*shape)[i] == -1 && count == 1)) return false;
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
  auto fits = [&](int64_t m, int64_t g, bool m_major) {
    x.scale_stride_m = m, x.scale_stride_n = g;
    return m_major ? (m == 1 || x.rows <= 1) && (g >= rows || columns <= 1) : (g == 1 || columns <= 1) && (m >= columns || x.rows <= 1);
  };
  if (as_rows) {
    int64_t m = 0, g = s.strides[s.rank - 1];
    if (s.rank == 2) {
      m = s.strides[0];
    } else {
      // Leading dimensions as one, whatever the stride along a row.
      int64_t expected = -1;
      for (int64_t i = s.rank - 2; i >= 0; --i) {
        if (s.sizes[i] == 1) continue;
        if (expected >= 0 && s.strides[i] != expected) return false;
        if (expected < 0) m = s.strides[i];
        expected = s.strides[i] * s.sizes[i];
      }
    }
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
    case QuantFamily::kTensor: return x.scales.dtype == dtypes().f32 && x.scales.numel() == 1;
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
    if (!std::equal(x.azp.strides, x.azp.strides + x.azp.rank, x.scales.strides)) return false;
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
