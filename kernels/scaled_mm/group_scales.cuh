// Scales in groups along K, as kernels read them.
#pragma once

#include <cuda_runtime.h>

#include "cutlass/cutlass.h"
#include "scaled_mm/abi.h"

namespace gemmill {

// Strides as in abi.h. A group beyond K or a row beyond M or N reads as zero, so that the zeros that TMA loads there
// stay zeros.
template <int group_size, bool b_in_blocks>
struct GroupScales {
  static constexpr int kGroup = group_size;
  static constexpr bool kBlocks = b_in_blocks;
  static_assert(group_size % 32 == 0, "a group is whole instructions of the tensor core");

  float const* a;
  float const* b;
  int64_t a_stride_m, a_stride_k, b_stride_n, b_stride_k;
  int32_t m, n, groups;

  explicit GroupScales(gemmill_scaled_mm_args const& x)
      : a(x.a_scales), b(x.b_scales), a_stride_m(x.a_scale_stride_m), a_stride_k(x.a_scale_stride_k),
        b_stride_n(x.b_scale_stride_n), b_stride_k(x.b_scale_stride_k), m(x.m), n(x.n),
        groups(x.k / group_size + (x.k % group_size != 0)) {}

  __device__ float of_row(int64_t row, int group) const {
    return row < m && group < groups ? a[row * a_stride_m + group * a_stride_k] : 0.0f;
  }
  __device__ float of_column(int64_t column, int group) const {
    if (column >= n || group >= groups) return 0.0f;
    return b[(kBlocks ? column / group_size : column) * b_stride_n + group * b_stride_k];
  }
};

// The end of a group-scaled sum: the bias, if the kernel takes one and the call has one.
template <bool takes_bias, class Output>
__device__ Output with_bias(float sum, Output const* bias, int64_t column) {
  if constexpr (takes_bias) {
    if (bias != nullptr) sum += static_cast<float>(bias[column]);
  }
  return Output(sum);
}

}  // namespace gemmill
