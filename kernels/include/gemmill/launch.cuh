// Launching kernels, with what is constant for a device asked once and not on every call.
#pragma once

#include <atomic>
#include <cuda_runtime.h>

#include "gemmill/abi.h"

namespace gemmill {

constexpr int kMostDevices = 64;

inline cudaLaunchConfig_t launch_config(dim3 grid, dim3 block, int shared_bytes, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return config;
}

inline cudaLaunchAttribute cluster_attribute(dim3 cluster) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {cluster.x, cluster.y, cluster.z};
  return attribute;
}

// Lets a kernel have the shared memory that it needs.
template <auto entry>
cudaError_t allow_shared_memory(int device, int shared_bytes) {
  static std::atomic<bool> allowed[kMostDevices];
  if (device < 0 || device >= kMostDevices) return cudaErrorInvalidDevice;
  if (allowed[device].load(std::memory_order_acquire)) return cudaSuccess;
  cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<void const*>(entry), cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error == cudaSuccess) allowed[device].store(true, std::memory_order_release);
  return error;
}

inline int32_t launch_kernel(void const* entry, dim3 grid, dim3 block, int shared_bytes, dim3 cluster, bool programmatic,
                             void** parameters, cudaStream_t stream) {
  cudaLaunchAttribute attributes[2];
  int count = 0;
  if (cluster.x * cluster.y * cluster.z > 1) attributes[count++] = cluster_attribute(cluster);
  if (programmatic) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config = launch_config(grid, block, shared_bytes, stream);
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelExC(&config, entry, parameters);
}

}  // namespace gemmill
