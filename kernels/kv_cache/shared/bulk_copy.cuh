// Shared memory by its addresses: barriers, the bulk copies that arrive at them (PTX: mbarrier, cp.async.bulk; sm_90 and later).
#pragma once

#include <cstdint>

namespace gemmill::kv_cache {

constexpr int kReserved = 1024;  // the system's part below a block's shared memory

__device__ __forceinline__ uint32_t shared_address(void const* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void initialise(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers known to the copy engine. A __syncthreads makes them known to the block.
__device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void expect_bytes(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void wait(uint64_t* barrier, int phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(phase)
      : "memory");
}

// For constant data: the compiler may move it, but not before the inputs of its address.
__device__ __forceinline__ uint32_t load_shared(uint32_t address) {
  uint32_t word;
  asm("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address));
  return word;
}

__device__ __forceinline__ uint2 load_shared_8(uint32_t address) {
  uint2 words;
  asm("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "r"(address));
  return words;
}

// A barrier of `threads` of the block's. Number 0 is __syncthreads'.
__device__ __forceinline__ void sync_threads(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Registers of four warps, all of which call it, from or to those of the block that nobody has.
template <int kRegisters>
__device__ __forceinline__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters)); }
template <int kRegisters>
__device__ __forceinline__ void leave_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters)); }

// `bytes` and both addresses are multiples of 16.
__device__ __forceinline__ void bulk_copy(void* to, void const* from, int bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// The thread's own copies, of 8 or 16 bytes that begin at multiples of them; zeros where the source does not exist. They end in
// groups: all but the latest `kPending` groups have landed for this thread behind a wait.
template <int kBytes>
__device__ __forceinline__ void copy_ahead(uint32_t to, void const* from, bool exists) {
  static_assert(kBytes == 8 || kBytes == 16, "Copies that are made ahead have these sizes.");
  int const bytes = exists ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  }
}
__device__ __forceinline__ void end_group_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace gemmill::kv_cache
