// Host code: the launch of gemm/packed_mm.cuh.
#pragma once

#include "blockscaled/abi.h"
#include "gemm/packed_mm.cuh"
#include "gemm/tensor_map.h"

namespace gemmill::blockscaled {

template <class Kernel, auto entry>
int32_t launch_packed_mm(gemmill_blockscaled_args const& x, gemmill_launch const& how) {
  using Output = typename Kernel::Output;
  int64_t const blocks = (x.k + kStageColumns - 1) / kStageColumns * (kStageColumns / Kernel::kColumns);
  if (cudaError_t error = allow_shared_memory<entry>(how.device, Kernel::kSharedBytes); error != cudaSuccess) return error;
  typename Kernel::Params params{};
  if (!describe_rows<typename Kernel::Input>(params.tokens, x, Kernel::kTileM)) return GEMMILL_CANNOT_IMPLEMENT;
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
  if (ctas > INT_MAX || (Kernel::kPersistent && x.splits != 1)) return GEMMILL_CANNOT_IMPLEMENT;
  int64_t const launched = Kernel::kPersistent ? std::min<int64_t>(ctas, how.sm_count) : ctas;
  LaunchShape const shape{dim3(static_cast<unsigned>(launched)), dim3(Kernel::kThreads), dim3(static_cast<unsigned>(x.splits)),
                          Kernel::kSharedBytes};
  void* parameters[] = {&params};
  return launch_kernel<entry>(shape, how, parameters);
}

}  // namespace gemmill::blockscaled
