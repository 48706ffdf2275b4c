// Launching, and dividing indices.
#pragma once

#include <atomic>
#include <cstdint>
#include <cuda_runtime.h>

#include "core/launch.cuh"
#include "core/programmatic.cuh"
#include "quant/abi.h"

namespace gemmill::quant {

// Chunks that one launch takes, so that indices stay below 2^31; larger tensors take one launch for each slice of rows.
inline constexpr int64_t kMostChunks = int64_t{1} << 30;

// Tensors of 17 and of 35 MB (of 16-byte loads, on 132 SMs): from one or the other on, it pays to give a thread much to do,
// or to have small CTAs, which leave no SM idle between two of them. Measured on an H200, 2026-11-20.
inline bool is_large(int64_t chunks, int32_t sm_count) { return chunks > int64_t{sm_count} * 8192; }
inline bool is_very_large(int64_t chunks, int32_t sm_count) { return chunks > int64_t{sm_count} * 16384; }
inline constexpr int kThreadsOfLarge = 128;

// n / divisor for n < 2^31 by one multiplication.
struct FastDivision {
  uint32_t divisor, multiplier, shift;

  explicit FastDivision(uint32_t d) : divisor(d) {
    uint32_t bits = 0;
    while ((uint64_t{1} << bits) < d) ++bits;
    shift = 31 + bits;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << shift) + d - 1) / d);
  }
  __device__ __forceinline__ uint32_t operator()(uint32_t n) const {
    return static_cast<uint32_t>(static_cast<uint64_t>(n) * multiplier >> shift);
  }
};

inline constexpr int kPortableCluster = 8;

// Lets a kernel run in clusters of more CTAs than every device has room for.
template <auto kernel>
cudaError_t allow_wide_clusters(int device) {
  static std::atomic<bool> allowed[kMostDevices];
  if (device < 0 || device >= kMostDevices) return cudaErrorInvalidDevice;
  if (allowed[device].load(std::memory_order_acquire)) return cudaSuccess;
  cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<void const*>(kernel), cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error == cudaSuccess) allowed[device].store(true, std::memory_order_release);
  return error;
}

// CTAs that share a row which is long for one, `most` at most. Clusters must find room all at once, each within a GPC, of which a
// part is left over: 16 rows by clusters of 8 take longer than by clusters of 4. Two CTAs a row pay only where it is more than
// twice too long, but then up to half a row an SM (H200, 2026-11-20).
inline int cluster_for(int64_t rows, int64_t row_size, int64_t size_of_cta, int64_t least_size, int most, int32_t sm_count) {
  if (row_size <= size_of_cta) return 1;
  int cluster = 1;
  while (cluster < most && rows * cluster * 8 <= sm_count * int64_t{3} && row_size / cluster > least_size) cluster *= 2;
  bool const pairs = cluster == 1 && most > 1 && row_size > 2 * size_of_cta && rows * 2 <= sm_count;
  return pairs ? 2 : cluster;
}

// How many rows ahead of its own a CTA asks L2 for one, so that memory has work during the reduction of rows: 28 KB of rows an SM. Twice
// as much costs more than it brings, half brings less (H200, 2026-11-21).
inline uint32_t rows_ahead(int32_t sm_count, int64_t row_bytes) {
  return static_cast<uint32_t>((int64_t{sm_count} * (28 << 10) + row_bytes - 1) / row_bytes);
}

// Enqueues a kernel of one argument. Returns 0 or an error code.
template <auto kernel, class Params>
int32_t launch(Params params, int64_t ctas, int threads, gemmill_launch const& how, int cluster = 1) {
  if (cluster > kPortableCluster) {
    if (cudaError_t error = allow_wide_clusters<kernel>(how.device); error != cudaSuccess) return error;
  }
  LaunchShape const shape{dim3(static_cast<unsigned>(ctas)), dim3(static_cast<unsigned>(threads)), dim3(static_cast<unsigned>(cluster)), 0};
  void* parameters[] = {&params};
  return launch_kernel<kernel>(shape, how, parameters);
}

inline bool is_aligned(void const* pointer, int64_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

// Whether every chunk of every row can be read in one 16-byte load and its codes written in one store.
template <class In>
bool rows_are_aligned(void const* in, int64_t in_stride, void const* out, int64_t out_stride, int64_t hidden) {
  constexpr int64_t elements = 16 / sizeof(In);
  return hidden % elements == 0 && in_stride % elements == 0 && out_stride % elements == 0 && is_aligned(in, 16) &&
         is_aligned(out, elements);
}

constexpr int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace gemmill::quant
