// The needs of the emulated instructions from a warp, so that a test can give it to threads on a CPU.
#pragma once

#include <cstdint>

namespace gemmill::emulation {

#ifdef __CUDACC__

// The value of each lane, by its number: all lanes of the warp call this together.
template <class Value>
__device__ __forceinline__ Value of_lane(Value value, int lane) { return __shfl_sync(0xFFFFFFFFu, value, lane); }

__device__ __forceinline__ int lane_of_warp() { return static_cast<int>(threadIdx.x % 32); }

__device__ __forceinline__ uint32_t shared_word(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

__device__ __forceinline__ void store_shared(uint32_t address, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// Makes this thread's stores visible to those that wait on the barrier, and reports so many bytes to it.
__device__ __forceinline__ void complete_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("fence.acq_rel.cta;" ::: "memory");
  asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ double double_of(uint64_t bits) { return __longlong_as_double(static_cast<long long>(bits)); }

#define GEMMILL_EMULATED inline __device__ __noinline__
#define GEMMILL_EMULATED_INLINE __device__ __forceinline__
#endif

}  // namespace gemmill::emulation
