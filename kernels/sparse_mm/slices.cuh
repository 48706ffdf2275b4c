// Stream-K of sparse kernels.
#pragma once

#include "core/universal.cuh"
#include "gemm/stream_k.cuh"

namespace gemmill::sparse_mm {

// Host code: the workspace of a kernel. Slices follow from the clusters that fit on the device, which `launch` counts too.
template <class Kernel, auto entry>
int64_t sliced_workspace_bytes(typename Kernel::Arguments arguments, gemmill_launch const& how) {
  int active_clusters = 0;
  if (allow_shared_memory<entry>(how.device, Kernel::SharedStorageSize) != cudaSuccess ||
      most_active_clusters<Kernel, entry>(how.device, active_clusters) != cudaSuccess)
    active_clusters = 0;  // the launch will fail for the same reason
  arguments.hw_info = cutlass::KernelHardwareInfo{how.device, how.sm_count, active_clusters};
  return static_cast<int64_t>(Kernel::get_workspace_size(arguments));
}

}  // namespace gemmill::sparse_mm
