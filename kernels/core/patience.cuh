// Waits for counts of other CTAs in memory, which end.
#pragma once

#include <cstdint>

namespace gemmill {

// Nanoseconds of the device's clock.
struct DeviceClock {
#ifdef __CUDACC__
  __device__ static uint64_t now() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
  }
  __device__ static void give_up() { __trap(); }
#endif
};

// The loop calls it at every look at a counter that is not there yet. Each 256th reads the clock; 20 s after the first that did, the
// kernel ends with an error: another call in the same workspace has cleared this one's counters. `endless`: it never does, for debuggers
// and sanitizers, under which kernels stop or are slow.
template <class Clock = DeviceClock>
class Patience {
 public:
  static constexpr uint64_t kMostNs = 20'000'000'000;
  static constexpr uint32_t kLooks = 256;

#ifdef __CUDACC__
  __device__ __forceinline__
#endif
  void spend(bool endless) {
    if (++looks_ % kLooks != 0 || endless) return;
    uint64_t const now = Clock::now();
    if (begin_ == 0) begin_ = now;
    if (now - begin_ > kMostNs) Clock::give_up();
  }

 private:
  uint64_t begin_ = 0;
  uint32_t looks_ = 0;
};

}  // namespace gemmill
