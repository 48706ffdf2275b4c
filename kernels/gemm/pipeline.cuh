// A pipeline of stages in shared memory: its barriers, its state, and the loads that fill a stage.
#pragma once

#include <cuda.h>

#include "cute/arch/copy_sm90_tma.hpp"
#include "cute/arch/util.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/arch/grid_dependency_control.h"

namespace gemmill {

using Filled = cutlass::arch::ClusterTransactionBarrier;  // of a stage: the bytes that it expects have arrived
using Freed = cutlass::arch::ClusterBarrier;              // of a stage: its readers have arrived

// The next stage, and how often all stages have been used, modulo two.
template <int stages>
struct PipelineState {
  int stage = 0, phase = 0;

  __device__ void next() {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

// The launch ahead of this one has ended; the next one may begin.
__device__ __forceinline__ void wait_and_launch_dependents() {
  cutlass::arch::wait_on_dependent_grids();
  cutlass::arch::launch_dependent_grids();
}

// A bulk copy to shared memory of bytes that are read once, such as weights.
__device__ __forceinline__ void load_bulk(uint32_t to, void const* from, uint32_t bytes, Filled& filled) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
               ::"r"(to), "l"(from), "r"(bytes), "r"(cute::cast_smem_ptr_to_uint(&filled)),
                 "l"(static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST))
               : "memory");
}

// A box of rows that other tiles read again.
__device__ __forceinline__ void load_box(CUtensorMap const& map, Filled& filled, void* to, int column, int row) {
  cute::SM90_TMA_LOAD_2D::copy(&map, reinterpret_cast<uint64_t*>(&filled), static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST), to, column,
                               row);
}

// The thread arrives when its copies by cp.async have.
__device__ __forceinline__ void arrive_after_copies(Filled& filled) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(cute::cast_smem_ptr_to_uint(&filled)) : "memory");
}

// To L2, where all writes meet.
__device__ __forceinline__ void prefetch_to_l2(void const* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

}  // namespace gemmill
