// Host code: launching a CUTLASS 3.x GemmUniversal kernel.
#pragma once

#include "cutlass/cutlass.h"
#include "cutlass/device_kernel.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/kernel_hardware_info.h"
#include "core/launch.cuh"

namespace gemmill {

template <class Kernel>
dim3 cluster_of() {
  using Cluster = typename Kernel::ClusterShape;
  return dim3(cute::size<0>(Cluster{}), cute::size<1>(Cluster{}), cute::size<2>(Cluster{}));
}

// Clusters of this kernel that fit on a device at once, asked once. Two threads that ask together get the same answer.
template <class Kernel, auto entry>
cudaError_t most_active_clusters(int device, int& active) {
  static std::atomic<int> known[kMostDevices];
  active = known[device].load(std::memory_order_acquire);
  if (active > 0) return cudaSuccess;
  dim3 const cluster = cluster_of<Kernel>();
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {cluster.x, cluster.y, cluster.z};
  cudaLaunchConfig_t config{};
  config.gridDim = cluster;
  config.blockDim = Kernel::get_block_shape();
  config.dynamicSmemBytes = Kernel::SharedStorageSize;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaError_t error = cudaOccupancyMaxActiveClusters(&active, reinterpret_cast<void const*>(entry), &config);
  if (error != cudaSuccess) return error;
  if (active < 1) return cudaErrorLaunchOutOfResources;
  known[device].store(active, std::memory_order_release);
  return cudaSuccess;
}

template <class Kernel, auto entry>
int32_t launch(typename Kernel::Arguments arguments, gemmill_launch const& how) {
  cudaError_t error = allow_shared_memory<entry>(how.device, Kernel::SharedStorageSize);
  int active_clusters = 0;
  if (error == cudaSuccess) error = most_active_clusters<Kernel, entry>(how.device, active_clusters);
  if (error != cudaSuccess) return error;
  arguments.hw_info = cutlass::KernelHardwareInfo{how.device, how.sm_count, active_clusters};
  // Not asked: Kernel::can_implement, which wants aligned extents. TMA needs aligned addresses and strides, which the
  // caller has checked, and clips the rest.
  if (Kernel::initialize_workspace(arguments, how.workspace, static_cast<cudaStream_t>(how.stream)) != cutlass::Status::kSuccess) return cudaErrorUnknown;

  typename Kernel::Params params = Kernel::to_underlying_arguments(arguments, how.workspace);
  void* parameters[] = {&params};
  LaunchShape const shape{Kernel::get_grid_shape(params), Kernel::get_block_shape(), cluster_of<Kernel>(), Kernel::SharedStorageSize};
  return launch_kernel<entry>(shape, how, parameters);
}

template <class Kernel>
int64_t workspace_bytes(typename Kernel::Arguments arguments, gemmill_launch const& how) {
  arguments.hw_info = cutlass::KernelHardwareInfo{how.device, how.sm_count};
  return static_cast<int64_t>(Kernel::get_workspace_size(arguments));
}

}  // namespace gemmill
