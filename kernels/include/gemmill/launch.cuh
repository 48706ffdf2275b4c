// Launching a CUTLASS 3.x kernel with what is constant for a device asked once, not on every call.
#pragma once

#include <atomic>
#include <cuda_runtime.h>

#include "cutlass/cutlass.h"
#include "cutlass/device_kernel.h"
#include "cutlass/kernel_hardware_info.h"
#include "gemmill/abi.h"

namespace gemmill {

constexpr int kMostDevices = 64;

// Clusters of this kernel that fit on a device at once, in the kernel's shared-memory setting, which this also makes.
// Zero means not yet asked. Two threads that ask together get the same answer.
template <class Kernel>
cudaError_t prepare(void const* entry, int device, int& active_clusters) {
  static std::atomic<int> known[kMostDevices];
  if (device < 0 || device >= kMostDevices) return cudaErrorInvalidDevice;
  active_clusters = known[device].load(std::memory_order_acquire);
  if (active_clusters > 0) return cudaSuccess;

  using Cluster = typename Kernel::ClusterShape;
  cudaError_t error = cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, Kernel::SharedStorageSize);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {cute::size<0>(Cluster{}), cute::size<1>(Cluster{}), cute::size<2>(Cluster{})};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(cute::size<0>(Cluster{}), cute::size<1>(Cluster{}), cute::size<2>(Cluster{}));
  config.blockDim = Kernel::get_block_shape();
  config.dynamicSmemBytes = Kernel::SharedStorageSize;
  config.attrs = &attribute;
  config.numAttrs = 1;
  error = cudaOccupancyMaxActiveClusters(&active_clusters, entry, &config);
  if (error != cudaSuccess) return error;
  if (active_clusters < 1) return cudaErrorLaunchOutOfResources;
  known[device].store(active_clusters, std::memory_order_release);
  return cudaSuccess;
}

template <class Kernel>
int32_t launch(void const* entry, typename Kernel::Arguments arguments, gemmill_scaled_mm_args const& x, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  int active_clusters = 0;
  cudaError_t error = prepare<Kernel>(entry, x.device, active_clusters);
  if (error != cudaSuccess) return error;
  arguments.hw_info = cutlass::KernelHardwareInfo{x.device, x.sm_count, active_clusters};
  if (!Kernel::can_implement(arguments)) return GEMMILL_CANNOT_IMPLEMENT;
  if (Kernel::initialize_workspace(arguments, x.workspace, stream) != cutlass::Status::kSuccess) return cudaErrorUnknown;

  typename Kernel::Params params = Kernel::to_underlying_arguments(arguments, x.workspace);
  using Cluster = typename Kernel::ClusterShape;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {cute::size<0>(Cluster{}), cute::size<1>(Cluster{}), cute::size<2>(Cluster{})};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = Kernel::get_grid_shape(params);
  config.blockDim = Kernel::get_block_shape();
  config.dynamicSmemBytes = Kernel::SharedStorageSize;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = x.programmatic_launch ? 2 : 1;
  void* parameters[] = {&params};
  return cudaLaunchKernelExC(&config, entry, parameters);
}

template <class Kernel>
int64_t workspace_bytes(typename Kernel::Arguments arguments, gemmill_scaled_mm_args const& x) {
  arguments.hw_info = cutlass::KernelHardwareInfo{x.device, x.sm_count};
  return static_cast<int64_t>(Kernel::get_workspace_size(arguments));
}

}  // namespace gemmill
