// Reductions over lanes, warps and the CTAs of a cluster.
#pragma once

#include <cstdint>

namespace gemmill::quant {

struct Max {
  static __device__ __forceinline__ float identity() { return 0.0f; }  // of absolute values
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

struct Range {
  float low, high;
};

struct WidenRange {
  static __device__ __forceinline__ Range identity() { return {__int_as_float(0x7f800000), __int_as_float(0xff800000)}; }
  __device__ __forceinline__ Range operator()(Range a, Range b) const { return {fminf(a.low, b.low), fmaxf(a.high, b.high)}; }
};

struct Sum {
  static __device__ __forceinline__ double identity() { return 0.0; }
  __device__ __forceinline__ double operator()(double a, double b) const { return a + b; }
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

struct WholeSum {
  static __device__ __forceinline__ int32_t identity() { return 0; }
  __device__ __forceinline__ int32_t operator()(int32_t a, int32_t b) const { return a + b; }
};

template <class T>
__device__ __forceinline__ T shuffle_xor(T value, int offset) {
  return __shfl_xor_sync(0xffffffffu, value, offset);
}
template <>
__device__ __forceinline__ Range shuffle_xor(Range value, int offset) {
  return {shuffle_xor(value.low, offset), shuffle_xor(value.high, offset)};
}

// Over `kLanes` neighbouring lanes; every lane of the warp takes part and gets the result.
template <int kLanes, class Operation, class T>
__device__ __forceinline__ T reduce_lanes(T value, Operation operation) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) value = operation(value, shuffle_xor(value, offset));
  return value;
}

// The same for lane 0 only: neighbours first, in this order.
template <int kLanes, class Operation, class T>
__device__ __forceinline__ T reduce_lanes_upwards(T value, Operation operation) {
#pragma unroll
  for (int offset = 1; offset < kLanes; offset *= 2) value = operation(value, __shfl_down_sync(0xffffffffu, value, offset));
  return value;
}

// How many of a thread's chunks belong to one group: the more, the fewer shuffles and scales it computes. At least two lanes share a
// group, so that they write its codes in runs of 16 bytes or more.
constexpr int parts_of_group(int chunks_of_thread, int chunks_of_group) {
  int parts = chunks_of_thread < 4 ? chunks_of_thread : 4;
  while (parts > chunks_of_group / 2) parts /= 2;
  return parts;
}

__device__ __forceinline__ uint32_t cluster_size() {
  uint32_t size;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
  return size;
}

__device__ __forceinline__ uint32_t cluster_index() {
  uint32_t index;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Over all threads of the CTA, or of the cluster's CTAs. Every thread calls it and gets the result. With clusters, the
// caller has arrived once at the cluster barrier before (so that every CTA is known to run when its memory is written).
// One object serves one reduction of a kernel.
template <class T, bool kCluster>
struct RowReduction {
  T of_warps[32];
  T of_ctas[kCluster ? 16 : 1];

  template <class Operation>
  __device__ __forceinline__ T operator()(T value, Operation operation) {
    int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    value = reduce_lanes<32>(value, operation);
    if (warps > 1) {
      if (lane == 0) of_warps[warp] = value;
      __syncthreads();
      value = reduce_lanes<32>(lane < warps ? of_warps[lane] : Operation::identity(), operation);
    }
    if constexpr (kCluster) {
      cluster_wait();
      if (threadIdx.x < cluster_size()) write_to_cta(threadIdx.x, value);
      cluster_arrive();
      cluster_wait();
      int const ctas = cluster_size();
      value = of_ctas[0];
      for (int i = 1; i < ctas; ++i) value = operation(value, of_ctas[i]);
    }
    return value;
  }

 private:
  __device__ __forceinline__ void write_to_cta(uint32_t cta, T value) {
    uint32_t const local = static_cast<uint32_t>(__cvta_generic_to_shared(&of_ctas[cluster_rank()]));
    uint32_t remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(cta));
    static_assert(sizeof(T) % 4 == 0);
    uint32_t words[sizeof(T) / 4];
    memcpy(words, &value, sizeof(T));
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i) {
      asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(remote + 4 * i), "r"(words[i]) : "memory");
    }
  }
};

}  // namespace gemmill::quant
