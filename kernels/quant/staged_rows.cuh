// Rows on their way into shared memory: the bulk copy engine fetches a CTA's next rows while its threads work on the one
// before, so that loads stay in flight through every reduction. Addresses and lengths are multiples of 16 bytes.
#pragma once

#include <cstdint>

#include "quant/launch.cuh"

namespace gemmill::quant {

inline constexpr int kStagedThreads = 512;
inline constexpr int kMostStages = 4;

// CTAs of kStagedThreads threads that share an SM, by the 16-byte chunks that a thread holds: each may have 65536 / that
// many registers. Rows of products or with weights beside them take twice the registers of plain ones.
constexpr int staged_ctas(int chunks, bool heavy) { return chunks == 8 ? (heavy ? 1 : 2) : chunks == 4 && heavy ? 2 : 3; }

// How rows are staged; no stages: not at all.
struct StagedShape {
  int chunks, threads, ctas_per_sm, stages;
  int shared_bytes;
};

// Many rows that a CTA can hold. `row_bytes` is what is staged of a row, all operands together.
inline StagedShape staged_shape(gemmill_quant_launch const& how, int64_t rows, int64_t chunks, int64_t row_bytes, bool heavy) {
  StagedShape shape{};
  if (how.chunks_hint != 0 || chunks < 64 || chunks > 8 * kStagedThreads || row_bytes > kMostSharedBytes) return shape;
  if (!is_large(rows * row_bytes / 16, how.sm_count) || rows < 2 * how.sm_count) return shape;
  shape.chunks = chunks <= 512 ? 2 : chunks <= 4 * kStagedThreads ? 4 : 8;
  shape.threads = static_cast<int>(ceil_divide(ceil_divide(chunks, shape.chunks), 32) * 32);
  int64_t const by_registers = kStagedThreads * staged_ctas(shape.chunks, heavy) / shape.threads;
  int64_t const by_memory = kMostSharedBytes / row_bytes;
  shape.ctas_per_sm = static_cast<int>(by_registers < by_memory ? by_registers : by_memory);
  int64_t const stages = by_memory / shape.ctas_per_sm;
  shape.stages = static_cast<int>(stages < kMostStages ? stages : kMostStages);
  shape.shared_bytes = static_cast<int>(shape.stages * row_bytes);
  return shape;
}

inline int64_t staged_grid(StagedShape const& shape, int64_t rows, int32_t sm_count) {
  int64_t const most = int64_t{shape.ctas_per_sm} * sm_count;
  return rows < most ? rows : most;
}

__device__ __forceinline__ uint32_t shared_address(void const* pointer) { return static_cast<uint32_t>(__cvta_generic_to_shared(pointer)); }

// A ring of stages, each with room for one row of every operand and a barrier that says when it has arrived.
template <int kOperands>
struct StagedRows {
  uint8_t* memory;    // [stages][kOperands][operand_bytes]
  uint64_t* arrived;  // [stages]
  uint32_t operand_bytes, stages;
  uint32_t stage = 0, parity = 0;

  // By all threads, once.
  __device__ __forceinline__ void prepare() const {
    if (threadIdx.x == 0) {
      for (uint32_t s = 0; s < stages; ++s) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(arrived + s)) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
  }
  // By one thread, when all have read what the stage held before.
  __device__ __forceinline__ void fetch(uint32_t s, void const* const (&rows)[kOperands]) const {
    uint32_t const barrier = shared_address(arrived + s);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(kOperands * operand_bytes) : "memory");
#pragma unroll
    for (int o = 0; o < kOperands; ++o) {
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                       shared_address(memory) + (s * kOperands + o) * operand_bytes),
                   "l"(rows[o]), "r"(operand_bytes), "r"(barrier)
                   : "memory");
    }
  }
  // The chunks of the next row's operands, one operand after the other, once they are there.
  __device__ __forceinline__ uint4 const* wait() const {
    uint32_t done;
    do {
      asm volatile("{\n .reg .pred arrived;\n mbarrier.try_wait.parity.shared::cta.b64 arrived, [%1], %2;\n selp.u32 %0, 1, 0, arrived;\n}"
                   : "=r"(done)
                   : "r"(shared_address(arrived + stage)), "r"(parity)
                   : "memory");
    } while (!done);
    return reinterpret_cast<uint4 const*>(memory + stage * kOperands * operand_bytes);
  }
  __device__ __forceinline__ void advance() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

}  // namespace gemmill::quant
