// Words of device code that CUTLASS's headers use outside templates: a host compiler reads them, and nothing of it runs.
#pragma once

#include <cuda_runtime.h>

[[maybe_unused]] static uint3 const threadIdx{}, blockIdx{};
[[maybe_unused]] static dim3 const blockDim{}, gridDim{};
inline void __syncthreads() {}
inline void __syncwarp(unsigned = 0) {}

namespace cutlass::arch {
inline int SmId() { return 0; }
}  // namespace cutlass::arch
