// Host code: the launch of gemm/packed_mm.cuh.
#pragma once

#include "blockscaled/abi.h"
#include "gemm/packed_mm.cuh"

namespace gemmill::blockscaled {

// Rows of activations for boxes of 128 bytes.
template <class Kernel>
CUresult describe_tokens(CUtensorMap& map, gemmill_blockscaled_args const& x) {
  constexpr int kBytes = sizeof(typename Kernel::Input);
  CUtensorMapDataType const type = kBytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  cuuint64_t const dims[2] = {static_cast<cuuint64_t>(x.k), static_cast<cuuint64_t>(x.m)};
  cuuint64_t const strides[1] = {static_cast<cuuint64_t>(x.lda) * kBytes};
  cuuint32_t const box[2] = {Kernel::kColumns, Kernel::kTileM}, steps[2] = {1, 1};
  return cuTensorMapEncodeTiled(&map, type, 2, const_cast<void*>(x.a), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

template <class Kernel, auto entry>
int32_t launch_packed_mm(gemmill_blockscaled_args const& x, gemmill_launch const& how) {
  using Output = typename Kernel::Output;
  int64_t const blocks = (x.k + kStageColumns - 1) / kStageColumns * (kStageColumns / Kernel::kColumns);
  if (cudaError_t error = allow_shared_memory<entry>(how.device, Kernel::kSharedBytes); error != cudaSuccess) return error;
  typename Kernel::Params params{};
  if (describe_tokens<Kernel>(params.tokens, x) != CUDA_SUCCESS) return GEMMILL_CANNOT_IMPLEMENT;
  params.weights = static_cast<char const*>(x.b);
  params.alpha = x.alpha;
  params.base = static_cast<float const*>(x.b_sf);
  params.scales = static_cast<float const*>(x.a_sf);
  params.bias = static_cast<Output const*>(x.bias);
  params.d = static_cast<Output*>(x.d);
  params.ldd = x.ldd;
  params.m = x.m, params.n = x.n;
  params.blocks = static_cast<int32_t>(blocks);
  params.groups = (x.k + kGroupColumns - 1) / kGroupColumns;
  params.spread = Kernel::kSpread;
  params.constant_weights = how.constant_weights != 0;
  params.whole_quads = x.ldd % 4 == 0 && reinterpret_cast<uintptr_t>(x.d) % 8 == 0;
  int64_t const tiles_m = (int64_t{x.m} + Kernel::kTileM - 1) / Kernel::kTileM;
  int64_t const ctas = (int64_t{x.n} + Kernel::kRows - 1) / Kernel::kRows * tiles_m * x.splits;
  if (ctas > INT_MAX) return GEMMILL_CANNOT_IMPLEMENT;
  LaunchShape const shape{dim3(static_cast<unsigned>(ctas)), dim3(Kernel::kThreads), dim3(static_cast<unsigned>(x.splits)),
                          Kernel::kSharedBytes};
  void* parameters[] = {&params};
  return launch_kernel<entry>(shape, how, parameters);
}

}  // namespace gemmill::blockscaled
