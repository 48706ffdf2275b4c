#include "scaled_mm/group_scales.h"

#include <climits>


namespace gemmill {
namespace {

constexpr int64_t kTmaBytes = 16;
constexpr int64_t kScaleBytes = 4;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t multiple) { return ceil_div(a, multiple) * multiple; }

bool has_shape(Operand const& x, int64_t rows, int64_t columns) {
  return x.rank == 2 && x.sizes[0] == rows && x.sizes[1] == columns;
}

// Of a dimension of one element, which is never stepped along, 1.
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
  for (int64_t size : {128, 64}) {
    int64_t groups = ceil_div(k, size);
    for (int64_t columns : {ceil_div(n, size), n}) {
      if (has_shape(a_scales, m, groups) && has_shape(b_scales, groups, columns)) return kind;
      ++kind;
    }
  }
  return -1;
}

}  // namespace

void GroupedScales::tell(gemmill_scaled_mm_args& args) const {
  args.a_scale_stride_m = a_stride_m, args.a_scale_stride_k = a_stride_k;
  args.b_scale_stride_n = b_stride_n, args.b_scale_stride_k = b_stride_k;
}

GroupedScales group_scales(Operand const& a_scales, Operand const& b_scales, int64_t m, int64_t n, int64_t k) {
  GroupedScales none;
  int64_t kind = kind_of(a_scales, b_scales, m, n, k);
  if (kind < 0) return none;
  bool const mn_major = lies_for_tma(a_scales) && counts_in_32_bits(a_scales) && counts_in_32_bits(b_scales);
  GroupedScales found;
  found.code = 1 + kind * 2 + !mn_major;
  found.a_stride_m = stride_of(a_scales, 0), found.a_stride_k = stride_of(a_scales, 1);
  found.b_stride_n = stride_of(b_scales, 1), found.b_stride_k = stride_of(b_scales, 0);
  if (found.a_stride_m != 1 && found.a_stride_k != 1) return none;
  if (found.b_stride_n != 1 && found.b_stride_k != 1) return none;
  // The stride of a single group is never used, but a descriptor has it: any will do that TMA takes.
  if (a_scales.sizes[1] <= 1) found.a_stride_k = round_up(m, kTmaBytes / kScaleBytes);
  return found;
}

}  // namespace gemmill
