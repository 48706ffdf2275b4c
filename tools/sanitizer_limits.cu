// Kernels that are right, and what compute-sanitizer reports of them: the evidence for the exceptions in sanitized.toml.
//
//     nvcc -arch=sm_90a -cubin -o limits.cubin tools/sanitizer_limits.cu
//     compute-sanitizer --tool racecheck python tools/sanitizer_limits.py limits.cubin stores_one_arrives
//
// | kernel | tool | reported on an H200, compute-sanitizer 2025.3.1, 2026-11-26 |
// | --- | --- | --- |
// | stores_all_arrive, copies_all_arrive, bulk_all_arrive | racecheck | nothing |
// | stores_one_arrives, copies_one_arrives, bulk_one_arrives | racecheck | errors: 5, 4, 2 |
// | wrong_stores_no_wait | racecheck | errors: 4 |
// | plain_store | initcheck | nothing |
// | bulk_store | initcheck | errors: 88 |
// | branches_meet_at_one_place | synccheck | nothing (2026-11-27) |
// | branches_meet_at_two_places | synccheck | divergent threads in the block (2026-11-27) |
//
// A producer warp fills a ring of two stages; two consumer warps read them. PTX orders the accesses of a warp's lanes before an
// arrival of lane 0 behind __syncwarp(): bar.warp.sync synchronises them, and an arrival releases what happened before it.
#include <cstdint>

constexpr int kStages = 2, kSteps = 64, kWords = 128, kConsumers = 2;
enum class Fill { kStores, kCopies, kBulk };

__device__ __forceinline__ uint32_t shared_address(void const* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void initialise(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void wait(uint64_t* barrier, int phase) {
  asm volatile(
      "{.reg .pred p;\nwaiting: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra waiting;\ndone:\n}" ::"r"(
          shared_address(barrier)),
      "r"(phase)
      : "memory");
}
template <bool one_arrives>
__device__ __forceinline__ void arrive_as_warp(uint64_t* barrier) {
  if (!one_arrives) return arrive(barrier);
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(barrier);
}

template <Fill fill, bool one_arrives, bool waits>
__device__ void run(uint32_t const* in, uint32_t* out) {
  __shared__ alignas(128) uint32_t data[kStages][kWords];
  __shared__ uint64_t full[kStages], empty[kStages];
  int const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    int const fillers = fill == Fill::kBulk || (fill == Fill::kStores && one_arrives) ? 1 : 32;
    for (int i = 0; i < kStages; ++i) initialise(&full[i], fillers), initialise(&empty[i], kConsumers * (one_arrives ? 1 : 32));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  int stage = 0, phase = 0;
  uint32_t sum = 0;
  for (int step = 0; step < kSteps; ++step) {
    uint32_t const* const from = in + step * kWords;
    if (warp < kConsumers) {
      wait(&full[stage], phase);
      for (int i = lane; i < kWords; i += 32) sum += data[stage][(i + warp * 16) % kWords];
      arrive_as_warp<one_arrives>(&empty[stage]);
    } else {
      if (waits) wait(&empty[stage], phase ^ 1);
      if (fill == Fill::kStores) {
        for (int i = lane; i < kWords; i += 32) data[stage][i] = from[i];
        arrive_as_warp<one_arrives>(&full[stage]);
      } else if (fill == Fill::kCopies) {
        for (int i = lane; i < kWords; i += 32) {
          asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(&data[stage][i])), "l"(from + i) : "memory");
        }
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&full[stage])) : "memory");
      } else if (lane == 0) {
        uint32_t const barrier = shared_address(&full[stage]);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(4 * kWords) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(data[stage])),
                     "l"(from), "r"(4 * kWords), "r"(barrier)
                     : "memory");
      }
      __syncwarp();
    }
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
  if (warp < kConsumers) out[threadIdx.x] = sum;
}

#define KERNEL(name) extern "C" __global__ void name(uint32_t const* in, uint32_t* out)
KERNEL(stores_all_arrive) { run<Fill::kStores, false, true>(in, out); }
KERNEL(stores_one_arrives) { run<Fill::kStores, true, true>(in, out); }
KERNEL(copies_all_arrive) { run<Fill::kCopies, false, true>(in, out); }
KERNEL(copies_one_arrives) { run<Fill::kCopies, true, true>(in, out); }
KERNEL(bulk_all_arrive) { run<Fill::kBulk, false, true>(in, out); }
KERNEL(bulk_one_arrives) { run<Fill::kBulk, true, true>(in, out); }
KERNEL(wrong_stores_no_wait) { run<Fill::kStores, false, false>(in, out); }

// What the next kernel reads.
KERNEL(plain_store) { out[threadIdx.x] = in[threadIdx.x]; }
KERNEL(bulk_store) {
  __shared__ alignas(128) uint32_t data[96];
  data[threadIdx.x] = in[threadIdx.x];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x != 0) return;
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 384;" ::"l"(out), "r"(shared_address(data)) : "memory");
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
}
KERNEL(read_back) { out[threadIdx.x] = in[threadIdx.x]; }

// All warps meet at a barrier of the whole block, at one bar.sync or each branch at its own. PTX asks that a warp's threads execute the
// same one, not a block's: kernels whose branches have other numbers of registers (setmaxnreg) compile what follows twice.
__device__ __forceinline__ void meet(int threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }
template <bool one_place>
__device__ void meet_and_store(uint32_t const* in, uint32_t* out) {
  __shared__ uint32_t data[96];
  if (threadIdx.x < 64) {
    data[threadIdx.x] = in[threadIdx.x];
    if (!one_place) meet(96);
    asm volatile("// one branch");
  } else {
    data[threadIdx.x] = in[threadIdx.x] + 1;
    if (!one_place) meet(96);
    asm volatile("// the other");
  }
  if (one_place) meet(96);
  out[threadIdx.x] = data[95 - threadIdx.x];
}
KERNEL(branches_meet_at_one_place) { meet_and_store<true>(in, out); }
KERNEL(branches_meet_at_two_places) { meet_and_store<false>(in, out); }
