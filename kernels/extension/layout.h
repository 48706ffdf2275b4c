// How the elements of a tensor lie.
#pragma once

#include <cstdint>

#include "extension/operand.h"

namespace gemmill {

// By torch's numbers for dtypes, which it promises not to change.
inline int64_t element_bytes(int32_t dtype) {
  switch (dtype) {
    case 2: case 5: case 15: case 27: return 2;  // of 16 bits
    case 3: case 6: case 28: return 4;
    case 4: case 7: case 29: return 8;
    default: return 1;
  }
}

// One past the last byte that the strides reach.
inline char const* end_of(Operand const& x) {
  return static_cast<char const*>(x.data) + x.span_bytes(element_bytes(x.dtype));
}

// All dimensions but the last taken as one.
inline int64_t rows_of(Operand const& x) {
  int64_t rows = 1;
  for (int64_t i = 0; i + 1 < x.rank; ++i) rows *= x.sizes[i];
  return rows;
}

// Their stride, whatever that of the last: -1 where they have no common one. Where a stride means nothing, for it is never
// taken (a single row, no element), it is that of dense rows.
inline int64_t stride_of_rows(Operand const& x) {
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

// The same for rows of contiguous elements: -1 where they are not.
inline int64_t row_stride(Operand const& x) {
  bool const gaps = x.numel() > 0 && x.sizes[x.rank - 1] > 1 && x.strides[x.rank - 1] != 1;
  return gaps ? -1 : stride_of_rows(x);
}

// Whether the elements lie in order and without gaps.
inline bool is_dense(Operand const& x) {
  if (x.numel() == 0) return true;
  int64_t expected = 1;
  for (int64_t i = x.rank - 1; i >= 0; --i) {
    if (x.sizes[i] > 1 && x.strides[i] != expected) return false;
    expected *= x.sizes[i];
  }
  return true;
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t multiple) { return ceil_div(a, multiple) * multiple; }

constexpr int64_t kTmaBytes = 16;
constexpr int64_t kTmaFarthest = int64_t{1} << 40;  // bytes from one row to the next; no descriptor has more

// Largest power of two, up to TMA's 16, that divides both address and row stride in bytes. That of an element where TMA takes
// no such rows: they overlap (expanded tensors), or are too far apart.
inline int64_t tma_alignment(void const* data, int64_t stride, int64_t columns, int64_t bytes) {
  if (stride < columns || stride >= kTmaFarthest / bytes) stride = 1;
  uint64_t bits = reinterpret_cast<uint64_t>(data) | static_cast<uint64_t>(stride * bytes) | kTmaBytes;
  return static_cast<int64_t>(bits & (~bits + 1));
}

}  // namespace gemmill
