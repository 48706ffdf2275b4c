#include "scaled_mm/group_scales.h"

#include <climits>

#include "extension/layout.h"

namespace gemmill {
namespace {

constexpr int64_t kScaleBytes = 4;

bool has_shape(Operand const& x, int64_t rows, int64_t columns) {
  return x.rank == 2 && x.sizes[0] == rows && x.sizes[1] == columns;
}

// 1 for a dimension of one element, along which no access steps.
int64_t stride_of(Operand const& x, int64_t dim) { return x.sizes[dim] <= 1 ? 1 : x.strides[dim]; }

// CUTLASS's blockwise kernels count in 32 bits where a scale lies.
bool counts_in_32_bits(Operand const& x) { return x.span_bytes(kScaleBytes) / kScaleBytes <= INT_MAX; }

// Whether A's scales are M-major, with data and stride along K at multiples of 16 bytes and columns apart.
bool lies_for_tma(Operand const& x) {
  if (x.sizes[0] > 1 && x.strides[0] != 1) return false;
  if (x.sizes[1] > 1 && x.strides[1] < x.sizes[0]) return false;
  int64_t stride = x.sizes[1] > 1 ? x.strides[1] * kScaleBytes : 0;
  return (reinterpret_cast<int64_t>(x.data) | stride) % kTmaBytes == 0;
}

// The kinds in the order of gemmill.vocab.SCALE_GROUPS, from 0; -1 for none of them.
int64_t kind_of(Operand const& a_scales, Operand const& b_scales, int64_t m, int64_t n, int64_t k) {
  int64_t kind = 0;
  for (int64_t size : {128, 64, 32}) {
    int64_t groups = ceil_div(k, size);
    for (int64_t columns : {ceil_div(n, size), n}) {
      if (has_shape(a_scales, m, groups) && has_shape(b_scales, groups, columns)) return kind;
      ++kind;
    }
  }
  return -1;
}

}  // namespace

bool find_groups(Operand const& a_scales, Operand const& b_scales, int64_t m, int64_t n, int64_t k, int64_t* found) {
  int64_t const kind = kind_of(a_scales, b_scales, m, n, k);
  if (kind < 0) return false;
  if (stride_of(a_scales, 0) != 1 && stride_of(a_scales, 1) != 1) return false;
  if (stride_of(b_scales, 0) != 1 && stride_of(b_scales, 1) != 1) return false;
  describe_groups(kind, a_scales, b_scales, m, found);
  return true;
}

void describe_groups(int64_t kind, Operand const& a_scales, Operand const& b_scales, int64_t m, int64_t* found) {
  bool const mn_major = lies_for_tma(a_scales) && counts_in_32_bits(a_scales) && counts_in_32_bits(b_scales);
  found[kScaleGroups] = 1 + kind * 2 + !mn_major;
  // No access uses the stride of a single group, but a descriptor has it: any will do that TMA takes.
  found[kAScaleStrideM] = stride_of(a_scales, 0);
  found[kAScaleStrideK] = a_scales.sizes[1] <= 1 ? round_up(m, kTmaBytes / kScaleBytes) : stride_of(a_scales, 1);
  found[kBScaleStrideN] = stride_of(b_scales, 1), found[kBScaleStrideK] = stride_of(b_scales, 0);
}

}  // namespace gemmill
