// Host code: tensor maps, whose boxes TMA loads.
#pragma once

#include <cuda.h>

namespace gemmill {

// A map of `rank` dimensions, the contiguous one first. Strides are in bytes, of all dimensions but that one. Rows of boxes of 128 bytes may
// be swizzled by as many.
template <int rank>
bool encode_tensor_map(CUtensorMap& map, CUtensorMapDataType type, void const* data, cuuint64_t const (&dims)[rank], cuuint64_t const (&strides)[rank - 1],
              cuuint32_t const (&box)[rank], bool swizzled) {
  cuuint32_t steps[rank];
  for (cuuint32_t& step : steps) step = 1;
  return cuTensorMapEncodeTiled(&map, type, rank, const_cast<void*>(data), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Rows of A of a GEMM: boxes of `box_rows` rows of 128 bytes, of bf16 or of codes of a byte.
template <class Input, class Args>
bool describe_rows(CUtensorMap& map, Args const& x, int box_rows) {
  constexpr int kBytes = sizeof(Input);
  CUtensorMapDataType const type = kBytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  return encode_tensor_map<2>(map, type, x.a, {static_cast<cuuint64_t>(x.k), static_cast<cuuint64_t>(x.m)}, {static_cast<cuuint64_t>(x.lda) * kBytes},
                     {128 / kBytes, static_cast<cuuint32_t>(box_rows)}, true);
}

}  // namespace gemmill
