// Queries of the CUDA runtime around a launch.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

struct CUDAGuardOpaque;  // of torch's C interface

namespace gemmill {

// Multiprocessors of a device, from one query. Returns 0 where the query fails.
int64_t sm_count(int32_t device);
// torch's current stream on a device.
cudaStream_t current_stream(int32_t device);
// Whether kernels may be launched while their predecessor drains; on unless turned off.
bool programmatic_launch();
// Whether b may be read before earlier kernels have ended; off unless the user has said so.
bool constant_weights();
// Whether kernels may wait for ever for counts of other CTAs; off unless the user has said so.
bool endless_waits();

// Makes a device current for a scope, which costs nothing where it already is. By torch's guard: to set back a device that
// nobody has used would make a context there, which torch knows how not to do.
class DeviceScope {
 public:
  explicit DeviceScope(int32_t device);
  ~DeviceScope();
  DeviceScope(DeviceScope const&) = delete;
  DeviceScope& operator=(DeviceScope const&) = delete;

 private:
  CUDAGuardOpaque* guard_ = nullptr;
};

}  // namespace gemmill
