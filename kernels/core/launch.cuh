// Host code: launching kernels, with a device's constants queried once and not on every call.
#pragma once

#include <atomic>
#include <cuda.h>
#include <cuda_runtime.h>

#include "core/abi.h"

namespace gemmill {

constexpr int kMostDevices = 64;

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

// The driver's handle of a kernel on a device. Launching by it spares the runtime's look-up on every call.
template <auto entry>
cudaError_t function_on(int device, CUfunction& function) {
  static std::atomic<CUfunction> known[kMostDevices];
  if (device < 0 || device >= kMostDevices) return cudaErrorInvalidDevice;
  function = known[device].load(std::memory_order_acquire);
  if (function != nullptr) return cudaSuccess;
  cudaError_t error = cudaGetFuncBySymbol(&function, reinterpret_cast<void const*>(entry));
  if (error == cudaSuccess) known[device].store(function, std::memory_order_release);
  return error;
}

struct LaunchShape {
  dim3 grid, block, cluster;
  int shared_bytes;
};

// Enqueues a kernel. Returns 0 or an error code, whose numbers driver and runtime share.
template <auto entry>
int32_t launch_kernel(LaunchShape const& shape, gemmill_launch const& how, void** parameters) {
  CUfunction function = nullptr;
  if (cudaError_t error = function_on<entry>(how.device, function); error != cudaSuccess) return error;
  CUlaunchAttribute attributes[2];
  unsigned count = 0;
  if (shape.cluster.x * shape.cluster.y * shape.cluster.z > 1) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[count++].value.clusterDim = {shape.cluster.x, shape.cluster.y, shape.cluster.z};
  }
  if (how.programmatic_launch) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[count++].value.programmaticStreamSerializationAllowed = 1;
  }
  CUlaunchConfig const config{shape.grid.x,  shape.grid.y,  shape.grid.z,
                              shape.block.x, shape.block.y, shape.block.z,
                              static_cast<unsigned>(shape.shared_bytes), static_cast<cudaStream_t>(how.stream), attributes, count};
  CUresult result = cuLaunchKernelEx(&config, function, parameters, nullptr);
  if (result == CUDA_ERROR_INVALID_CONTEXT) {  // the thread's first call: the runtime makes the context current
    if (cudaError_t error = cudaSetDevice(how.device); error != cudaSuccess) return error;
    result = cuLaunchKernelEx(&config, function, parameters, nullptr);
  }
  return static_cast<int32_t>(result);
}

}  // namespace gemmill
