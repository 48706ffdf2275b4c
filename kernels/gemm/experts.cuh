// Whose rows are whose, as a kernel finds them on the device: whatever offsets and numbers are, nothing lies outside of A or D.
#pragma once

#include "gemm/grouped_args.h"

namespace gemmill::moe {

// Rows of an expert and its weights.
struct Span {
  int32_t begin, end, weights;
};

__device__ inline Span span_of(gemmill_grouped_mm_args const& x, int expert) {
  auto const offset = [&](int at) { return x.offsets[static_cast<int64_t>(at) * x.offset_words]; };
  Span span{};
  if (x.slot != 0) {
    span.begin = expert * x.slot;
    span.end = span.begin + min(max(offset(expert), 0), x.slot);
  } else {
    span.begin = min(max(offset(expert), 0), x.m);
    span.end = min(max(offset(expert + 1), span.begin), x.m);
  }
  span.weights = x.expert_map != nullptr ? x.expert_map[expert] : expert;
  if (span.weights < 0 || span.weights >= x.weights) span.end = span.begin;
  return span;
}

// The row of A for a row of D, below 0 for none.
__device__ inline int64_t source_of(gemmill_grouped_mm_args const& x, int64_t row, int end) {
  if (row >= end) return -1;
  if (x.token_ids == nullptr) return row;
  int32_t const token = x.token_ids[row * x.id_words];
  return token < x.tokens ? token : -1;
}

// The scale of that row: 0 for none, so that its sums, which are 0, do not become NaN by another row's.
__device__ inline float scale_of(gemmill_grouped_mm_args const& x, int64_t row, int end) {
  int64_t const source = source_of(x, row, end);
  return source < 0 ? 0.0f : x.a_scales[x.a_scale_per_row ? source : 0];
}

}  // namespace gemmill::moe
